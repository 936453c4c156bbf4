"""The history of a job: what its earlier attempts have used up.  A decision returns the next history.

Two tallies are reset by progress, which is a newer valid checkpoint that the runner has verified; not that of
a rule that restarts from scratch.  The decisions of a rule are counted by failure, and by effective spec
unless the rule changes the spec.  Attempts without progress are counted by both.  If progress is unknown,
nothing is counted or reset.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from runner.core.policy.model import Rule

KEPT_STARTS: Final = 100
"""Starts that are remembered; the restart rate cannot be higher."""


@dataclass(frozen=True, slots=True)
class RuleTally:
    """Number of times that something has happened since the last progress."""

    root: str
    effective: str
    times: int
    rule: str = ""


@dataclass(frozen=True, slots=True)
class History:
    """The ended attempts of a job."""

    attempts: int = 0
    charged: int = 0
    setbacks: int = 0  # charged attempts since the last progress
    swaps: int = 0  # changes of a running attempt without approval
    ran: timedelta = field(default_factory=timedelta)
    starts: tuple[datetime, ...] = ()  # automatic ones only
    tried: tuple[RuleTally, ...] = ()
    stuck: tuple[RuleTally, ...] = ()
    had_checkpoint: bool = False
    wanted: bool = False  # a user requested the next attempt: its start does not count

    def reset_counters(self) -> "History":
        """Return the history after a user has let a job go on: the counters begin anew."""
        seen = History(attempts=self.attempts, starts=self.starts, had_checkpoint=self.had_checkpoint)
        return seen.request_next()

    def request_next(self) -> "History":
        """Return the history of a job whose next attempt a user has requested."""
        return replace(self, wanted=True)

    def reset_tallies(self, restarting: Collection[str] = ()) -> "History":
        """Return the history after progress or a new revision: tallies begin anew, ceilings stay.

        After progress, those of ``restarting`` stay, the rules that begin again at step 0: each new lineage
        makes the progress that the one before had made.
        """
        tried = tuple(tally for tally in self.tried if tally.rule in restarting)
        return replace(self, setbacks=0, tried=tried, stuck=())

    def times_tried(self, rule: Rule, root: str, effective: str) -> int:
        return _times(self.tried, RuleTally(root, _keyed(rule, effective), 0, rule.name))

    def times_stuck(self, root: str, effective: str) -> int:
        return _times(self.stuck, RuleTally(root, effective, 0))

    def add_try(self, rule: Rule, root: str, effective: str) -> "History":
        counted = _counted(self.tried, RuleTally(root, _keyed(rule, effective), 0, rule.name))
        return replace(self, tried=counted)

    def add_attempt(self, started: datetime, uptime: timedelta) -> "History":
        """Return the history with one more ended attempt, not charged yet."""
        starts = self.starts if self.wanted else (*self.starts, started)[-KEPT_STARTS:]
        return replace(self, attempts=self.attempts + 1, ran=self.ran + uptime, starts=starts, wanted=False)

    def charge(self, root: str, effective: str, *, advanced: bool | None) -> "History":
        """Return the history with the last attempt charged."""
        stuck = _counted(self.stuck, RuleTally(root, effective, 0)) if advanced is False else self.stuck
        setbacks = 0 if advanced else self.setbacks + 1
        return replace(self, charged=self.charged + 1, setbacks=setbacks, stuck=stuck)


def _keyed(rule: Rule, effective: str) -> str:
    """Return the spec that tries are counted by; a rule that changes the spec is counted over all specs."""
    return "" if rule.adjust else effective


def _times(tallies: tuple[RuleTally, ...], wanted: RuleTally) -> int:
    return next((tally.times for tally in tallies if _same(tally, wanted)), 0)


def _counted(tallies: tuple[RuleTally, ...], once: RuleTally) -> tuple[RuleTally, ...]:
    others = tuple(tally for tally in tallies if not _same(tally, once))
    return (*others, replace(once, times=_times(tallies, once) + 1))


def _same(one: RuleTally, other: RuleTally) -> bool:
    return replace(one, times=0) == replace(other, times=0)


_SPOKEN: Final = frozenset({"exception", "no_result", "launch_failed"})
"""Causes whose message tells failures apart."""


_PATH: Final = re.compile(r"(?:[A-Za-z]:)?[/\\](?:[^\s/\\:'\"]+[/\\])*([^\s/\\:'\"]*)")


_NUMBER: Final = re.compile(
    r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|0x[0-9a-fA-F]+|\b[0-9a-fA-F]{12,}\b|[0-9]+(?:\.[0-9]+)?"
)


_LONGEST: Final = 120


def fingerprint(cause: str, message: str = "") -> str:
    """Return the fingerprint of a failure: the cause, and for some causes the message without numbers."""
    if cause not in _SPOKEN or not message.strip():
        return cause
    first = message.strip().splitlines()[0]
    same = _NUMBER.sub("N", _PATH.sub(r"\1", first))
    return f"{cause}: {' '.join(same.split())}"[:_LONGEST]
