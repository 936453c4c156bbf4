"""From SIGKILL to training again, beside a cold ``docker run`` of the same program.

The clock starts before the signal is sent to the container and stops when the first line
``step N/...`` of the next attempt is in its log: by then the end was noticed, the
checkpoint verified, a new container made, torch imported and a step computed.  The other
clock starts with ``docker run`` and stops at the same line of a training from scratch.
``log_every`` is 1, so the line is the first step.  The configured backoff is subtracted.
"""

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Final

from bench.cases.first_line import warm
from bench.rivals import container
from bench.support import interleave as rounds
from bench.support.daemon import FOREVER, Stage, stage
from bench.support.jobfile import job_text
from bench.support.result import Aim, Line, Result, Series
from bench.support.rundir import prepared
from bench.support.scratch import Room

BENCH: Final = "resume"
COLD: Final = "docker run to first step"
LIMIT_S: Final = 180.0
POLL_S: Final = 0.002
STEP: Final = re.compile(rb"^step \d+/", re.MULTILINE)


def measure(room: Room) -> Iterator[Line]:
    """Yield the time to train again, for each backoff."""
    with stage(room.directory("stage")) as here:
        files = {backoff: _file(here, backoff) for backoff in room.effort.backoffs_s}
        plan = here.plan(files[0], warm(here, files[0]))
        contestants = {_label(backoff): _killed(here, file, backoff) for backoff, file in files.items()}
        contestants[COLD] = cold(room, plan)
        seconds = rounds.interleaved(room.effort.resumes, 0, contestants)
    theirs = Series(COLD, "s", seconds[COLD])
    for backoff in files:
        ours = Series(_label(backoff), "s", seconds[_label(backoff)])
        yield Result(BENCH, ours, theirs, Aim(1.2, "ratio"))


def _label(backoff_s: int) -> str:
    return f"SIGKILL to next step, less {backoff_s} s of backoff"


def _file(here: Stage, backoff_s: int) -> Path:
    text = job_text(name=f"backoff-{backoff_s}", steps=FOREVER, log_every=1, backoff_s=backoff_s)
    return here.write(text, f"backoff-{backoff_s}.yaml")


def _killed(here: Stage, file: Path, backoff_s: int) -> Callable[[], float]:
    """Return a contestant: a job that is killed once it has a checkpoint."""

    def measure() -> float:
        job = here.submit(file)
        lineage = here.log(job, 1).parents[2] / "lineages" / "1"
        rounds.wait_for("a checkpoint", lambda: any(lineage.glob("step-*")), LIMIT_S, 0.05)
        name = here.container(job, 1)
        began = perf_counter()
        container.docker("kill", "--signal", "KILL", name)
        seen = trains(here.log(job, 2))
        here.end(job)
        return seen - began - backoff_s

    return measure


def cold(room: Room, plan: container.Plan) -> Callable[[], float]:
    """Return a contestant: ``docker run`` of the same program until its first step."""
    numbers = itertools.count(1)

    def measure() -> float:
        run_dir = prepared(room.directory("cold"), plan)
        output = run_dir / "output"
        argv = plan.bare(f"{room.root.name}-cold-{next(numbers)}", run_dir)
        return container.watched(argv, output, lambda: trains(output))

    return measure


def trains(log: Path) -> float:
    """Return when a log first tells of a step, on ``time.perf_counter``'s clock."""
    return rounds.wait_for("the first step", lambda: STEP.search(_content(log)) is not None, LIMIT_S, POLL_S)


def _content(log: Path) -> bytes:
    try:
        return log.read_bytes()
    except FileNotFoundError:
        return b""
