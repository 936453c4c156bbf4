"""The measured job file: the first of the examples, with parameters that a benchmark varies."""

import os
from typing import Final

CPUS: Final = min(2, len(os.sched_getaffinity(0)))


def job_text(*, name: str = "bench", steps: int = 300, log_every: int = 10, backoff_s: int = 1) -> str:
    """Return a job file as a user would write it; it takes all CPUs of a ``BenchDaemon``."""
    return f"""\
name: {name}

workload:
  kind: causal_lm
  data: stdlib
  steps: {steps}
  batch_size: 16
  context: 64
  layers: 2
  heads: 4
  width: 128
  eval_every: 100
  log_every: {log_every}

profile: cpu

resources:
  cpus: {CPUS}
  memory: 1GiB

checkpoint:
  every_steps: 5
  keep: 3

retry:
  backoff: {backoff_s}s
"""
