"""NVIDIA and AMD devices of the host: inventory, measurements, health and processes.

What follows from an observation is decided in ``runner.core.devices``.
"""
