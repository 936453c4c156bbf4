"""Jobs per second of the daemon with programs that cost nothing.

The loop, the lanes, the store on the disk and the run directories are those of the daemon.  Only the
executor is replaced by one in memory, whose programs have ended when their launch returns.  A first job
holds all slots until all others wait.  The clock starts at its release and stops when the last job has
finished.  Each job has its own file, so that no parse result is shared.
"""

import gc
import itertools
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event as Flag
from typing import Final

import structlog

from bench.support import interleave
from bench.support.history import OWNER
from bench.support.result import Aim, CannotMeasure, Line, Result, Series
from bench.support.scratch import Scratch
from runner.adapters.host.clock import SystemClock
from runner.adapters.host.run_directory import HostRunDirectory
from runner.adapters.host.users import HostUsers
from runner.adapters.sqlite.store import SqliteStore
from runner.agent.attempts.prepare import AttemptConfig
from runner.agent.attempts.service import AttemptService
from runner.base import logging as logs
from runner.base.fair_executor import FairExecutor
from runner.base.keyed_executor import KeyedExecutor
from runner.control.context import Capacity, Context
from runner.control.controller import Controller
from runner.core.job.model import Job
from runner.core.job.revision_text import RevisionText
from runner.core.job.states import Preparing, Queued, Running
from runner.core.ports.executor import Gone, LaunchRequest
from runner.core.ports.store import JobRow
from runner.files.job.load import parse_job
from runner.files.job.model import resolve_profile
from runner.files.policy import job_policy as of_job
from runner.files.revision import Revision
from runner.server.main import SWITCH_S
from tests.fakes.daemon.history import NoHistory
from tests.fakes.engine.executor import FakeExecutor, World
from tests.fakes.engine.images import FakeImages
from tests.fakes.gpu.vitals import FakeInventory

BENCH: Final = "dispatch"
SLOTS: Final = 8  # concurrent jobs: the number of GPUs of a server
LANES: Final = 4  # the default setting
LIMIT_S: Final = 120.0
AIM_PER_S: Final = 300.0
AIM_RATIO: Final = 1.2


def measure(scratch: Scratch) -> Iterator[Line]:
    """Yield jobs per second with an empty store, then the cost of one job with a long history."""
    jobs, history = scratch.effort.dispatched, scratch.effort.finished_jobs
    contestants = {
        "none": lambda: _time_jobs(scratch, jobs, None),
        "many": lambda: _time_jobs(scratch, jobs, scratch.store()),
    }
    took = interleave.interleave(scratch.effort.dispatches, min(scratch.effort.warmups, 1), contestants)
    rate = Series(
        f"jobs through the daemon, {SLOTS} at a time", "jobs/s", tuple(jobs / s for s in took["none"])
    )
    yield Result(BENCH, rate, None, Aim(AIM_PER_S, "p50", at_least=True))
    none, many = (_per_job(f"one job, {n:,} finished jobs", took[name], jobs)
                  for name, n in (("none", 0), ("many", history)))  # fmt: skip
    yield Result(BENCH, many, none, Aim(AIM_RATIO, "ratio"))


def _per_job(label: str, seconds: tuple[float, ...], jobs: int) -> Series:
    return Series(label, "ms", tuple(each / jobs * 1000 for each in seconds))


def _time_jobs(scratch: Scratch, jobs: int, history: Path | None) -> float:
    """Return the seconds for ``jobs`` jobs, from the moment when they may begin."""
    directory = scratch.directory("dispatch")
    if history is not None:
        shutil.copy(history, directory / "store.db")
    with log_to_file(directory), running_loop(directory) as here:
        here.submit("blocker", float(SLOTS))
        here.await_state(Running, 1)
        for number in range(jobs):
            here.submit(f"job-{number}", 1.0)
        here.await_state(Queued, jobs)
        began = time.perf_counter()
        here.world.release()
        here.await_end()
        return time.perf_counter() - began


@contextmanager
def log_to_file(directory: Path) -> Iterator[None]:
    """Write the daemon's log to a file, so that logging costs as much as in a daemon."""
    before = structlog.get_config()
    with (directory / "daemon.log").open("w") as file:
        logs.configure(terminal=False, to=file)
        try:
            yield
        finally:
            structlog.configure(**before)
            lazy = type(structlog.get_logger())
            for module in list(sys.modules.values()):
                if isinstance(logger := vars(module).get("log"), lazy):
                    vars(logger).pop("bind", None)  # a logger caches its first configuration


class InstantWorld(World):
    """Programs that have ended when their launch returns, except for the blocking one."""

    def start(self, request: LaunchRequest) -> None:
        super().start(request)
        if request.job_name != "blocker":
            self.running.pop(request.key)
            self.attempts[request.key] = Gone(request.key, 0)

    def release(self) -> None:
        """End all programs that still run."""
        for key in list(self.running):
            self.end(key, 0)


@dataclass(slots=True)
class InProcessDaemon:
    """A daemon in this process, called directly without a socket."""

    directory: Path
    daemon: Controller
    world: InstantWorld
    ended: Flag
    ids: Iterator[int]

    def submit(self, name: str, cpus: float) -> None:
        now = self.daemon.context.clock.now()
        job = Job(str(next(self.ids)), Preparing(now))
        row = JobRow(job, name, OWNER, now, 50, RevisionText.of(make_revision(name, cpus, self.directory)))
        self.daemon.run_exclusively(
            lambda: self.daemon.submit((row,), (f"submitted by {OWNER.name}: {name}",))
        )

    def await_state(self, state: type[Running | Queued], count: int) -> None:
        """Wait until ``count`` jobs are in a state.

        Raises:
            CannotMeasure: the jobs do not reach the state in time.
        """

        def there() -> bool:
            states = [entry.row.job.state for entry in list(self.daemon.tracked_jobs.values())]
            return sum(isinstance(each, state) for each in states) == count

        interleave.wait_for(f"{count} jobs {state.__name__.lower()}", there, LIMIT_S, 0.02)

    def await_end(self) -> None:
        """Wait until no job is left and the end of the last one is in the store.

        Raises:
            CannotMeasure: the end does not come in time.
        """
        if not self.ended.wait(LIMIT_S):
            raise CannotMeasure(f"{len(self.daemon.tracked_jobs)} jobs have not ended after {LIMIT_S:.0f} s")


@contextmanager
def running_loop(directory: Path) -> Iterator[InProcessDaemon]:
    """Yield a running daemon on a directory; stop it at the end."""
    store, world, clock = SqliteStore(directory / "store.db"), InstantWorld(), SystemClock()
    executor = FakeExecutor(store.instance, world)
    config = AttemptConfig(store.instance, directory / "jobs", in_container=False, images=FakeImages(),
                           image_reference=lambda _: None, network=None, log_quota_bytes=1024**2, clock=clock,
                           users=HostUsers(), open_directory=HostRunDirectory)  # fmt: skip
    context = Context(store, executor, AttemptService(config), clock, Capacity(float(SLOTS), 1024**4),
                  work_queue=KeyedExecutor(LANES), build_queue=KeyedExecutor(LANES),
                  verification_queue=FairExecutor("verification"),
                  past=NoHistory(), inventory=FakeInventory())  # fmt: skip
    daemon, ended = Controller(context), Flag()
    daemon.changed = lambda _: None if daemon.tracked_jobs else ended.set()
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)  # as ``runner serve`` does; so is the next statement
    gc.freeze()
    daemon.start()
    try:
        yield InProcessDaemon(directory, daemon, world, ended, itertools.count(int(store.next_id())))
    finally:
        daemon.stop()
        gc.unfreeze()
        sys.setswitchinterval(before)


def make_revision(name: str, cpus: float, directory: Path) -> str:
    """Return the stored form of the job file of a small program, as after a submission."""
    job = parse_job(TEXT.format(name=name, cpus=cpus).encode(), directory / f"{name}.yaml")
    return Revision(
        job=job,
        path=str(job.origin.path),
        accelerator="cpu",
        uid=os.getuid(),  # of the submitter, who has an account; the job runs as its owner
        gid=os.getgid(),
        groups=(),
        user=OWNER.name,
        policy=of_job.serialize_policy(of_job.find_policy(job, directory)),
        settings=resolve_profile(job, "cpu"),
    ).model_dump_json()


TEXT: Final = """\
name: {name}
workload:
  kind: program
  command: ["true"]
resources:
  cpus: {cpus:g}
  memory: 64MiB
"""
