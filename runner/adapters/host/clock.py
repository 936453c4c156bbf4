"""The only place that asks what time it is, and which boot this is."""

import time
from datetime import UTC, datetime
from pathlib import Path


class SystemClock:
    """Time of day for people and the store, monotonic seconds for intervals."""

    @staticmethod
    def now() -> datetime:
        return datetime.now(UTC)

    @staticmethod
    def monotonic() -> float:
        return time.monotonic()


def boot_id() -> str:
    """Return the kernel's name for this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
