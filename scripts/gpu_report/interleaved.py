"""Several profiles measured in turns (A B C A B C), each in its own process.

A turn is a number of whole steps or evaluations.  While one arm has its turn, the others wait before
their next step.  This module does not import torch; the processes of the arms do.
"""

import multiprocessing
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from jobs.contract import AttemptSpec
from scripts.gpu_report.context import CannotMeasureHere

T = TypeVar("T")

LOG: Final = "log"


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """The work of one turn."""

    what: Literal["steps", "evaluations"]
    count: int


@dataclass(frozen=True, slots=True)
class TurnResult:
    """The time of one turn, until the device was idle."""

    seconds: float
    loss: float | None = None
    """Loss of the last step whose loss was read."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The first message of an arm: compilation and dry run are done."""

    effective: Mapping[str, Any]
    items_per_step: int
    seconds: float


class ArmFailed(Exception):
    """An arm has failed; the message is the last line of its log."""


@dataclass(slots=True)
class Arm:
    """The process of one profile, seen from the parent."""

    name: str
    directory: Path
    process: BaseProcess
    connection: Connection
    rates: list[float] = field(default_factory=list)
    """Items per second of each turn."""
    evaluations_s: list[float] = field(default_factory=list)
    ready: Ready | None = None
    loss: float | None = None
    failure: str = ""

    def turn(self, ask: TurnRequest, limit_s: float) -> TurnResult:
        """Run one turn.

        Raises:
            ArmFailed: the process ended, or the timeout passed.
        """
        try:
            self.connection.send(ask)
        except ConnectionError as error:
            raise ArmFailed(f"{self.name}: {self.last_log_line()}") from error
        if not self.connection.poll(max(limit_s, 0)):
            raise ArmFailed(f"{self.name}: no answer in {limit_s:.0f} s")
        return self._receive(TurnResult)

    def _receive(self, kind: type[T]) -> T:
        try:
            message = self.connection.recv()
        except (EOFError, ConnectionError) as error:
            raise ArmFailed(f"{self.name}: {self.last_log_line()}") from error
        if not isinstance(message, kind):
            raise ArmFailed(f"{self.name}: unexpected message {message!r}")
        return message

    def last_log_line(self) -> str:
        try:
            lines = (self.directory / LOG).read_text(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return lines[-1][:500] if lines else "no output"


@contextmanager
def started(specs: Mapping[str, AttemptSpec], directory: Path, until: float) -> Iterator[list[Arm]]:
    """Start the arms and wait until each is ready or has failed; kill them at the end."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["jobs.training.loop", "scripts.gpu_report.interleaved_worker"])
    arms = [
        _started(processes, name, spec, directory / f"arm-{n}")
        for n, (name, spec) in enumerate(specs.items())
    ]
    try:
        _await_ready(arms, until)
        yield arms
    finally:
        for arm in arms:
            arm.process.kill()
            arm.process.join()
            arm.connection.close()


def _started(processes: ForkServerContext, name: str, spec: AttemptSpec, directory: Path) -> Arm:
    directory.mkdir(parents=True)
    ours, theirs = processes.Pipe()
    process = processes.Process(target=_run_arm, args=(theirs, spec, directory))
    process.start()
    theirs.close()
    return Arm(name, directory, process, ours)


def _await_ready(arms: list[Arm], until: float) -> None:
    """Wait until every arm is ready or has failed, or the time is over."""
    waiting = {arm.connection.fileno(): arm for arm in arms}
    while waiting:
        heard = wait([arm.connection for arm in waiting.values()], timeout=max(until - time.monotonic(), 0))
        if not heard:
            break
        for connection in heard:
            arm = waiting.pop(connection.fileno())  # type: ignore[union-attr]  # connections alone
            try:
                arm.ready = arm._receive(Ready)  # noqa: SLF001 - of this module
            except ArmFailed as error:
                arm.failure = str(error)
    for arm in waiting.values():
        arm.failure = f"{arm.name}: not ready in time"


def _run_arm(connection: Connection, spec: AttemptSpec, directory: Path) -> None:
    """Run one arm, in its process."""
    log = os.open(directory / LOG, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    multiprocessing.set_start_method("fork", force=True)  # loader processes must be children of their trainer
    from scripts.gpu_report.interleaved_worker import train

    try:
        train(connection, spec, directory)
    except (EOFError, ConnectionError):
        return  # the parent is done


def working(arms: list[Arm]) -> list[Arm]:
    """Return the arms that have not failed.

    Raises:
        CannotMeasureHere: all have.
    """
    there = [arm for arm in arms if not arm.failure]
    if not there:
        raise CannotMeasureHere("; ".join(arm.failure for arm in arms)[:2000])
    return there
