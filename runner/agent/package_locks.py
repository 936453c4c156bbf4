"""Resolves the packages of submissions apart from the threads that answer requests.

A resolution may take minutes.  Whoever asks for a lock that is not there yet gets ``PackagesPending``, and
asks again.  Equal requests of one user share a resolution, and its result while an index counts as fresh.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Timer
from time import monotonic
from typing import Final

from runner.agent.interface import VerificationQueue
from runner.base.errors import RunnerError, Unavailable
from runner.base.waiting import check_wanted
from runner.core.ports.images import BuildFailed
from runner.core.ports.packages import PackageRequest, Packages, Unresolvable
from runner.core.ports.users import User

FRESH_S: Final = 600.0
"""Time for which a lock answers the same requirements; as long as PyPI lets its answers be kept."""

ERROR_FRESH_S: Final = 10.0
"""Time for which a failure answers them: until everybody who waited has asked again."""

PATIENCE_S: Final = 60.0
"""Time for which a resolution goes on for which nobody asks any more."""

RECHECK_S: Final = 0.5
"""Between two looks at whether the answer is still wanted."""

UNEXPECTED: Final = "the packages could not be resolved, by a mistake of the daemon; its log says more"

KEPT: Final = 256
"""Locks in memory."""


@dataclass(slots=True)
class PendingLock:
    """A resolution, and its result when it is done."""

    job_id: str
    log: Path
    done: Event = field(default_factory=Event)
    text: str = ""
    error: RunnerError | Unresolvable | BuildFailed | None = None
    ended_s: float = 0.0
    waiting: int = 0
    callbacks: list[Callable[[], object]] = field(default_factory=list)

    def result(self) -> str:
        """Return the lock of a resolution that is done.

        Raises:
            Unresolvable: the requirements have no solution.
            BuildFailed: there is no image for the packages.
            Unavailable: the index or the engine does not answer.
        """
        if self.error is not None:
            raise self.error
        return self.text


class PackagesPending(Unavailable):
    """The packages of a submission are being resolved; ask again."""

    def __init__(self, pending: PendingLock) -> None:
        super().__init__("the packages are being resolved; try again in a moment")
        self.pending = pending


class PackageLocks:
    """The resolutions of one daemon."""

    def __init__(self, packages: Packages, queue: VerificationQueue, directory: Path) -> None:
        self._packages = packages
        self._queue = queue
        self._directory = directory  # of the logs
        self._known: dict[tuple[PackageRequest, int], PendingLock] = {}
        self._count = 0
        self._lock = Lock()

    def find(self, request: PackageRequest, who: User) -> str:
        """Return the lock of a request.

        Raises:
            PackagesPending: it is being resolved.
            Unresolvable: the requirements have no solution.
            BuildFailed: there is no image for the packages.
            Unavailable: the index or the engine does not answer.
        """
        pending = self._pending(request, who)
        if not pending.done.is_set():
            raise PackagesPending(pending)
        return pending.result()

    def _pending(self, request: PackageRequest, who: User) -> PendingLock:
        key = (request, who.uid)
        with self._lock:
            known = self._known.get(key)
            if known is not None and not (known.done.is_set() and _is_stale(known)):
                return known
            self._forget_stale()
            self._count += 1
            name = f"packages-{self._count}"
            pending = self._known[key] = PendingLock(name, self._directory / f"{name}.log")
        self._queue.put(who.name, lambda: self._resolve(request, who, pending))
        self.leave(pending, was_waiting=False)  # until somebody waits
        return pending

    def _forget_stale(self) -> None:
        ended = [key for key, known in self._known.items() if known.done.is_set()]
        beyond = ended[: max(0, len(self._known) - KEPT)]
        for key in [key for key in ended if _is_stale(self._known[key])] or beyond:
            del self._known[key]

    def _resolve(self, request: PackageRequest, who: User, pending: PendingLock) -> None:
        pending.error = Unavailable(UNEXPECTED)  # until there is an answer
        try:
            pending.text = self._packages.resolve(request, who, pending.log, pending.job_id)
            pending.error = None
        except (RunnerError, Unresolvable, BuildFailed) as error:
            pending.error = error
        finally:
            pending.log.unlink(missing_ok=True)
            with self._lock:
                pending.ended_s = monotonic()
                pending.done.set()
                callbacks = tuple(pending.callbacks)
            for callback in callbacks:
                callback()

    def join(self, pending: PendingLock, when_done: Callable[[], object]) -> None:
        """Wait for a resolution: ``when_done`` is called on another thread, or at once if it is done."""
        with self._lock:
            pending.waiting += 1
            if not pending.done.is_set():
                pending.callbacks.append(when_done)
                return
        when_done()

    def wait(self, pending: PendingLock) -> None:
        """Wait until a resolution is done; may raise Unavailable."""
        self.join(pending, lambda: None)
        try:
            while not pending.done.wait(RECHECK_S):
                check_wanted()
        finally:
            self.leave(pending)

    def leave(self, pending: PendingLock, *, was_waiting: bool = True) -> None:
        """Wait no longer; a resolution that nobody waits for is broken off after a while."""
        with self._lock:
            pending.waiting -= was_waiting
            if pending.waiting or pending.done.is_set():
                return
        timer = Timer(PATIENCE_S, self._give_up, (pending,))
        timer.daemon = True
        timer.start()

    def _give_up(self, pending: PendingLock) -> None:
        with self._lock:
            if pending.waiting or pending.done.is_set():
                return
        self._packages.leave(pending.job_id)


def _is_stale(pending: PendingLock) -> bool:
    limit_s = FRESH_S if pending.error is None else ERROR_FRESH_S
    return monotonic() - pending.ended_s > limit_s
