"""Checkpoints as requests see them: verified by the threads of the verification queue, never by their own.

A request takes the result of an earlier verification, or starts one and waits a moment for it.  A job that
saves often always has a checkpoint that is newer than the last verification.  So newer ones are left out once
a verification has ended for which the caller waited, or for a while if the caller does not wait.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from threading import Lock
from typing import Final, TypeVar

from jobs.contract import RunPaths
from runner.agent.attempts.checkpoints import read_saved
from runner.agent.ports import RunDirectory, VerificationQueue
from runner.base.errors import Unavailable
from runner.base.readable import readable_duration
from runner.base.threads import run_to_future
from runner.base.waiting import check_wanted
from runner.core.ports.checkpoints import SavedCheckpoints, Verification
from runner.core.ports.store import JobRow

T = TypeVar("T")

WAIT_S: Final = 20.0
"""Longest wait of a request for a verification."""

FRESH_S: Final = 60.0
"""How long a result counts although newer checkpoints exist, for a caller that does not wait."""

POLL_S: Final = 0.2
"""Between two looks whether the answer is still wanted."""


@dataclass(slots=True)
class CheckpointVerifications:
    """The verifications that requests have started."""

    queue: VerificationQueue
    monotonic: Callable[[], float] = time.monotonic
    _running: dict[Path, Future[SavedCheckpoints]] = field(default_factory=dict)  # by lineage
    _ended_s: dict[Path, float] = field(default_factory=dict)  # by lineage
    _lock: Lock = field(default_factory=Lock)

    def saved(
        self, row: JobRow, directory: RunDirectory, paths: RunPaths, wait_s: float = WAIT_S
    ) -> SavedCheckpoints:
        """Return the verified checkpoints of a lineage of a job; may raise Unavailable."""
        found = read_saved(directory, paths, row, Verification.KNOWN)
        if not found.pending or (not wait_s and self._is_fresh(paths.lineage_dir)):
            return found
        running = self._start(row, directory, paths)
        if not await_result(running, wait_s):
            fact = f"its checkpoints are being verified, and not done in {readable_duration(wait_s)}"
            raise Unavailable(f"job {row.job.id}: {fact}; try again in a moment")
        running.result()
        return read_saved(directory, paths, row, Verification.KNOWN)

    def run_in_turn(self, row: JobRow, work: Callable[[], T]) -> T:
        """Return the result of work, which is done on a thread of the verification queue.

        Raises:
            Unavailable: nobody waits for the answer any more.
        """
        future: Future[T] = Future()
        in_context = partial(copy_context().run, work)
        self.queue.put(row.owner.name, partial(run_to_future, future, in_context))
        try:
            await_result(future, inf)
        finally:
            future.cancel()
        return future.result()

    def _is_fresh(self, lineage: Path) -> bool:
        return self.monotonic() - self._ended_s.get(lineage, -FRESH_S) < FRESH_S

    def _start(self, row: JobRow, directory: RunDirectory, paths: RunPaths) -> Future[SavedCheckpoints]:
        """Return the verification of a lineage that runs, or a new one."""
        with self._lock:
            running = self._running.get(paths.lineage_dir)
            if running is not None:
                return running
            running = self._running[paths.lineage_dir] = Future()

        def verify() -> None:
            run_to_future(running, partial(read_saved, directory, paths, row, Verification.CONTENT))
            with self._lock:
                now = self.monotonic()
                del self._running[paths.lineage_dir]
                self._ended_s = {each: at for each, at in self._ended_s.items() if now - at < FRESH_S}
                self._ended_s[paths.lineage_dir] = now

        self.queue.put(row.owner.name, verify)
        return running


def await_result(future: Future[T], wait_s: float) -> bool:
    """Wait for a result, and return whether it is there; only for as long as the answer is wanted."""
    deadline = time.monotonic() + wait_s
    while not wait([future], POLL_S).done:
        check_wanted()
        if time.monotonic() > deadline:
            return False
    return True
