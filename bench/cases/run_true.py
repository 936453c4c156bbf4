"""The time of ``runner run -- true`` compared with ``docker run --rm IMAGE true``.

Both commands start a container of the same image and end with it. The daemon runs and the image exists, as
the engine does. The directory holds a few small files, which the runner keeps. Docker is measured with
its defaults: a network of its own, root, and no limits; and with the walls of the job.
"""

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.cases.first_line import warm_up
from bench.support import interleave
from bench.support.daemon import runner_command, running_daemon
from bench.support.jobfile import job_text
from bench.support.result import Aim, CannotMeasure, Line, Result, in_milliseconds
from bench.support.scratch import Scratch

BENCH: Final = "run"
OURS: Final = "runner run -- true"
PACKED: Final = "runner run --no-code -- true"
DOCKER: Final = "docker run --rm IMAGE true"
FILES: Final = 20
LIMIT_S: Final = 60.0


def measure(scratch: Scratch) -> Iterator[Line]:
    """Yield the runner's command compared with Docker's."""
    with running_daemon(scratch.directory("daemon")) as daemon:
        image = warm_up(daemon, daemon.write(job_text()))
        code = scratch.directory("code")
        for number in range(FILES):
            (code / f"module_{number}.py").write_text(f"print({number})\n")
        ours = [*runner_command(), "run"]
        contestants = {
            OURS: time_in(code, [*ours, "--", "true"], daemon.environment),
            PACKED: time_in(code, [*ours, "--no-code", "--", "true"], daemon.environment),
            DOCKER: time_in(code, ["docker", "run", "--rm", "--entrypoint", "true", image], dict(os.environ)),
        }
        seconds = interleave.interleave(scratch.effort.first_lines, scratch.effort.warmups, contestants)
    series = {name: in_milliseconds(name, values) for name, values in seconds.items()}
    yield Result(BENCH, series[OURS], series[DOCKER], Aim(1.0, "ratio"))
    yield Result(BENCH, series[PACKED], series[DOCKER])


def time_in(directory: Path, argv: Sequence[str], environment: Mapping[str, str]) -> Callable[[], float]:
    """Return a contestant: the seconds of a command in a directory."""

    def measure() -> float:
        began = time.perf_counter()
        done = subprocess.run(
            argv,
            cwd=directory,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
        took = time.perf_counter() - began
        if done.returncode:
            said = " ".join(done.stderr.decode(errors="replace").split())[-300:]
            raise CannotMeasure(f"{' '.join(argv[:3])} ended with exit code {done.returncode}: {said}")
        return took

    return measure
