"""Trainings in turns: each in a process of its own, stopped and started where it asks for a batch.

The loop of a framework cannot be stepped from outside, but every loop asks for its next batch.
The source of the batches therefore is the gate: at every n-th batch a training waits there, so
that a turn is n whole steps of its loop with all that it does between them, and only one of
the trainings works at a time.  Nothing here imports torch.
"""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final, TypeAlias, cast

from bench.support.result import CannotMeasure
from jobs.contract import AttemptSpec

LIMIT_S: Final = 300.0
"""Longest wait for an answer: the first includes the import of a framework."""

LOG: Final = "log"


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn took, start to end; times in seconds."""

    seconds: float
    cpu_s: float  # of all threads of the process
    stalled_s: float  # that the training stood because of a save


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """A training that came to its end, with what it learnt."""

    loss: float  # on held-out batches
    weights_sha256: str


@dataclass(frozen=True, slots=True)
class MissingPackage:
    """A training that cannot be, for want of a package."""

    package: str


@dataclass(frozen=True, slots=True)
class Setup:
    """What a training is told."""

    loop: str  # module:function, of the type ``Training``
    directory: Path
    spec: AttemptSpec
    first: int  # batch at which the first turn begins
    every: int  # steps in a turn


def _nothing() -> None:
    """Wait for nothing: on a CPU a statement that has returned is done."""


class StepGate:
    """Lets a training pass when it is its turn, and tells how long the turn took.

    ``settle`` waits for what a device has still to do: a turn ends when its work has ended.
    """

    def __init__(self, connection: Connection, first: int, every: int) -> None:
        self.stalled_s = 0.0
        self.settle: Callable[[], None] = _nothing
        self._connection = connection
        self._first, self._every = first, every
        self._began: tuple[float, float, float] | None = None

    def wait_at(self, batch: int) -> None:
        """Wait here if a turn ends with this batch."""
        if batch < self._first or (batch - self._first) % self._every:
            return
        self.settle()
        now = self._now()
        if self._began is None:
            self._connection.send(None)
        else:
            self._connection.send(Turn(*(end - start for end, start in zip(now, self._began, strict=True))))
        self._connection.recv()
        self._began = self._now()

    def _now(self) -> tuple[float, float, float]:
        return time.perf_counter(), time.process_time(), self.stalled_s


Training: TypeAlias = Callable[[Setup, StepGate], TrainingResult]


@dataclass(slots=True)
class TrainingProcess:
    """One of the trainings, seen from outside."""

    setup: Setup
    process: BaseProcess
    connection: Connection
    turns: list[Turn] = field(default_factory=list)

    def turn(self) -> float:
        """Let it have a turn, and return the seconds of one step."""
        self.connection.send(None)
        turn = self.answer()
        if not isinstance(turn, Turn):
            raise CannotMeasure(f"{self.setup.directory.name}: ended before its turns did")
        self.turns.append(turn)
        return turn.seconds / self.setup.every

    def end(self) -> TrainingResult:
        """Let it train to its end."""
        self.connection.send(None)
        return cast("TrainingResult", self.answer())

    def answer(self) -> Turn | TrainingResult | MissingPackage | None:
        """Return what it says next; None: it is ready for its first turn.

        Raises:
            CannotMeasure: it is gone, or says nothing.
        """
        try:
            if self.connection.poll(LIMIT_S):
                return cast("Turn | TrainingResult | MissingPackage | None", self.connection.recv())
        except EOFError as error:
            raise CannotMeasure(f"{self.setup.directory.name}: {self._last_log_line()}") from error
        raise CannotMeasure(f"{self.setup.directory.name}: silent for {LIMIT_S:.0f} s")

    def _last_log_line(self) -> str:
        lines = (self.setup.directory / LOG).read_text(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "ended without a word")


@contextmanager
def start_trainings(trainings: Mapping[str, Setup]) -> Iterator[dict[str, TrainingProcess | MissingPackage]]:
    """Give the trainings, ready for their first turn."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["jobs.training.loop"])  # torch is imported once for all
    work_queue = {name: _start(processes, setup) for name, setup in trainings.items()}
    try:
        yield {name: _await_ready(lane) for name, lane in work_queue.items()}
    finally:
        for lane in work_queue.values():
            lane.process.kill()
            lane.process.join()
            lane.connection.close()


def _start(processes: ForkServerContext, setup: Setup) -> TrainingProcess:
    ours, theirs = processes.Pipe()
    process = processes.Process(target=_run_with_log, args=(theirs, setup))
    process.start()
    theirs.close()
    return TrainingProcess(setup, process, ours)


def _await_ready(lane: TrainingProcess) -> TrainingProcess | MissingPackage:
    said = lane.answer()
    return said if isinstance(said, MissingPackage) else lane


def _run_with_log(connection: Connection, setup: Setup) -> None:
    """Carry one training to its end, in a process of its own."""
    log = os.open(setup.directory / LOG, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    run_training(connection, setup)


def run_training(connection: Connection, setup: Setup) -> None:
    """Train, and tell how it ended, or what is missing for it."""
    module, _, name = setup.loop.partition(":")
    try:
        training: Training = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        connection.send(MissingPackage(str(error.name)))
        return
    connection.send(training(setup, StepGate(connection, setup.first, setup.every)))
