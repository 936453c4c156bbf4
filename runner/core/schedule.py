"""When a schedule submits its job again, and when it leaves a time out: a pure function of times.

Where the times come from is somebody else's business: a function that returns the next one after a
moment is handed in.  Times are UTC.  What makes an occasion happen once at most is not here but in
the store: an occasion is named by its schedule and its time.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice
from typing import Final, TypeAlias

ON_TIME: Final = timedelta(minutes=1)
"""An occasion that is noticed so much later still counts as on time: a daemon that was restarted over it."""

MAX_COUNTED: Final = 100
"""Missed occasions are counted so far; a downtime of a year must not cost the loop a second."""

_PRECISION: Final = timedelta(seconds=30)
"""Half of what two times of a cron expression are apart at least."""

NextTime: TypeAlias = Callable[[datetime], datetime | None]
"""Returns the first time after a moment; None: there is none any more."""


class Overlap(StrEnum):
    """What happens when the job of an earlier occasion is not finished."""

    SKIP = "skip"
    QUEUE = "queue"
    REPLACE = "replace"


class Missed(StrEnum):
    """What happens about occasions at which nobody was there."""

    RUN_ONCE = "run_once"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class FiringTerms:
    """What a schedule says besides its times."""

    overlap: Overlap = Overlap.SKIP
    missed: Missed = Missed.SKIP
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class SubmitFiring:
    """An occasion at which a job is to be submitted."""

    at: datetime
    replaces: tuple[str, ...] = ()  # ids of jobs to cancel once the new one is accepted
    why: str = ""


@dataclass(frozen=True, slots=True)
class SkipFiring:
    """An occasion at which nothing is submitted."""

    at: datetime
    why: str


FiringDecision: TypeAlias = SubmitFiring | SkipFiring


def upcoming(since: datetime, terms: FiringTerms, after: NextTime) -> Iterator[datetime]:
    """Yield the times of a schedule after a moment, up to its end."""
    at = after(since)
    while at is not None and (terms.until is None or at <= terms.until):
        yield at
        at = after(at)


def next_firing(
    since: datetime, now: datetime, terms: FiringTerms, after: NextTime, unfinished: Sequence[str]
) -> FiringDecision | None:
    """Return what follows from the times in (``since``, ``now``]; None if there are none.

    However many there are, one job at most follows: of the newest.  ``unfinished`` are the jobs of
    earlier occasions that have not ended.
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
    """Return the last time in (``since``, ``end``], found by halving and not by walking."""
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
    """Return how many times there are in (``since``, ``newest``), ``MAX_COUNTED`` at most."""
    every = upcoming(since, FiringTerms(until=newest - _PRECISION), after)
    return sum(1 for _ in islice(every, MAX_COUNTED))


def _times(count: int) -> str:
    if count >= MAX_COUNTED:
        return f"{MAX_COUNTED} times or more"
    return "1 time" if count == 1 else f"{count} times"


def _jobs(ids: Sequence[str]) -> str:
    return (
        f"job {ids[0]} of an earlier time is"
        if len(ids) == 1
        else f"jobs {', '.join(ids)} of earlier times are"
    )
