"""The time from an accepted job to the first line of its program, compared with ``docker run``.

The line is the first that ``python -m jobs`` prints, before it imports torch.  The image exists already.
The program's arguments, variables, user and specification are those of the daemon, taken from a dry run.
In both cases a file is polled every millisecond until it is not empty: the attempt's log for the runner,
and the output of the command ``docker run`` for Docker.  Docker gets its run directory before the clock
starts; the daemon creates it while the clock runs.

Three clocks end at that line: from the daemon's answer to the submission, from the start
of the process ``runner submit``, and from the start of the process ``docker run``.
"""

import itertools
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final

from bench.rivals import container
from bench.support import interleave
from bench.support.daemon import BenchDaemon, runner_command, running_daemon
from bench.support.jobfile import job_text
from bench.support.result import Aim, Line, Result, in_milliseconds
from bench.support.rundir import prepare_run_directory
from bench.support.scratch import Scratch
from bench.support.stats import median

BENCH: Final = "first-line"
ACCEPTED: Final = "accepted to first line"
TYPED: Final = "runner submit to first line"
BARE: Final = "docker run"
WALLED: Final = "docker run, same walls"
LIMIT_S: Final = 60.0
POLL_S: Final = 0.001

Parts = dict[str, list[float]]


def measure(scratch: Scratch) -> Iterator[Line]:
    """Yield both times of the runner compared with Docker's."""
    with running_daemon(scratch.directory("daemon")) as daemon:
        file = daemon.write(job_text())
        plan = daemon.plan(file, warm_up(daemon, file))
        parts: Parts = {}
        contestants = {
            ACCEPTED: lambda: time_accepted(daemon, file, parts),
            TYPED: lambda: time_typed(daemon, file),
            BARE: time_docker(scratch, plan, plan.bare_argv),
            WALLED: time_docker(scratch, plan, plan.hardened_argv),
        }
        seconds = interleave.interleave(scratch.effort.first_lines, scratch.effort.warmups, contestants)
    series = {name: in_milliseconds(name, values) for name, values in seconds.items()}
    note = f"p50 of each part, from the daemon's events: {_format_parts(parts)}"
    yield Result(BENCH, series[ACCEPTED], series[BARE], Aim(1.0, "ratio"), note)
    yield Result(BENCH, series[ACCEPTED], series[WALLED])
    yield Result(BENCH, series[TYPED], series[BARE], Aim(1.3, "ratio"))
    yield Result(BENCH, series[TYPED], series[WALLED])


def warm_up(daemon: BenchDaemon, file: Path) -> str:
    """Run a job once so that its image is built, and return the image."""
    job = daemon.submit(file)
    image = daemon.await_state(job, "running")["image"]
    daemon.end(job)
    return str(image)


def time_accepted(daemon: BenchDaemon, file: Path, parts: Parts) -> float:
    """Return the seconds from the daemon's answer to the first line, and record those of each part."""
    job = daemon.submit(file)
    began = time.perf_counter()
    seen = await_content(daemon.log(job, 1))
    seen_at = time.time()
    daemon.await_state(job, "running")
    for name, seconds in split_by_events({e["kind"]: e["at"] for e in daemon.events(job)}, seen_at).items():
        parts.setdefault(name, []).append(seconds * 1000)
    daemon.end(job)
    return seen - began


def time_typed(daemon: BenchDaemon, file: Path) -> float:
    """Return the seconds from the start of ``runner submit`` to the first line."""
    job = daemon.next_id()
    began = time.perf_counter()
    with subprocess.Popen(
        [*runner_command(), "submit", str(file)], env=daemon.environment, stdout=subprocess.DEVNULL
    ):
        seen = await_content(daemon.log(job, 1))
    daemon.await_state(job, "running")
    daemon.end(job)
    return seen - began


def time_docker(
    scratch: Scratch, plan: container.DockerPlan, argv: Callable[[str, Path], list[str]]
) -> Callable[[], float]:
    """Return a contestant: ``docker run`` until the first output of its command."""
    numbers = itertools.count(1)

    def measure() -> float:
        run_dir = prepare_run_directory(scratch.directory("docker"), plan)
        name = f"{scratch.root.name}-{argv.__name__}-{next(numbers)}"
        output = run_dir / "output"
        return container.time_until(argv(name, run_dir), output, lambda: await_content(output))

    return measure


def split_by_events(events: Mapping[str, str], seen_at: float) -> dict[str, float]:
    """Return the seconds of each part of the start, from the times in the job's events."""
    kinds = ("submitted", "image_ready", "placed", "launched")
    times = [*(datetime.fromisoformat(events[kind]).timestamp() for kind in kinds), seen_at]
    parts = ("image looked up", "placed", "container launched", "program's first line")
    return {part: after - before for part, before, after in zip(parts, times, times[1:], strict=False)}


def await_content(path: Path) -> float:
    """Return the time at which a file first had content, on ``time.perf_counter``'s clock."""
    return interleave.wait_for("the first line", lambda: _size(path) > 0, LIMIT_S, POLL_S)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _format_parts(parts: Parts) -> str:
    return ", then ".join(f"{name} {median(values):.0f} ms" for name, values in parts.items())
