"""The name of ``gpu_job_runner.attach`` until version 0.1, kept for one version more."""

import sys
import warnings

import gpu_job_runner.attach

warnings.warn(
    "jobs.attach is called gpu_job_runner.attach since version 0.1, and the old name goes with 0.2; "
    "a folder jobs/ beside your script would hide it",
    DeprecationWarning,
    stacklevel=2,
)
sys.modules[__name__] = gpu_job_runner.attach
