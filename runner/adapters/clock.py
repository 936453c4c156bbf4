"""The only place that asks what time it is."""

import time
from datetime import UTC, datetime


class SystemClock:
    """Time of day for people and the store, monotonic seconds for intervals."""

    @staticmethod
    def now() -> datetime:
        return datetime.now(UTC)

    @staticmethod
    def monotonic() -> float:
        return time.monotonic()
