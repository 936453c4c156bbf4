"""Schedules: when a schedule submits its job again, and when it skips a time.

The caller passes a function that returns the next scheduled time.  Times are UTC.  The store ensures that a
time fires at most once: a firing is identified by its schedule and its time.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice
from typing import Final, TypeAlias

from runner.base.readable import readable_count

ON_TIME: Final = timedelta(minutes=1)
"""A firing that is late by less than this is on time, for example after a restart of the daemon."""

MAX_COUNTED: Final = 100
"""The most missed times that are counted, so that a long downtime costs the control loop little."""

_PRECISION: Final = timedelta(seconds=30)
"""Half of the least time between two firings of a cron expression."""

NextTime: TypeAlias = Callable[[datetime], datetime | None]
"""Returns the first scheduled time after a time; None: there is none."""


class Overlap(StrEnum):
    """Treatment of a firing while the job of an earlier firing has not finished."""

    SKIP = "skip"
    QUEUE = "queue"
    REPLACE = "replace"


class Missed(StrEnum):
    """Treatment of times at which the daemon was down."""

    RUN_ONCE = "run_once"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class FiringTerms:
    """The settings of a schedule besides its times."""

    overlap: Overlap = Overlap.SKIP
    missed: Missed = Missed.SKIP
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class SubmitFiring:
    """Submit a job for a time."""

    at: datetime
    replaces: tuple[str, ...] = ()  # ids of jobs to cancel once the new one is accepted
    why: str = ""


@dataclass(frozen=True, slots=True)
class SkipFiring:
    """Submit nothing for a time."""

    at: datetime
    why: str


FiringDecision: TypeAlias = SubmitFiring | SkipFiring


def upcoming(since: datetime, terms: FiringTerms, after: NextTime) -> Iterator[datetime]:
    """Yield the times of a schedule after ``since``, up to its end."""
    at = after(since)
    while at is not None and (terms.until is None or at <= terms.until):
        yield at
        at = after(at)


def next_firing(
    since: datetime, now: datetime, terms: FiringTerms, after: NextTime, unfinished: Sequence[str]
) -> FiringDecision | None:
    """Return the decision about the times in (``since``, ``now``]; None if there are none.

    At most one job is submitted, for the newest time.  ``unfinished`` are the jobs of earlier firings that
    have not ended.
    """
    end = now if terms.until is None else min(now, terms.until)
    newest = _newest(since, end, after)
    if newest is None:
        return None
    missed = _missed(since, newest, after)
    if now - newest > ON_TIME and terms.missed is Missed.SKIP:
        return SkipFiring(newest, f"nobody was there; {_times(missed + 1)} left out")
    if unfinished and terms.overlap is Overlap.SKIP:
        return SkipFiring(newest, f"{_jobs(unfinished)} not finished")
    replaces = tuple(unfinished) if terms.overlap is Overlap.REPLACE else ()
    return SubmitFiring(newest, replaces, f"{_times(missed)} before it left out" if missed else "")


def _newest(since: datetime, end: datetime, after: NextTime) -> datetime | None:
    """Return the last time in (``since``, ``end``] by bisection."""
    newest = after(since)
    if newest is None or newest > end:
        return None
    low, high = newest, end  # a time after ``low`` may be there, none after ``high``
    while high - low > _PRECISION:
        middle = low + (high - low) / 2
        later = after(middle)
        if later is None or later > end:
            high = middle
        else:
            newest = low = later
    return newest


def _missed(since: datetime, newest: datetime, after: NextTime) -> int:
    """Return the number of times in (``since``, ``newest``), at most ``MAX_COUNTED``."""
    every = upcoming(since, FiringTerms(until=newest - _PRECISION), after)
    return sum(1 for _ in islice(every, MAX_COUNTED))


def _times(count: int) -> str:
    if count >= MAX_COUNTED:
        return f"{MAX_COUNTED} times or more"
    return readable_count(count, "time")


def _jobs(ids: Sequence[str]) -> str:
    return (
        f"job {ids[0]} of an earlier time is"
        if len(ids) == 1
        else f"jobs {', '.join(ids)} of earlier times are"
    )
