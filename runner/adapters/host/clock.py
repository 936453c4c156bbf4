"""The only module that reads the time and the boot id of the host."""

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

LONGEST_TICK: Final = timedelta(milliseconds=10)
"""Linux stamps a file with the time of the last timer tick, up to this long ago (CONFIG_HZ >= 100)."""

LAST_S: Final = datetime(9999, 12, 31, tzinfo=UTC).timestamp()


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


def written_at(found: os.stat_result) -> datetime:
    """Return the latest time of a file's last write: never before a time that was read before the write.

    An attempt that ends because it was asked to must not look as if it had ended before it was asked.
    """
    return from_unix(found.st_mtime) + LONGEST_TICK


def from_unix(at_s: float) -> datetime:
    """Return the moment of a file's time; whoever owns a file may have set one that no calendar has."""
    return datetime.fromtimestamp(min(max(at_s, 0.0), LAST_S), UTC)
