"""Watching what jobs do with their resources: busy times, idle alarms, counts for ``/metrics``.

Nothing here imports an adapter; the control loop is asked only to write.
"""
