"""Attempts on this machine or in a batch system, wherever they start first.

An attempt whose job allows both starts on this machine if there is room now.  Otherwise it goes to the batch
system, unless this machine is expected to have room before that: by the time limits of what runs here, and
by the batch system's own estimate.  Then the launch is put off and tried again.  Once an attempt has a place,
it stays there: the choice is written down before the launch.
"""

import json
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from threading import Lock
from typing import Final, Literal, Protocol, TypeAlias

from runner.adapters.host.clock import SystemClock
from runner.adapters.launch import attempt_name
from runner.base.durable import publish
from runner.base.errors import Unavailable
from runner.base.readable import readable_size
from runner.core.ports.exec import ExecPort, ExecProcess, ExecRequest
from runner.core.ports.executor import (
    Alive,
    BatchRequest,
    Executor,
    Key,
    LaunchRequest,
    LaunchResult,
    Observation,
    Waiting,
)

Place: TypeAlias = Literal["local", "slurm"]

ESTIMATE_S: Final = 30.0
"""Time for which an estimate of the batch system is used for the same attempt."""


class BatchExecutor(Executor, Protocol):
    """An executor with a queue of its own, which estimates when an attempt would begin there."""

    def expected_start(self, request: LaunchRequest) -> datetime | None:
        """Return the time at which an attempt would begin; None if nobody knows."""


LAUNCH_S: Final = 300.0
"""Longest launch on this machine until the attempt is seen."""


@dataclass(frozen=True, slots=True)
class Room:
    """Resources that attempts on this machine may use together."""

    cpus: float
    memory_bytes: int

    def fits(self, cpus: float, memory_bytes: int) -> bool:
        return cpus <= self.cpus and memory_bytes <= self.memory_bytes

    def less(self, used: "Taken") -> "Room":
        return Room(self.cpus - used.cpus, self.memory_bytes - used.memory_bytes)

    def __str__(self) -> str:
        return f"{self.cpus:g} CPUs and {readable_size(max(self.memory_bytes, 0))} are free"


@dataclass(frozen=True, slots=True)
class Taken:
    """Resources that one attempt uses on this machine, and until when at the latest; None: unknown."""

    cpus: float
    memory_bytes: int
    until_s: float | None  # Unix time


@dataclass(frozen=True, slots=True)
class Choices:
    """Places of attempts, each in a file."""

    directory: Path

    def of(self, key: Key) -> Place | None:
        known = self._read(self._path(key))
        return None if known is None else known[0]

    def set(self, key: Key, place: Place, taken: Taken) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        said = [place, taken.cpus, taken.memory_bytes, taken.until_s]
        publish(self._path(key), json.dumps(said).encode())

    def forget(self, key: Key) -> None:
        self._path(key).unlink(missing_ok=True)

    def taken_here(self) -> Iterator[Taken]:
        """Yield the resources that attempts use on this machine."""
        return (taken for _, taken in self._here())

    def forget_others(self, keys: Iterable[Key]) -> None:
        """Forget attempts on this machine that are not there, and were not placed a moment ago."""
        names = {self._path(key).name for key in keys}
        for path, _ in list(self._here()):
            with suppress(OSError):
                if path.name not in names and time.time() - path.stat().st_mtime > LAUNCH_S:
                    path.unlink()

    def _here(self) -> Iterator[tuple[Path, Taken]]:
        for path in sorted(self.directory.glob("*.json")):
            known = self._read(path)
            if known is not None and known[0] == "local":
                yield path, known[1]

    def _path(self, key: Key) -> Path:
        return self.directory / f"{attempt_name(key)}.json"

    @staticmethod
    def _read(path: Path) -> tuple[Place, Taken] | None:
        with suppress(OSError, ValueError):
            place, cpus, memory_bytes, until_s = json.loads(path.read_text())
            return "local" if place == "local" else "slurm", Taken(cpus, memory_bytes, until_s)
        return None


@dataclass(eq=False, slots=True)
class EitherExecutor:
    """Satisfies ``runner.core.ports.executor.Executor``."""

    local: Executor
    batch: BatchExecutor
    room: Room
    choices: Choices
    mounts_here: bool = True
    """True if attempts with mounts may run on this machine."""
    _estimates: dict[Key, tuple[float, datetime | None]] = field(default_factory=dict)
    _clock: SystemClock = field(default_factory=SystemClock)
    _choosing: Lock = field(default_factory=Lock)

    @property
    def kind(self) -> str:
        return self.batch.kind

    @property
    def in_container(self) -> bool:
        return self.batch.in_container

    @property
    def queues(self) -> bool:
        return True

    def launch(self, request: LaunchRequest) -> LaunchResult:
        """Start the attempt here, or hand it to the batch system.

        Raises:
            Unavailable: this machine is expected to have room before the batch system; try again.
        """
        with self._choosing:  # what one launch takes, the next one must see
            place = self.choices.of(request.key)
            if place is None:
                place = self._choose(request)
                self.choices.set(request.key, place, self._taken(request))
        if place == "slurm":
            return self.batch.launch(request)
        may_have_begun = False
        try:
            self.local.launch(request)
            may_have_begun = True
        except Unavailable:
            may_have_begun = True
            raise
        finally:
            if not may_have_begun:  # it holds nothing here
                self.choices.forget(request.key)
        return LaunchResult.ACCEPTED  # seen alive, it is recorded with its host

    def _choose(self, request: LaunchRequest) -> Place:
        places = _places(request)
        if "local" not in places or not self._runs_here(request):
            return "slurm"
        free = self._free()
        if free.fits(request.limits.cpus, request.limits.memory_bytes):
            return "local"
        wait = f"waits for room on this machine, where {free}"
        if "slurm" not in places:
            raise Unavailable(wait)
        here, there = self._room_at(request), self._expected_start(request)
        if here is None or there is None or there <= here:
            return "slurm"
        raise Unavailable(f"{wait}: by {here:%H:%M} UTC at the latest, and in Slurm by {there:%H:%M} UTC")

    def _runs_here(self, request: LaunchRequest) -> bool:
        asked = request.batch or BatchRequest(request.limits)
        fits = self.room.fits(request.limits.cpus, request.limits.memory_bytes)
        return fits and asked.nodes == 1 and not asked.gpus.count and (self.mounts_here or not request.mounts)

    def _free(self) -> Room:
        free = self.room
        for taken in self.choices.taken_here():
            free = free.less(taken)
        return free

    def _room_at(self, request: LaunchRequest) -> datetime | None:
        """Return the latest time for room on this machine for an attempt; None if nobody knows."""
        free, limits = self._free(), request.limits
        known = [taken for taken in self.choices.taken_here() if taken.until_s is not None]
        for taken in sorted(known, key=lambda each: each.until_s or 0):
            free = Room(free.cpus + taken.cpus, free.memory_bytes + taken.memory_bytes)
            if free.fits(limits.cpus, limits.memory_bytes):
                return datetime.fromtimestamp(taken.until_s or 0, self._clock.now().tzinfo)
        return None

    def _expected_start(self, request: LaunchRequest) -> datetime | None:
        asked_s, found = self._estimates.get(request.key, (float("-inf"), None))
        if time.monotonic() - asked_s > ESTIMATE_S:
            found = self.batch.expected_start(request)
            self._estimates[request.key] = time.monotonic(), found
        return found

    def _taken(self, request: LaunchRequest) -> Taken:
        left = None if request.batch is None else request.batch.time_left
        grace = timedelta() if request.batch is None else request.batch.grace
        until = None if left is None else (self._clock.now() + left + grace).timestamp()
        return Taken(request.limits.cpus, request.limits.memory_bytes, until)

    def signal(self, key: Key, signal: int) -> None:
        self._of(key).signal(key, signal)

    def observe(self) -> tuple[Observation, ...]:
        """Return the attempts of both; those here have this machine as their host."""
        name, seen = os.uname().nodename, self.local.observe()
        self.choices.forget_others(each.key for each in seen)
        here = tuple(replace(each, host=name) if isinstance(each, Alive) else each for each in seen)
        there = self.batch.observe()
        if any(isinstance(each, Waiting) for each in there):
            free = self._free()
            there = tuple(
                replace(each, why=f"{each.why}; on this machine {free}")
                if isinstance(each, Waiting) and free != self.room
                else each
                for each in there
            )
        return (*here, *there)

    def remove(self, key: Key) -> None:
        self._of(key).remove(key)
        self._estimates.pop(key, None)
        self.choices.forget(key)

    def plan(self, request: LaunchRequest) -> Mapping[str, object]:
        """Return the request to the place that an attempt may have first."""
        here = "local" in _places(request) and self._runs_here(request)
        return self.local.plan(request) if here else self.batch.plan(request)

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        ends = [self.local.watch(wake), self.batch.watch(wake)]

        def end() -> None:
            for each in ends:
                each()

        return end

    def _of(self, key: Key) -> Executor:
        return self.local if self.choices.of(key) == "local" else self.batch


@dataclass(frozen=True, slots=True)
class EitherExec:
    """Satisfies ``runner.core.ports.exec.ExecPort``."""

    local: ExecPort
    batch: ExecPort
    choices: Choices

    async def start(
        self, key: Key, request: ExecRequest, recorded: Awaitable[None] | None = None
    ) -> ExecProcess:
        chosen = self.local if self.choices.of(key) == "local" else self.batch
        return await chosen.start(key, request, recorded)


def _places(request: LaunchRequest) -> tuple[str, ...]:
    return ("slurm",) if request.batch is None else request.batch.places
