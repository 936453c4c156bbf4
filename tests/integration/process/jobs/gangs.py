"""A gang of processes as the runner starts it, for tests that disturb one of them."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from jobs.contract import Manifest, RunPaths, verify
from tests.fakes.daemon.preloaded import ENVIRONMENT, TRAINER, Forked, parent_with
from tests.fakes.patience import patience
from tests.unit.jobs.conftest import JobDir

REPOSITORY = Path(__file__).parents[4]
LAUNCHER = REPOSITORY / "jobs" / "inside" / "gang.py"
BRISK = REPOSITORY / "tests" / "fakes" / "daemon" / "brisk_gang.py"

STEPS = 24
PLAN = {"steps": STEPS, "batch_size": 8, "eval_every": STEPS // 2, "dropout": 0.2, "log_every": 5}


DISTURBED = """\
import os, signal, sys
from jobs.training.step import Training
step, rank, number, whom = sys.argv.pop(1).split(",")
update = Training.update
def disturbed(self, now):
    if (now, os.environ["RANK"]) == (int(step), rank):
        if whom == "all":
            os.killpg(os.getpgid(os.getppid()), int(number))
        os.kill(os.getppid() if whom == "launcher" else os.getpid(), int(number))
    return update(self, now)
Training.update = disturbed
from jobs.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@dataclass(frozen=True)
class Fate:
    """A signal that a process of a training sends as it begins a step, so that no busy machine misses it."""

    step: int
    number: signal.Signals
    rank: int = 0
    whom: Literal["itself", "launcher", "all"] = "itself"

    def __str__(self) -> str:
        return f"{self.step},{self.rank},{self.number.value},{self.whom}"


PARTS = f"{TRAINER} torch.distributed.fsdp torch._dynamo"
"""Libraries of fast reduction and of a model in parts, which take longer to load than a training takes."""


class Gang:
    """One attempt of several processes."""

    def __init__(  # noqa: PLR0913  (what a process is started with)
        self,
        paths: RunPaths,
        processes: int,
        argv: Sequence[str],
        given: Mapping[str, str] | None = None,
        *,
        brisk: bool = False,
        library: str | None = None,
    ) -> None:
        self.paths = paths
        self.processes = processes
        launcher = BRISK if brisk else LAUNCHER
        arguments = (str(paths.attempt_dir), str(processes), "--", *argv)
        environment = {**ENVIRONMENT, **(given or {})}
        self.launcher: subprocess.Popen[bytes] | Forked
        if library is not None:
            parent = parent_with(library)
            paths.log.touch()
            self.launcher = parent.start(launcher, *arguments, environ=environment, log=paths.log)
            return
        with paths.log.open("ab") as output:
            self.launcher = subprocess.Popen(
                [sys.executable, "-I", "-S", str(launcher), *arguments],
                cwd=REPOSITORY,
                env=environment,
                stdout=output,
                stderr=output,
                process_group=0,
            )

    @property
    def output(self) -> str:
        return self.paths.log.read_text()

    def log(self, rank: int) -> str:
        path = self.paths.rank_log(rank)
        return path.read_text() if path.exists() else ""

    def rank(self, number: int) -> int:
        """Return the pid of a process, once it has been started."""
        self.wait_while_running(lambda: self._ranks().keys() >= {number})
        return self._ranks()[number]

    def _ranks(self) -> dict[int, int]:
        """Return the pids of the processes that are there by their ranks."""
        found: dict[int, int] = {}
        for pid in self._children():
            with suppress(OSError):  # it has ended
                known = [*Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"), _name(pid)]
                found |= {int(each[5:]): pid for each in known if each.startswith(b"RANK=")}
        return found

    def _children(self) -> list[int]:
        pid = self.launcher.pid
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(each) for each in text.split()]

    def wait_for(self, words: str) -> None:
        """Wait until the log of the attempt has these words."""
        deadline = time.monotonic() + patience()
        while words not in self.output:
            ended = self.launcher.poll()
            assert ended is None or words in self.output, f"{ended}: {self.output}"
            assert time.monotonic() < deadline, self.output
            threading.Event().wait(0.02)

    def wait_for_log(self, rank: int, words: str) -> None:
        """Wait until the log of another process has these words."""
        self._wait_until(lambda: words in self.log(rank))

    def wait_while_running(self, look: Callable[[], bool]) -> None:
        """Wait until something is seen that an attempt does while it runs."""

        def is_there() -> bool:
            ended = self.launcher.poll()
            seen = look()
            assert seen or ended is None, f"{ended}: {self.output}"
            return seen

        self._wait_until(is_there)

    def wait_until_stopped(self, rank: int) -> int:
        """Return the pid of a process once it has been stopped (SIGSTOP)."""
        pid = self.rank(rank)
        self.wait_while_running(lambda: _state(pid) == "T")
        return pid

    def wait_until_dead(self, pid: int) -> None:
        """Wait until a process has ended."""
        self._wait_until(lambda: not _lives(pid))

    def _wait_until(self, look: Callable[[], bool]) -> None:
        deadline = time.monotonic() + patience()
        while not look():
            assert time.monotonic() < deadline, self.output
            threading.Event().wait(0.02)

    def end(self) -> int:
        """Return the exit code of the attempt."""
        return self.launcher.wait(patience())

    def kill(self) -> None:
        """End all processes at once, as the loss of a machine does."""
        os.killpg(self.launcher.pid, signal.SIGKILL)
        self.launcher.wait(patience())

    def close(self) -> None:
        if self.launcher.poll() is None:
            self.kill()


def _name(pid: int) -> bytes:
    """Return the name of a process: the rank of one that is forked from another one with its environment."""
    return Path(f"/proc/{pid}/comm").read_bytes().strip()


def _lives(pid: int) -> bool:
    return _state(pid) not in {"Z", "X"}


def _state(pid: int) -> str:
    """Return the letter of the state of a process; X if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "X"
    return stat.rpartition(")")[2].split()[0]


@contextmanager
def program(
    paths: RunPaths,
    processes: int,
    *argv: str,
    more: Mapping[str, str] | None = None,
    brisk: bool = False,
    library: str | None = None,
) -> Iterator[Gang]:
    """Yield a gang that runs a command; ``more`` are further variables.

    A process that does not leave is waited for a moment if the gang is ``brisk``; a program of Python is
    forked from a process that has loaded ``library``, or several, between spaces.
    """
    gang = Gang(paths, processes, argv, more, brisk=brisk, library=library)
    try:
        yield gang
    finally:
        gang.close()


@contextmanager
def first_of_nodes(
    paths: RunPaths, nodes: int, processes: int, *argv: str, brisk: bool = False
) -> Iterator[Gang]:
    """Yield the gang of the first of several nodes; the test writes what becomes of the others."""
    point = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"}
    more = {"RUNNER_NODES": str(nodes), "RUNNER_NODE": "0", **point}
    with program(paths, processes, *argv, more=more, brisk=brisk) as gang:
        yield gang


@contextmanager
def training(
    job: JobDir,
    processes: int,
    shards: int | None = 4,
    fate: Fate | None = None,
    *,
    brisk: bool = False,
    **changes: object,
) -> Iterator[Gang]:
    """Yield the next attempt of a training, running."""
    given = changes.pop("parallel", {})
    assert isinstance(given, dict)
    parallel = {"processes": processes, "shards": shards, "timeout_s": patience(), **given}
    plan = changes.pop("workload", {})
    assert isinstance(plan, dict)
    checkpoint = {"every_steps": 5, "keep": 100}
    paths = job.attempt(workload={**PLAN, **plan}, checkpoint=checkpoint, parallel=parallel, **changes)
    numbers = ("--attempt", str(paths.attempt), "--lineage", str(paths.lineage))
    code = ("-m", "jobs") if fate is None else ("-c", DISTURBED, str(fate))
    argv = (sys.executable, "-P", *code, "--root", str(job.root), *numbers)
    library = PARTS if {"sharded", "reduction"} & given.keys() else TRAINER
    with program(paths, processes, *argv, brisk=brisk, library=library) as gang:
        yield gang


def weights(job: JobDir, lineage: int = 1) -> str | None:
    """Return the sha256 of the finished model."""
    found: Manifest = verify(job.lineage(lineage) / "final")
    return found.state_sha256


def state(job: JobDir, lineage: int = 1) -> dict[str, torch.Tensor]:
    """Return the weights of the finished model."""
    found: dict[str, torch.Tensor] = torch.load(
        job.lineage(lineage) / "final" / "weights.pt", weights_only=True
    )
    return found
