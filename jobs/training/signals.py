"""What other processes ask of the trainer: a signal sets a flag, and the loop looks at it.

Nothing else happens in a signal handler: work done there could fall between a backward
pass and its update.  The loop looks at the flags between steps, evaluation batches and
phases.
"""

import signal
from dataclasses import dataclass
from types import FrameType


@dataclass(slots=True)
class Requests:
    """What has been asked and not yet been done."""

    stop: bool = False
    """Finish the step, save, report, leave.  Never taken back; asking twice changes nothing."""

    save: bool = False
    """Save at the next step and go on."""

    def take_save(self) -> bool:
        """Return whether a save was asked for, and count it as done."""
        if not self.save:
            return False
        self.save = False
        return True


def listen() -> Requests:
    """Install the handlers and return the flags that they set."""
    requests = Requests()

    def stop(_number: int, _frame: FrameType | None) -> None:
        requests.stop = True

    def save(_number: int, _frame: FrameType | None) -> None:
        requests.save = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGUSR1, save)
    return requests
