"""Rollouts: evaluating, applying, measuring and verifying a change of a job.

It imports no adapter and no other service but jobs, attempts and submission.
"""
