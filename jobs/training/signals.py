"""Requests of other processes to the trainer: a signal sets a flag, and the loop reads it.

Nothing else happens in a signal handler: work done there could fall between a backward
pass and its update.  The loop reads the flags between steps, evaluation batches and
phases.
"""

import signal
from dataclasses import dataclass
from types import FrameType


@dataclass(slots=True)
class StopRequests:
    """The requests to stop or to save that are still open."""

    stop: bool = False
    """Finish the step, save, report and exit.  It is never withdrawn; a second request changes nothing."""

    save: bool = False
    """Save after the next step and continue."""

    def take_save(self) -> bool:
        """Return whether a save was asked for, and count it as done."""
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
