"""The programs that run inside an attempt: the trainer and its workloads.

The package imports nothing of ``runner``. An image contains it, and the part of
``gpu_job_runner`` for programs.
"""
