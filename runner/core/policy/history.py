"""What earlier attempts of a job have used up.  The job keeps it; a decision returns the next one.

Two ledgers are cleared by progress, which the runner sees for itself: a newer valid checkpoint.
How often a rule has answered is counted by root cause, and by effective spec unless the rule itself
changes that; attempts without progress are counted by both.  Whose progress nobody knows about
neither pays nor clears.
"""

import re
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from runner.core.policy.model import Rule

KEPT_STARTS: Final = 100
"""Starts that are remembered; the ceiling of a storm cannot be higher."""


@dataclass(frozen=True, slots=True)
class RuleTally:
    """How often something has happened since the last progress."""

    root: str
    effective: str
    times: int
    rule: str = ""


@dataclass(frozen=True, slots=True)
class History:
    """The attempts of a job that have ended."""

    attempts: int = 0
    charged: int = 0
    setbacks: int = 0  # charged ones since the last progress
    swaps: int = 0  # changes while it ran that nobody had approved
    ran: timedelta = field(default_factory=timedelta)
    starts: tuple[datetime, ...] = ()  # that nobody had asked for
    tried: tuple[RuleTally, ...] = ()
    stuck: tuple[RuleTally, ...] = ()
    had_checkpoint: bool = False
    wanted: bool = False  # a person has asked for the attempt that comes next: its start is part of no storm

    def reset_counters(self) -> "History":
        """Return the history after a person has said: once more.  Only what was seen is kept."""
        seen = History(attempts=self.attempts, starts=self.starts, had_checkpoint=self.had_checkpoint)
        return seen.request_next()

    def request_next(self) -> "History":
        """Return the history of a job whose next attempt begins because a person wants it."""
        return replace(self, wanted=True)

    def reset_tallies(self) -> "History":
        """Return the history after the job's file has changed: another experiment, the same ceilings."""
        return replace(self, setbacks=0, tried=(), stuck=())

    def times_tried(self, rule: Rule, root: str, effective: str) -> int:
        return _times(self.tried, RuleTally(root, _keyed(rule, effective), 0, rule.name))

    def times_stuck(self, root: str, effective: str) -> int:
        return _times(self.stuck, RuleTally(root, effective, 0))

    def add_try(self, rule: Rule, root: str, effective: str) -> "History":
        counted = _counted(self.tried, RuleTally(root, _keyed(rule, effective), 0, rule.name))
        return replace(self, tried=counted)

    def add_attempt(self, started: datetime, uptime: timedelta) -> "History":
        """Return the history with one more attempt in it, before anybody has judged it."""
        starts = self.starts if self.wanted else (*self.starts, started)[-KEPT_STARTS:]
        return replace(self, attempts=self.attempts + 1, ran=self.ran + uptime, starts=starts, wanted=False)

    def charge(self, root: str, effective: str, *, advanced: bool | None) -> "History":
        """Return the history with the attempt that has just ended charged for."""
        stuck = _counted(self.stuck, RuleTally(root, effective, 0)) if advanced is False else self.stuck
        setbacks = 0 if advanced else self.setbacks + 1
        return replace(self, charged=self.charged + 1, setbacks=setbacks, stuck=stuck)


def _keyed(rule: Rule, effective: str) -> str:
    """Return what tries are counted by: a rule that changes the spec would never run out of new ones."""
    return "" if rule.adjust else effective


def _times(tallies: tuple[RuleTally, ...], wanted: RuleTally) -> int:
    return next((tally.times for tally in tallies if _same(tally, wanted)), 0)


def _counted(tallies: tuple[RuleTally, ...], once: RuleTally) -> tuple[RuleTally, ...]:
    others = tuple(tally for tally in tallies if not _same(tally, once))
    return (*others, replace(once, times=_times(tallies, once) + 1))


def _same(one: RuleTally, other: RuleTally) -> bool:
    return replace(one, times=0) == replace(other, times=0)


_SPOKEN: Final = frozenset({"exception", "no_result", "launch_failed"})
"""Causes that mean many things; of the others the word says it all."""


_PATH: Final = re.compile(r"(?:[A-Za-z]:)?[/\\](?:[^\s/\\:'\"]+[/\\])*([^\s/\\:'\"]*)")


_NUMBER: Final = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-fA-F]{12,}\b|[0-9]+(?:\.[0-9]+)?")


_LONGEST: Final = 120


def fingerprint(cause: str, message: str = "") -> str:
    """Return what to count by: the cause, and where that says little its message without what varies."""
    if cause not in _SPOKEN or not message.strip():
        return cause
    first = message.strip().splitlines()[0]
    same = _NUMBER.sub("N", _PATH.sub(r"\1", first))
    return f"{cause}: {' '.join(same.split())}"[:_LONGEST]
