"""Schedules: making and steering them, and the trigger that submits their jobs.

It imports no adapter; the rows stand in ``runner.core.ports.schedules``.
"""
