"""Usage of allocations in the store, as the services read and write it."""

from collections.abc import Mapping
from datetime import datetime
from typing import Protocol, TypeAlias

from runner.core.accounting.usage import UsageSpan

BusyTimes: TypeAlias = Mapping[tuple[str, int], tuple[float, float]]
"""By job and attempt: the device-seconds that were measured, and those in which a device was busy."""


class UsageReport(Protocol):
    """What attempts held, and how busy it was."""

    def between(self, since: datetime, until: datetime) -> tuple[UsageSpan, ...]:
        """Return the usage records within a span of time; any thread may call this."""

    def add(self, busy: BusyTimes) -> None:
        """Add busy times; only the thread that writes the store may call this."""
