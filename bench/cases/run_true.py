"""The time of ``runner run -- true`` compared with ``docker run --rm IMAGE true``.

Both commands start a container of the same image and end with it. The daemon runs and the image exists, as
the engine does. The directory holds a few small files, which the runner keeps. Docker is measured with
its defaults: a network of its own, root, and no limits; and with the walls of the job.
"""

import os
from collections.abc import Iterator
from typing import Final

from bench.cases.first_line import warm_up
from bench.support import interleave
from bench.support.daemon import runner_command, running_daemon
from bench.support.jobfile import job_text
from bench.support.result import Aim, Line, Result, in_milliseconds
from bench.support.scratch import Scratch

BENCH: Final = "run"
OURS: Final = "runner run -- true"
PACKED: Final = "runner run --no-code -- true"
DOCKER: Final = "docker run --rm IMAGE true"
FILES: Final = 20


def measure(scratch: Scratch) -> Iterator[Line]:
    """Yield the runner's command compared with Docker's."""
    with running_daemon(scratch.directory("daemon")) as daemon:
        image = warm_up(daemon, daemon.write(job_text()))
        code = scratch.directory("code")
        for number in range(FILES):
            (code / f"module_{number}.py").write_text(f"print({number})\n")
        ours = [*runner_command(), "run"]
        contestants = {
            OURS: interleave.time_command([*ours, "--", "true"], daemon.environment, code),
            PACKED: interleave.time_command([*ours, "--no-code", "--", "true"], daemon.environment, code),
            DOCKER: interleave.time_command(
                ["docker", "run", "--rm", "--entrypoint", "true", image], os.environ
            ),
        }
        seconds = interleave.interleave(scratch.effort.first_lines, scratch.effort.warmups, contestants)
    series = {name: in_milliseconds(name, values) for name, values in seconds.items()}
    yield Result(BENCH, series[OURS], series[DOCKER], Aim(1.0, "ratio"))
    yield Result(BENCH, series[PACKED], series[DOCKER])
