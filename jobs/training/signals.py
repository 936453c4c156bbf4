"""Requests of other processes to the trainer: a signal sets a flag, and the loop reads it.

A signal handler does nothing else, because its work could run between a backward pass and its
update.  The loop reads the flags between steps, evaluation batches and phases.
"""

import signal
from dataclasses import dataclass
from types import FrameType


@dataclass(slots=True)
class StopRequests:
    """The pending requests to stop or to save."""

    stop: bool = False
    """Finish the step, save, report and exit.  The flag is never cleared; a second request has no effect."""

    save: bool = False
    """Save after the next step and continue."""

    def take_save(self) -> bool:
        """Return True if a save was requested, and clear the request."""
        if not self.save:
            return False
        self.save = False
        return True


def listen() -> StopRequests:
    """Install the handlers and return the flags that they set."""
    requests = StopRequests()

    def stop(_number: int, _frame: FrameType | None) -> None:
        requests.stop = True

    def save(_number: int, _frame: FrameType | None) -> None:
        requests.save = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGUSR1, save)
    return requests
