"""Cost of a request beside many waiting jobs and followers, compared with a daemon that has neither.

Two daemons run side by side and are asked in turns.  The jobs are plain processes, and all wait behind one
that holds every processor and sleeps: what is measured is the daemon alone.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from bench.support import interleave
from bench.support.daemon import BenchDaemon, running_daemon, socket_path
from bench.support.jobfile import CPUS
from bench.support.result import Aim, CannotMeasure, Line, Result, in_milliseconds
from bench.support.scratch import Scratch

BENCH: Final = "queue"
AIM_RATIO: Final = 2.0
"""Most cost of a request beside one to a daemon without waiting jobs and followers."""

SLEEPS: Final = f"""\
name: sleeps
workload: {{kind: program, command: [sleep, "1000000"]}}
resources: {{cpus: {CPUS}, memory: 64MiB}}
"""

TOGETHER: Final = 1000
"""Jobs of one matrix, the most that a file may have."""

LARGEST_PAGE: Final = 200

SETTINGS: Final = "queue: {user_quota: {queued: 100000}}\njob_file_bytes_per_user: null\n"


@dataclass(slots=True)
class Queue:
    """A daemon with a job that runs and jobs that wait behind it."""

    daemon: BenchDaemon
    waiting: int = 0
    _matrices: list[str] = field(default_factory=list)  # the first job of each

    def __post_init__(self) -> None:
        self.daemon.await_state(self.daemon.submit(self.file()), "running")

    def file(self) -> Path:
        """Return the file of a job that waits."""
        return self.daemon.write(SLEEPS)

    def fill(self, waiting: int) -> None:
        """Submit jobs until so many wait."""
        while self.waiting < waiting:
            count = min(waiting - self.waiting, TOGETHER)
            file = self.daemon.write(
                f"{SLEEPS}matrix: {{values: {{seed: {list(range(count))}}}}}\n", "matrix"
            )
            jobs = self.daemon.client.submit(str(file), file.read_bytes(), None)["jobs"]
            self._matrices.append(jobs[0]["id"])
            self.daemon.await_state(jobs[-1]["id"], "queued")
            self.waiting += count

    def clear(self) -> None:
        """Cancel all that waits, a matrix at a time."""
        for job in self._matrices:
            self.daemon.client.cancel_all(sweep=job)

    def time_submission(self) -> Callable[[], float]:
        """Return what times a submission, whose job is cancelled at once."""
        return self.daemon.time_submission(partial(self.daemon.submit, self.file()))

    def time_page(self) -> Callable[[], float]:
        """Return what times the first page of the list."""
        return interleave.time_call(partial(self.daemon.client.get, "/v1/jobs", {"limit": LARGEST_PAGE}))


def measure(scratch: Scratch) -> Iterator[Line]:
    """Yield a submission behind a long queue, one beside followers, and the first page of a long list."""
    effort = scratch.effort
    with ExitStack() as stack:

        def queue(name: str) -> Queue:
            made = Queue(stack.enter_context(running_daemon(scratch.directory(name), "process", SETTINGS)))
            stack.callback(made.clear)
            return made

        def compared(name: str, beside: str, ours: Callable[[], float], theirs: Callable[[], float]) -> Line:
            seconds = interleave.interleave(effort.posts, effort.warmups, {"ours": ours, "theirs": theirs})
            one, other = in_milliseconds(name, seconds["ours"]), in_milliseconds(beside, seconds["theirs"])
            return Result(BENCH, one, other, Aim(AIM_RATIO, "ratio"))

        empty, full = queue("empty"), queue("full")
        full.fill(effort.queued)
        name = f"POST /v1/jobs, {effort.queued:,} jobs waiting"
        yield compared(name, "no job waiting", full.time_submission(), empty.time_submission())
        full.fill(effort.listed)
        name = f"GET /v1/jobs, the first {LARGEST_PAGE} of {effort.listed:,} jobs"
        yield compared(name, "of one job", full.time_page(), empty.time_page())
        followed, unfollowed = queue("followed"), queue("unfollowed")
        for each in (followed, unfollowed):
            each.fill(effort.followers)
        with followers(followed.daemon, effort.followers):
            name = f"POST /v1/jobs, {effort.followers} clients follow waiting jobs"
            yield compared(
                name, "no client follows", followed.time_submission(), unfollowed.time_submission()
            )


@contextmanager
def followers(daemon: BenchDaemon, count: int) -> Iterator[None]:
    """Have clients follow as many waiting jobs, in a process of their own."""
    waiting = [job["id"] for job in daemon.client.jobs() if job["state"] == "queued"][:count]
    argv = [sys.executable, "-P", "-m", "bench.support.followers", str(socket_path(daemon.directory))]
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        [*argv, *waiting], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root, env={"PYTHONPATH": root}
    ) as process:
        try:
            if process.stdout is None or process.stdout.readline() != b"following\n":
                raise CannotMeasure("the clients that follow jobs have ended")
            yield
        finally:
            process.kill()
