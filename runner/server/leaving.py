"""The end of a daemon's process, which comes in time whatever a thread still waits for.

What is left undone is done by the next daemon, as after a kill: every record says what it implies.
"""

import faulthandler
import os
import sys
import threading
import time
from dataclasses import dataclass
from typing import Final

import structlog

log = structlog.get_logger()

LINGER_S: Final = 5.0
"""Longest wait of an ending daemon for threads in the middle of their work, such as a launch."""

KILL_AFTER_S: Final = 5.0
"""Wait of a helper for the other part, after the end that was due, before it kills it."""


@dataclass(slots=True)
class StopDeadline:
    """Ends this process with code 1 if it still runs ``within_s`` seconds after it was first asked to stop.

    The stacks of all threads are written to standard error then, without help of the interpreter: it may be
    what hangs.
    """

    within_s: float
    _set: bool = False

    def set(self) -> None:
        """Let the time run from now on, if it does not yet."""
        if not self._set:
            self._set = True
            faulthandler.dump_traceback_later(self.within_s, exit=True, file=2)


def end_threads(code: int) -> None:
    """Return once no thread would keep the process from ending; after ``LINGER_S`` end it with ``code``.

    The interpreter itself waits for such threads as long as they run.
    """
    deadline = time.monotonic() + LINGER_S
    for thread in _lingering():
        thread.join(max(0.0, deadline - time.monotonic()))
    left = _lingering()
    if left:
        log.warning("daemon.threads_left", threads=sorted(each.name for each in left), waited_s=LINGER_S)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _lingering() -> list[threading.Thread]:
    """Return the threads that the interpreter would wait for."""
    mine = (threading.main_thread(), threading.current_thread())
    return [each for each in threading.enumerate() if not each.daemon and each not in mine]
