"""One moment by both clocks."""

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Instant:
    """One moment by both clocks: the time of day, which may be set, and the monotonic one."""

    at: datetime
    monotonic: float

    def later(self, monotonic: float) -> datetime:
        """Return the time of day at ``monotonic``, as if the clock had not been set since this moment."""
        return self.at + timedelta(seconds=monotonic - self.monotonic)
