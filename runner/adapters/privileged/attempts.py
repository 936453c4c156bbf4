"""Attempts, and commands inside of them, as root starts them for a daemon that it does not trust."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from socket import MSG_DONTWAIT, socket, socketpair
from threading import BoundedSemaphore, Lock, Thread
from typing import Final

from runner.adapters.host.disk_counters import HostDiskCounters
from runner.adapters.privileged.sessions import serve_session
from runner.adapters.privileged.site import PrivilegedSite
from runner.base.errors import Refused
from runner.core.ports.disk import DiskCounters
from runner.core.ports.exec import ExecRequest
from runner.core.ports.executor import (
    Alive,
    Executor,
    ImageGone,
    Key,
    LaunchRequest,
    LaunchResult,
    Observation,
)

MOST_OPEN: Final = 1024
"""Sessions and watches at a time."""


@dataclass(slots=True)
class RootAttempts:
    """Satisfies ``interface.PrivilegedAttempts``."""

    site: PrivilegedSite
    _disk: HostDiskCounters = field(default_factory=HostDiskCounters)
    _alive: Mapping[Key, Alive] = field(default_factory=dict)  # as their disk use was read last
    _free: BoundedSemaphore = field(default_factory=lambda: BoundedSemaphore(MOST_OPEN))
    _loop: asyncio.AbstractEventLoop | None = None
    _lock: Lock = field(default_factory=Lock)

    def use(self, kind: str, instance: str) -> None:
        self.site.choose(kind, instance)

    def plan(self, request: LaunchRequest) -> Mapping[str, object]:
        return self.site.chosen().executor.plan(request)

    def launch(self, request: LaunchRequest) -> LaunchResult:
        chosen = self.site.chosen(use=True)
        self.site.walls.check_launch(request, chosen.kind, chosen.instance, chosen.network)
        if chosen.kind == "docker" and request.image not in self.site.known_images():
            raise ImageGone(request.image)
        return chosen.executor.launch(request)

    def signal(self, key: Key, signal: int) -> None:
        self._of_this_store(key).signal(key, signal)

    def observe(self) -> tuple[Observation, ...]:
        return self.site.chosen().executor.observe()

    def remove(self, key: Key) -> None:
        self._of_this_store(key).remove(key)

    def _of_this_store(self, key: Key) -> Executor:
        chosen = self.site.chosen(use=True)
        chosen.check_instance(key.instance)
        return chosen.executor

    def disk_counters(self, keys: tuple[Key, ...]) -> tuple[tuple[Key, DiskCounters], ...]:
        known = {key: self._alive[key] for key in keys if key in self._alive}
        if len(known) < len(set(keys)):
            observed = self.site.chosen(use=True).executor.observe()
            seen = {each.key: each for each in observed if isinstance(each, Alive)}
            known = {key: seen[key] for key in keys if key in seen}
        self._alive = known
        return tuple(self._disk.counters(known.values()).items())

    def watch(self) -> socket:
        executor = self.site.chosen(use=True).executor
        self._reserve()
        with ExitStack() as unless_watched:
            unless_watched.callback(self._free.release)
            mine, theirs = socketpair()

            def wake() -> None:
                with suppress(OSError):  # it is full, so that somebody will look; or nobody watches any more
                    mine.send(b"\0", MSG_DONTWAIT)

            end = executor.watch(wake)
            unless_watched.pop_all()
        wake()  # now somebody watches
        Thread(target=self._await_close, args=(mine, end), name="helper-watch", daemon=True).start()
        return theirs

    def _await_close(self, connection: socket, end: Callable[[], None]) -> None:
        """Wait until the other end of a watch is closed, and end the watch."""
        try:
            with connection, suppress(OSError):
                connection.recv(1)
            end()
        finally:
            self._free.release()

    def execute(self, key: Key, request: ExecRequest) -> socket:
        chosen = self.site.chosen()
        chosen.check_instance(key.instance)
        self.site.walls.owner(request.owner.uid, request.owner.gid)
        commands = self.site.make_commands(chosen.kind)
        if commands is None:
            raise Refused("this helper runs no commands")
        self._reserve()
        mine, theirs = socketpair()
        session = asyncio.run_coroutine_threadsafe(
            serve_session(mine, commands, key, request), self._event_loop()
        )
        session.add_done_callback(lambda _: self._free.release())
        return theirs

    def _reserve(self) -> None:
        if not self._free.acquire(blocking=False):
            raise Refused(f"{MOST_OPEN} sessions are open")

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop of all sessions: what outlives its session is still looked after."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                Thread(target=self._loop.run_forever, name="helper-sessions", daemon=True).start()
            return self._loop
