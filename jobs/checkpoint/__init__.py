"""Checkpoints of one lineage: when to save, how to publish them, which one to resume from.

Nothing here knows a workload; states and their signatures are passed in.
"""
