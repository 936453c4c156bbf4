"""Log lines at the ends of epochs, for a training whose length is given in epochs."""

import time
from collections.abc import Callable

from jobs.training.report import say


class EpochLog:
    """Measures the epochs that an attempt trains from their first step to their last."""

    def __init__(
        self,
        epochs: float | None,
        steps_per_epoch: int,
        step: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._epochs = epochs
        self._length = steps_per_epoch
        self._clock = clock
        self._began = clock() if step % steps_per_epoch == 0 else None

    def stepped(self, step: int) -> None:
        """Say that an epoch has ended, with its time if all of it was trained in this attempt."""
        if self._epochs is None or step % self._length:
            return
        now = self._clock()
        took = "" if self._began is None else f" took {now - self._began:.1f} s"
        say(f"epoch {step // self._length} of {self._epochs:g} ({self._length} steps){took or ' ended'}")
        self._began = now
