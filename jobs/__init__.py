"""The programs that run inside an attempt: the trainer, its workloads, and ``jobs.attach`` for own programs.

The package imports nothing of ``runner``; an image contains it alone.
"""
