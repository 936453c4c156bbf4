"""The times of a cron expression on the clock of a time zone, in UTC.

``cronsim`` (PyPI) reckons as Debian's cron does.  On the day when clocks go forward, a time that is
skipped happens at the first moment after the gap; on the day when they go back, a time that comes
twice happens the first time.  Expressions whose minute or hour begins with ``*`` mean the clock as
it goes: they happen in both hours, and not in the one that is left out.  Where clocks change by half
an hour (Lord Howe Island and nowhere else) it can lose a time of such an expression on that day.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from runner.base.textfile import quoted

NAMED: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
_FIELDS: Final = ("minute", "hour", "day", "month", "weekday")


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression that has been found to be right, on the clock of a zone."""

    expression: str
    zone: ZoneInfo

    def after(self, moment: datetime) -> datetime | None:
        """Return the first time after a moment; None: there is none in the next 50 years."""
        for at in CronSim(self.expression, moment.astimezone(self.zone)):
            if (found := at.astimezone(UTC)) > moment:  # in an hour that comes twice it looks back
                return found
        return None

    def local(self, moment: datetime) -> datetime:
        """Return a moment as the zone's clock shows it."""
        return moment.astimezone(self.zone)


@cache
def parse_cron(expression: str, timezone: str) -> Cron:
    """Return the times of an expression.

    Raises:
        ValueError: the zone is unknown, the expression means nothing, or it never happens.
    """
    zone = find_timezone(timezone)
    plain = NAMED.get(expression, expression)
    if (fact := _problem(plain)) is not None:
        raise ValueError(fact)
    return Cron(plain, zone)


def find_timezone(name: str) -> ZoneInfo:
    """Return a time zone.

    Raises:
        ValueError: there is none of this name.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        fact = f"there is no time zone {quoted(name)}; for example Europe/Berlin or UTC"
        raise ValueError(fact) from error


def _problem(expression: str) -> str | None:
    """Return what is wrong with an expression."""
    parts = expression.split()
    for i, (part, name) in enumerate(zip(parts, _FIELDS, strict=True)):
        alone = " ".join(part if j == i else "*" for j in range(5))
        if not _means_something(alone):
            return f"{quoted(part)} is not a valid {name} in a cron expression"
    if not _happens(expression):
        return f"{quoted(expression)} never occurs: the months have no such day"
    return None


def _means_something(expression: str) -> bool:
    try:
        CronSim(expression, datetime(2024, 1, 1))  # noqa: DTZ001  a wall clock's time
    except CronSimError:
        return False
    return True


def _happens(expression: str) -> bool:
    try:
        return next(CronSim(expression, datetime(2024, 1, 1)), None) is not None  # noqa: DTZ001
    except CronSimError:
        return False
