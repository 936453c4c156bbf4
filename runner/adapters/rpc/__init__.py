"""Calls of a typed interface in another process, over a Unix socket, with descriptors.

Requests, answers, proxy and dispatcher follow from the signatures of a ``Protocol``: whoever adds a method
adds it to the interface and to its implementation, and nowhere else.
"""
