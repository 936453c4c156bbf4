"""Trainings in turns: each runs in its own process and is stopped and continued when it requests a batch.

The loop of a framework cannot be stepped from outside, but every loop requests its next batch.  The source
of the batches is therefore the gate: at every n-th batch a training waits there.  A turn is thus n whole
steps of its loop with all work between them, and only one training works at a time.  This module does not
import torch.
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
    """The times of one turn in seconds."""

    seconds: float
    cpu_s: float  # of all threads of the process
    stalled_s: float  # time for which a save blocked the training


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """The result of a finished training."""

    loss: float  # on held-out batches
    weights_sha256: str


@dataclass(frozen=True, slots=True)
class MissingPackage:
    """A training that cannot run because a package is missing."""

    package: str


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings of a training."""

    loop: str  # module:function, of the type ``Training``
    directory: Path
    spec: AttemptSpec
    first: int  # batch at which the first turn begins
    every: int  # steps in a turn


def _nothing() -> None:
    """Do nothing: on a CPU, work is done when its statement returns."""


class StepGate:
    """A gate that lets a training pass in its turn, and reports how long the turn took.

    ``settle`` waits for pending work of a device: a turn ends when its work has ended.
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
    """One of the trainings, seen from the parent process."""

    setup: Setup
    process: BaseProcess
    connection: Connection
    turns: list[Turn] = field(default_factory=list)

    def turn(self) -> float:
        """Run one turn of the training, and return the seconds of one step."""
        self.connection.send(None)
        turn = self.answer()
        if not isinstance(turn, Turn):
            raise CannotMeasure(f"{self.setup.directory.name}: ended before its turns did")
        self.turns.append(turn)
        return turn.seconds / self.setup.every

    def end(self) -> TrainingResult:
        """Run the training to its end, and return its result."""
        self.connection.send(None)
        return cast("TrainingResult", self.answer())

    def answer(self) -> Turn | TrainingResult | MissingPackage | None:
        """Return the next message of the training; None: it is ready for its first turn.

        Raises:
            CannotMeasure: the process has ended, or sends nothing.
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
    """Start the trainings, and yield them ready for their first turn."""
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
    """Run one training to its end, in its own process."""
    log = os.open(setup.directory / LOG, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    run_training(connection, setup)


def run_training(connection: Connection, setup: Setup) -> None:
    """Train, and send the result, or the name of a missing package."""
    module, _, name = setup.loop.partition(":")
    try:
        training: Training = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        connection.send(MissingPackage(str(error.name)))
        return
    connection.send(training(setup, StepGate(connection, setup.first, setup.every)))
