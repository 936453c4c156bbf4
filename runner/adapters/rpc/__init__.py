"""Calls of a typed interface in another process, over a Unix socket, with descriptors.

Requests, answers, proxy and dispatcher follow from the signatures of a class or a ``Protocol``: whoever adds
a method adds it there, and to the implementation of a ``Protocol``.
"""
