"""The pure core: decisions about jobs, policies, queues and devices, and the ports to the outside.

Nothing here reads a clock, a file or a socket; it imports only ``runner.base``.
"""
