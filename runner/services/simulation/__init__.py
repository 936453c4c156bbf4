"""Simulating the scheduler on a trace: reading traces, making synthetic ones, comparing orders.

It needs no daemon and imports no adapter.
"""
