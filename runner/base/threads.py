"""The outermost frames of threads: the only places where a broad ``except`` stands.

A thread that dies of an unexpected error takes its part of the daemon with it, unnoticed.  Libraries also
raise what is no ``Exception``, such as a panic of native code; only the main thread lets that pass.
So work that repeats runs in a ``PeriodicThread``, and a single piece of work runs in ``run_guarded`` or,
where a caller waits for its answer, in ``run_to_future``.  What the work is, and which errors it expects, is
left to it.
"""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Event, Thread, current_thread, main_thread
from typing import Final, TypeVar

import structlog

T = TypeVar("T")

log = structlog.get_logger()

PAUSE_AFTER_FAILURE_S: Final = 1.0
"""Added to the period after a failed round, so that a thread whose period is 0 does not fill the log."""


class PeriodicThread:
    """A daemon thread that does a round of work, waits for a period or a wake-up, and does the next round.

    A round that raises is logged as ``thread.failed``, and the next round runs.
    """

    def __init__(  # noqa: PLR0913  (one loop's knobs; all but the first three have a usual value)
        self,
        name: str,
        period_s: float | Callable[[], float],
        work: Callable[[], object],
        *,
        begin_at_once: bool = False,
        settle: Callable[[], object] = lambda: None,
        retry_s: Callable[[int], float] = lambda _failures: PAUSE_AFTER_FAILURE_S,
    ) -> None:
        """Make a thread that is not started yet.

        Args:
            name: of the thread, for the log and for debuggers.
            period_s: the wait between two rounds; a function is asked before each wait.
            work: one round.
            begin_at_once: the first round does not wait for a period.
            settle: called when a wait ends.  Wake-ups that arrive during it are served by the same round.
            retry_s: returns how much longer to wait after so many failed rounds in a row, whoever wakes.
        """
        self._period_s = period_s
        self._work = work
        self._begin_at_once = begin_at_once
        self._settle = settle
        self._retry_s = retry_s
        self._failures = 0  # in a row
        self._stopped = Event()
        self._woken = Event()
        self._thread = Thread(target=self.run, name=name, daemon=True)

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """End the present wait; a wake-up during a round makes another round follow at once."""
        self._woken.set()

    def stop(self) -> None:
        """Begin no further round, and end every wait; the present round goes on."""
        self._stopped.set()
        self._woken.set()

    def join(self, timeout_s: float | None) -> None:
        """Wait until the thread has ended; not at all if it was never started, or is the caller's own."""
        if self._thread.is_alive() and self._thread is not current_thread():
            self._thread.join(timeout_s)

    def pause(self, seconds: float) -> bool:
        """Wait inside a round, and return whether the thread was stopped, which ends the wait."""
        return self._stopped.wait(seconds)

    def run(self) -> None:
        """Do rounds until ``stop`` is called; this is what the thread runs."""
        wait = not self._begin_at_once
        while not self.stopped:
            try:
                self._round(wait=wait)
                self._failures = 0
            except BaseException as error:  # the outermost frame of every periodic thread
                if not isinstance(error, Exception) and current_thread() is main_thread():
                    raise  # a test runs it itself
                self._failures += 1
                log.exception("thread.failed", thread=self._thread.name, failures=self._failures)
                self.pause(self._retry_s(self._failures))
            wait = True

    def _round(self, *, wait: bool) -> None:
        if wait:
            self._woken.wait(self._period_s() if callable(self._period_s) else self._period_s)
        self._settle()
        self._woken.clear()
        if not self.stopped:
            self._work()


def run_guarded(
    name: str, work: Callable[[], T], failed: Callable[[BaseException], object] | None = None, **bound: object
) -> T | None:
    """Return the result of one piece of work, None if it raises.

    An error is logged as ``work.failed`` with ``name`` and the ``bound`` fields, then given to ``failed``.
    """
    try:
        return work()
    except BaseException as error:  # the outermost frame of a single piece of work
        if not isinstance(error, Exception) and current_thread() is main_thread():
            raise  # somebody ends the program
        log.exception("work.failed", work=name, **bound)
        if failed is not None:
            failed(error)
        return None


def run_to_future(future: Future[T], work: Callable[[], T]) -> None:
    """Do work that another thread waits for: what it returns or raises is the result of ``future``.

    Work whose future was cancelled, because nobody waits any more, is not done.
    """
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001  the outermost frame of a call; its caller handles the error
        future.set_exception(error)
