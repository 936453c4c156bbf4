"""The times of a cron expression in a time zone, in UTC.

``cronsim`` (PyPI) behaves like Debian's cron. When clocks go forward, a skipped time occurs at the first
moment after the gap; when they go back, a repeated time occurs once, the first time. An expression whose
minute or hour begins with ``*`` follows the clock: it occurs in both repeated hours, and not in the skipped
one. In the one zone that shifts by half an hour (Lord Howe Island), such an expression can lose a time on
that day.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
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
MAX_CHARACTERS: Final = 500
"""The limit of an expression; a list of all 60 minutes has 169 characters."""

_SIZES: Final = {"minute": 60, "hour": 24, "day": 31, "month": 12, "weekday": 7}
"""The fields of an expression, each with the number of its values."""

_LONG_NUMBER: Final = re.compile(r"[0-9]{4}")
_STEP: Final = re.compile(r"/([0-9]+)")


@dataclass(frozen=True, slots=True)
class Cron:
    """A valid cron expression in a time zone."""

    expression: str
    zone: ZoneInfo

    def after(self, moment: datetime) -> datetime | None:
        """Return the first time after a moment, None if there is none in the next 50 years."""
        for at in CronSim(self.expression, moment.astimezone(self.zone)):
            if (found := at.astimezone(UTC)) > moment:  # in a repeated hour CronSim can go back
                return found
        return None

    def local(self, moment: datetime) -> datetime:
        """Return a moment in the time zone."""
        return moment.astimezone(self.zone)


@lru_cache(maxsize=1024)
def parse_cron(expression: str, timezone: str) -> Cron:
    """Return the times of an expression.

    Raises:
        ValueError: the zone is unknown, or the expression is not valid or never occurs.
    """
    zone = find_timezone(timezone)
    plain = NAMED.get(expression, expression)
    if (fact := _problem(plain)) is not None:
        raise ValueError(fact)
    return Cron(plain, zone)


def find_timezone(name: str) -> ZoneInfo:
    """Return a time zone; may raise ValueError."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        fact = f"there is no time zone {quoted(name)}; for example Europe/Berlin or UTC"
        raise ValueError(fact) from error


def _problem(expression: str) -> str | None:
    """Return the problem of an expression, or None."""
    if len(expression) > MAX_CHARACTERS:
        return f"has {len(expression)} characters, and the limit is {MAX_CHARACTERS}"
    parts = expression.split()
    for i, (part, (name, size)) in enumerate(zip(parts, _SIZES.items(), strict=True)):
        alone = " ".join(part if j == i else "*" for j in range(5))
        if _LONG_NUMBER.search(part) or not _means_something(alone):
            return f"{quoted(part)} is not a valid {name} in a cron expression"
        if any(int(step) > size for step in _STEP.findall(part)):
            return (
                f"{quoted(part)} is not a valid {name} in a cron expression: its step is larger than {size}"
            )
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
