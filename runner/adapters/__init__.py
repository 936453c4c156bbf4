"""Adapters: the implementations of the ports in ``runner.core.ports``, one third party each.

They import ``runner.core``, ``runner.files`` and ``runner.base``, and never the control loop, services or
server.
"""
