"""Checkpoints of one lineage: when to save, how to publish them, which one to resume from.

The package is independent of the workloads; states and their signatures are passed in.
"""
