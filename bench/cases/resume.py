"""The time from SIGKILL to the next training step, compared with a cold ``docker run`` of the same program.

The clock starts before the signal is sent to the container and stops when the first line
``step N/...`` of the next attempt is in its log.  The time includes detecting the end,
verifying the checkpoint, creating a container, importing torch and one step.  The other
clock starts with ``docker run`` and stops at the same line of a training from scratch.
``log_every`` is 1, so the line is the first step.  The configured backoff is subtracted.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Final

from bench.cases.first_line import warm_up
from bench.rivals import container
from bench.support import interleave
from bench.support.daemon import FOREVER, BenchDaemon, running_daemon
from bench.support.jobfile import job_text
from bench.support.result import Aim, Line, Result, Series
from bench.support.rundir import prepare_run_directory
from bench.support.scratch import Scratch

BENCH: Final = "resume"
COLD: Final = "docker run to first step"
LIMIT_S: Final = 180.0
POLL_S: Final = 0.002
STEP: Final = re.compile(rb"^step \d+/", re.MULTILINE)


def measure(scratch: Scratch) -> Iterator[Line]:
    """Yield the time to resume training, for each backoff."""
    with running_daemon(scratch.directory("daemon")) as daemon:
        files = {backoff: _file(daemon, backoff) for backoff in scratch.effort.backoffs_s}
        plan = daemon.plan(files[0], warm_up(daemon, files[0]))
        contestants = {
            _label(backoff): _time_resume(daemon, file, backoff) for backoff, file in files.items()
        }
        contestants[COLD] = time_cold_start(scratch, plan)
        seconds = interleave.interleave(scratch.effort.resumes, 0, contestants)
    theirs = Series(COLD, "s", seconds[COLD])
    for backoff in files:
        ours = Series(_label(backoff), "s", seconds[_label(backoff)])
        yield Result(BENCH, ours, theirs, Aim(1.2, "ratio"))


def _label(backoff_s: int) -> str:
    return f"SIGKILL to next step, less {backoff_s} s of backoff"


def _file(daemon: BenchDaemon, backoff_s: int) -> Path:
    text = job_text(name=f"backoff-{backoff_s}", steps=FOREVER, log_every=1, backoff_s=backoff_s)
    return daemon.write(text, f"backoff-{backoff_s}.yaml")


def _time_resume(daemon: BenchDaemon, file: Path, backoff_s: int) -> Callable[[], float]:
    """Return a contestant: a job that is killed once it has a checkpoint."""

    def measure() -> float:
        job = daemon.submit(file)
        lineage = daemon.log(job, 1).parents[2] / "lineages" / "1"
        interleave.wait_for("a checkpoint", lambda: any(lineage.glob("step-*")), LIMIT_S, 0.05)
        name = daemon.container(job, 1)
        began = perf_counter()
        container.docker("kill", "--signal", "KILL", name)
        seen = await_first_step(daemon.log(job, 2))
        daemon.end(job)
        return seen - began - backoff_s

    return measure


def time_cold_start(scratch: Scratch, plan: container.DockerPlan) -> Callable[[], float]:
    """Return a contestant: ``docker run`` of the same program until its first step."""

    def measure() -> float:
        directory = scratch.directory("cold")
        run_dir = prepare_run_directory(directory, plan)
        output = run_dir / "output"
        argv = plan.bare_argv(f"{scratch.root.name}-{directory.name}", run_dir)
        return container.time_until(argv, output, lambda: await_first_step(output))

    return measure


def await_first_step(log: Path) -> float:
    """Return the time of the first step line in a log, on ``time.perf_counter``'s clock."""
    return interleave.wait_for("the first step", lambda: STEP.search(_read(log)) is not None, LIMIT_S, POLL_S)


def _read(log: Path) -> bytes:
    try:
        return log.read_bytes()
    except FileNotFoundError:
        return b""
