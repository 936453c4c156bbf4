"""The name of ``gpu_job_runner.integrations`` until version 0.1, kept for one version more."""

import sys
import warnings

import gpu_job_runner.integrations

warnings.warn(
    "jobs.integrations is called gpu_job_runner.integrations since version 0.1, and the old name "
    "goes with 0.2; a folder jobs/ beside your script would hide it",
    DeprecationWarning,
    stacklevel=2,
)
sys.modules[__name__] = gpu_job_runner.integrations
