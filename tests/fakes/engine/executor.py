"""An executor whose attempts are values: it starts nothing, and ends what it is told to end.

A ``World`` is what outlives a daemon; several executors may look at the same one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from signal import SIGKILL
from threading import Lock
from typing import Final

from runner.adapters.launch import attempt_name, check_request
from runner.base.errors import Unavailable
from runner.core.ports.executor import (
    Alive,
    Created,
    Gone,
    HostFault,
    ImageGone,
    Key,
    LaunchRefused,
    LaunchRequest,
    LaunchResult,
    Observation,
    Waiting,
)


@dataclass(frozen=True)
class Program:
    """Script of a program for the fake: its end, and its reactions to signals."""

    exit_code: int | None = None  # at once; None: it runs until something ends it
    on_signal: Mapping[int, int | None] = field(default_factory=dict)  # exit code; None: ignored


FOREVER: Final = Program()


@dataclass
class World:
    """The attempts of everybody, and what is wrong with the engine at present."""

    attempts: dict[Key, Observation] = field(default_factory=dict)
    running: dict[Key, Program] = field(default_factory=dict)
    programs: dict[tuple[str, ...], Program] = field(default_factory=dict)
    images_gone: set[str] = field(default_factory=set)
    refusals: list[str] = field(default_factory=list)  # one for each launch to come
    refusal: type[LaunchRefused] = LaunchRefused  # of what kind they are
    host_fault: str = ""  # why the host starts no containers
    down: bool = False
    lose_answers: bool = False  # the engine acts, then does not answer
    launches: list[LaunchRequest] = field(default_factory=list)  # that started a program
    signals: list[tuple[Key, int]] = field(default_factory=list)
    watchers: dict[int, Callable[[], None]] = field(default_factory=dict)
    queue: dict[Key, LaunchRequest] = field(default_factory=dict)  # accepted by a batch executor, not begun
    lock: Lock = field(default_factory=Lock)

    def end(self, key: Key, exit_code: int | None, *, oom_seen: bool = False, error: str = "") -> None:
        """End a running attempt, as its program or somebody outside would."""
        with self.lock:
            self.running.pop(key, None)
            self.attempts[key] = Gone(key, exit_code, oom_seen, error)
        self.wake()

    def start(self, request: LaunchRequest) -> None:
        program = self.programs.get(request.argv, FOREVER)
        self.launches.append(request)
        self.running[request.key] = program
        self.attempts[request.key] = Alive(request.key)
        if program.exit_code is not None:
            self.attempts[request.key] = Gone(request.key, program.exit_code)
            del self.running[request.key]

    def begin(self, key: Key, host: str, devices: tuple[str, ...] = ()) -> None:
        """Begin an attempt that waits in the queue of the engine, on a host of the engine's choice."""
        with self.lock:
            self.start(self.queue.pop(key))
            if key in self.running:
                self.attempts[key] = Alive(key, host=host, devices=devices)
        self.wake()

    def wake(self) -> None:
        for wake in tuple(self.watchers.values()):
            wake()


class FakeExecutor:
    """Satisfies ``runner.core.ports.executor.Executor``."""

    kind: Final = "fake"
    in_container: Final = False
    queues: bool = False

    def __init__(self, instance: str, context: World | None = None) -> None:
        self.instance = instance
        self.context = context or World()

    def plan(self, request: LaunchRequest) -> Mapping[str, object]:
        check_request(request)
        devices = {"devices": [device.uuid for device in request.devices]} if request.devices else {}
        return {"name": attempt_name(request.key), "argv": list(request.argv), **devices}

    def launch(self, request: LaunchRequest) -> LaunchResult:
        check_request(request)
        self._answer()
        with self.context.lock:
            if request.image in self.context.images_gone:
                raise ImageGone(request.image)
            if self.context.host_fault:
                raise HostFault(self.context.host_fault)
            if self.context.refusals:
                raise self.context.refusal(self.context.refusals.pop(0))
            if isinstance(self.context.attempts.get(request.key), Created | None):
                self._start(request)
        self.context.wake()
        self._lose()
        return LaunchResult.ACCEPTED if self.queues else LaunchResult.BEGUN

    def _start(self, request: LaunchRequest) -> None:
        self.context.start(request)

    def signal(self, key: Key, signal: int) -> None:
        self._answer()
        self.context.signals.append((key, signal))
        program = self.context.running.get(key)
        if program is None:
            return
        code = 128 + signal if signal == SIGKILL else program.on_signal.get(signal, 128 + signal)
        if code is not None:
            self.context.end(key, code)
        self._lose()

    def observe(self) -> tuple[Observation, ...]:
        self._answer()
        return tuple(
            seen
            for key, seen in sorted(self.context.attempts.items(), key=_by_name)
            if key.instance == self.instance
        )

    def remove(self, key: Key) -> None:
        self._answer()
        if key in self.context.running:
            raise Unavailable(f"{attempt_name(key)}: not removed, it still runs; signal it first")
        self.context.attempts.pop(key, None)
        self._lose()

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        number = len(self.context.watchers)
        self.context.watchers[number] = wake
        return lambda: self.context.watchers.pop(number, None) and None

    def _answer(self) -> None:
        if self.context.down:
            raise Unavailable("the engine does not answer")

    def _lose(self) -> None:
        if self.context.lose_answers:
            raise Unavailable("the engine did not answer in time")


class FakeBatchExecutor(FakeExecutor):
    """An executor with a queue of its own: an attempt that it has accepted waits until the test begins it."""

    queues: bool = True

    def _start(self, request: LaunchRequest) -> None:
        self.context.queue[request.key] = request
        self.context.attempts[request.key] = Waiting(request.key, "Slurm: waits for resources")

    def signal(self, key: Key, signal: int) -> None:
        """End an attempt that waits, whatever the signal: nothing of it has begun."""
        self._answer()
        if self.context.queue.pop(key, None) is None:
            super().signal(key, signal)
            return
        self.context.signals.append((key, signal))
        with self.context.lock:
            self.context.attempts[key] = Gone(key, None, never_started=True)
        self.context.wake()

    def remove(self, key: Key) -> None:
        if key in self.context.queue:
            raise Unavailable(f"{attempt_name(key)}: not removed, it still waits; signal it first")
        super().remove(key)


def _by_name(item: tuple[Key, Observation]) -> str:
    return attempt_name(item[0])
