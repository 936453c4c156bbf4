"""The scheduler: order of the queue, backfill, reservations, preemption and pending reasons.

It imports ``job`` and ``policy``, and neither ``devices`` nor ``ports``.
"""
