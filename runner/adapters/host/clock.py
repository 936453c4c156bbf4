"""The only module that reads the time and the boot id of the host."""

import time
from datetime import UTC, datetime
from pathlib import Path


class SystemClock:
    """Satisfies ``runner.core.ports.clock.Clock``."""

    @staticmethod
    def now() -> datetime:
        return datetime.now(UTC)

    @staticmethod
    def monotonic() -> float:
        return time.monotonic()


def boot_id() -> str:
    """Return the kernel's id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
