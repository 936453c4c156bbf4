"""A step of data-parallel training in two processes, compared with ``DistributedDataParallel`` by hand.

All three trainings live in the same two processes on this machine and have turns, so that a disturbance
affects all of them.  The exact tree adds the gradients after the backward pass, the others during it.  All
must end with the same weights.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bench.support.result import Aim, CannotMeasure, Line, Result, in_milliseconds
from bench.support.scratch import Scratch
from jobs.contract import STDLIB, AttemptSpec, Parallel, Profile, inside_source
from jobs.contract.plans.causal_lm import CausalLm

BENCH: Final = "data-parallel"
PROCESSES: Final = 2
STEPS: Final = 6  # in a turn
AIM_EXACT: Final = 1.25
AIM_FAST: Final = 1.02
LIMIT_S: Final = 1800.0
REPOSITORY: Final = Path(__file__).parents[2]


def measure(scratch: Scratch) -> Iterator[Line]:
    """Yield the step with the exact tree, and with ``reduction: fast``, beside a loop by hand."""
    effort = scratch.effort
    steps = max(1, int(STEPS * effort.turn_share))
    found = run_replicas(scratch.directory("replicas"), effort.warmups + effort.turns, steps)
    if len(set(found["weights"].values())) > 1:
        raise CannotMeasure(f"the trainings end with different weights: {found['weights']}")
    seconds = {name: tuple(values[effort.warmups :]) for name, values in found["seconds"].items()}
    theirs = in_milliseconds("DistributedDataParallel by hand", seconds["by hand"])
    for name, limit in (("exact", AIM_EXACT), ("fast", AIM_FAST)):
        ours = in_milliseconds(f"step of {PROCESSES} processes, {name}", seconds[name])
        yield Result(BENCH, ours, theirs, Aim(limit, "ratio"), "equal weights", paired=True)


def make_spec(steps: int) -> AttemptSpec:
    """Return the spec of all trainings: four layers of width 256, one thread and half a batch per process."""
    plan = CausalLm(
        data=STDLIB,
        include=("[a-c]*.py",),
        steps=steps,
        batch_size=16,
        context=64,
        layers=4,
        width=256,
        dropout=0.0,
        eval_every=None,
    )
    profile = Profile(optimizer="fused", threads=1, deterministic=False)
    parallel = Parallel(processes=PROCESSES, shards=PROCESSES)
    return AttemptSpec(
        job_id="bench", attempt=1, lineage=1, workload=plan, profile=profile, parallel=parallel
    )


def run_replicas(directory: Path, turns: int, steps: int) -> Mapping[str, Any]:
    """Return the measurements of the processes.

    Raises:
        CannotMeasure: They failed.
    """
    spec, launcher, output = (directory / name for name in ("spec.json", "gang.py", "found.json"))
    spec.write_text(make_spec(turns * steps + 1).model_dump_json())
    launcher.write_text(inside_source("gang"))
    program = (sys.executable, "-m", "bench.rivals.replicas", spec, str(turns), str(steps), output)
    argv = [sys.executable, launcher, directory, str(PROCESSES), "--", *program]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [str(each) for each in argv],
        env=environment,
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    if ended.returncode:
        last = (ended.stdout + ended.stderr).strip().rpartition("\n")[2]
        raise CannotMeasure(f"the processes ended with exit code {ended.returncode}: {last}")
    found: Mapping[str, Any] = json.loads(output.read_text())
    return found
