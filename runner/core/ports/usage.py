"""Usage of allocations in the store, as the services read and write it."""

from collections.abc import Mapping
from datetime import datetime
from typing import Protocol, TypeAlias

from runner.core.accounting.usage import UsageSpan, Used

BusyTimes: TypeAlias = Mapping[tuple[str, int], tuple[float, float]]
"""By job and attempt: the device-seconds that were measured, and those in which a device was busy."""


class UsageReport(Protocol):
    """Use of devices by attempts, and the busy part of it; any thread may read."""

    def used(self, since: datetime, until: datetime) -> Used:
        """Return the usage by user and team from a time on (see ``begin_of_period``) until now."""

    def used_by_job(self, since: datetime, until: datetime, most: int) -> tuple[Used, int]:
        """Return the usage of the jobs that held the most, and how many jobs held anything."""

    def of_job(self, job_id: str) -> tuple[UsageSpan, ...]:
        """Return the allocations of the attempts of a job."""

    def sum_up(self, now: datetime) -> None:
        """Add what attempts used that ended some time ago to the sums; only the writer of the store may."""

    def add(self, busy: BusyTimes) -> None:
        """Add busy times; only the thread that writes the store may call this."""
