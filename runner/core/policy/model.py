"""The model of a policy: ceilings, backoff, economics, and rules in the order of evaluation.

These are values without decisions.  ``runner.files.policy.load`` reads them from a file, and
``runner.core.policy.evaluate`` decides with them.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from fractions import Fraction
from typing import Final

from runner.core.policy.conditions import ALWAYS, Condition
from runner.core.policy.facts import DecisionPoint


class Verb(StrEnum):
    """The actions of rules."""

    FINISH = "finish"
    RESUME = "resume"
    RESTART = "restart"
    HOLD = "hold"
    GIVE_UP = "give_up"
    STOP = "stop"
    ADVISE = "advise"
    KEEP = "keep"


VERBS: Final[Mapping[DecisionPoint, tuple[Verb, ...]]] = {
    DecisionPoint.EXIT: (Verb.FINISH, Verb.RESUME, Verb.RESTART, Verb.HOLD, Verb.GIVE_UP),
    DecisionPoint.WATCH: (Verb.STOP, Verb.ADVISE),
    DecisionPoint.CHANGE: (Verb.KEEP, Verb.RESUME, Verb.RESTART),
}

STARTS: Final = frozenset({Verb.RESUME, Verb.RESTART})
"""Verbs after which another attempt starts."""

DISTURBS: Final = frozenset({Verb.STOP, Verb.RESUME, Verb.RESTART})
"""Verbs that end a running attempt."""


class Mode(StrEnum):
    """Effect of a rule: it acts, or only logs what it would do."""

    ACT = "act"
    LOG = "log"


class OnExhausted(StrEnum):
    """The outcome when the tries of a rule are used up, or its adjustments are exhausted."""

    GIVE_UP = "give_up"
    HOLD = "hold"
    NEXT = "next"


class Source(StrEnum):
    """The checkpoint that the next attempt begins from."""

    NEWEST = "newest"
    PREVIOUS = "previous"
    BEFORE_NAN = "before_nan"
    STEP = "step"


@dataclass(frozen=True, slots=True)
class StartPoint:
    """The start of a resumed attempt; ``step`` is set for ``Source.STEP`` only."""

    source: Source = Source.NEWEST
    step: int | None = None


class Setting(StrEnum):
    """The settings that a rule can adjust."""

    MICRO_BATCH = "micro_batch"
    EVAL_BATCH = "eval_batch"
    WORKERS = "workers"
    PRECISION = "precision"
    COMPILE = "compile"
    DEVICE = "device"
    PROFILE = "profile"
    NODES = "nodes"
    MEMORY = "memory"


SETTING_CHANGES: Final[Mapping[Setting, str]] = {
    Setting.MICRO_BATCH: "halve",
    Setting.EVAL_BATCH: "halve",
    Setting.WORKERS: "halve",
    Setting.PRECISION: "safer",
    Setting.COMPILE: "off",
    Setting.DEVICE: "other",
    Setting.NODES: "fewer",
}
"""The change that each setting allows; a profile is chosen by its name, and memory has a factor."""

MOST_FACTOR: Final = 4.0
"""By how much one adjustment of the memory can multiply it."""

_FACTOR: Final = re.compile(r"([0-9]{1,2}(?:\.[0-9]{1,3})?)x")


def memory_factor(turn: str) -> Fraction | None:
    """Return the factor of an adjustment of the memory such as ``1.5x``; None: it is none, or too large."""
    written = _FACTOR.fullmatch(turn)
    factor = Fraction(written.group(1)) if written else Fraction()
    return factor if 1 < factor <= MOST_FACTOR else None


@dataclass(frozen=True, slots=True)
class Adjustment:
    """A setting and its change."""

    knob: Setting
    turn: str


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition and an action.

    ``tries``: how often the rule may decide until there is progress; None: only the ceilings limit it.
    """

    name: str
    do: Verb
    when: Condition = ALWAYS
    start: StartPoint = field(default_factory=StartPoint)
    adjust: tuple[Adjustment, ...] = ()
    charge: bool = True
    tries: int | None = None
    spent: OnExhausted = OnExhausted.GIVE_UP
    mode: Mode = Mode.ACT
    why: str = ""

    @property
    def only_advises(self) -> bool:
        """Return True if the rule changes nothing, so that the evaluation goes on after it."""
        return self.mode is Mode.LOG or self.do is Verb.ADVISE


@dataclass(frozen=True, slots=True)
class RestartRate:
    """The most automatic starts of attempts in any such time, charged or not."""

    attempts: int = 6
    within: timedelta = timedelta(minutes=30)


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The limits that no rule can exceed; None: no such limit."""

    attempts: int = 20  # charged attempts, with the first
    wall: timedelta | None = None  # running time of all attempts together
    storm: RestartRate = field(default_factory=RestartRate)
    no_progress: int = 3  # charged attempts with the same failure and effective spec since the last progress


@dataclass(frozen=True, slots=True)
class Backoff:
    """The wait before another attempt: ``first``, times ``factor`` for each further setback, at most ``max``.

    A setback is a charged attempt since the last progress.  The jitter is a share of the wait, up or down.
    """

    first: timedelta = timedelta(seconds=5)
    factor: float = 2.0
    max: timedelta = timedelta(minutes=5)
    jitter: float = 0.2

    def wait(self, setbacks: int, seed: str) -> timedelta:
        """Return the wait after a number of setbacks; it depends on nothing but that and the seed."""
        growth = min(self.factor ** min(max(setbacks - 1, 0), 64), 1e9)
        seconds = min(self.first.total_seconds() * growth, self.max.total_seconds())
        digest = hashlib.sha256(seed.encode()).digest()
        share = int.from_bytes(digest[:4], "big") / 0xFFFFFFFF * 2 - 1
        return min(timedelta(seconds=seconds * (1 + self.jitter * share)), self.max)


@dataclass(frozen=True, slots=True)
class Economics:
    """Thresholds from which a change for more speed is worth its cost."""

    hurdle: float = 1.15  # from this gain on a change pays
    saving: timedelta = timedelta(seconds=30)  # from this saving on a change pays, whatever its gain
    max_swaps: int = 2  # changes of a running job that nobody approved
    rate_window: timedelta = timedelta(minutes=5)  # over which the recent rate is taken


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy file, merged with the policies that it extends."""

    name: str
    ceilings: Ceilings = field(default_factory=Ceilings)
    backoff: Backoff = field(default_factory=Backoff)
    economics: Economics = field(default_factory=Economics)
    on_exit: tuple[Rule, ...] = ()
    on_watch: tuple[Rule, ...] = ()
    on_change: tuple[Rule, ...] = ()

    def __hash__(self) -> int:
        return hash(self.name)  # hashing all rules takes longer than a cache of policies saves

    def rules(self, moment: DecisionPoint) -> tuple[Rule, ...]:
        """Return the rules of one decision point, in order."""
        return {
            DecisionPoint.EXIT: self.on_exit,
            DecisionPoint.WATCH: self.on_watch,
            DecisionPoint.CHANGE: self.on_change,
        }[moment]


def tightest(first: Ceilings, second: Ceilings) -> Ceilings:
    """Return ceilings that are at least as strict as both.

    Of the restart rate, the number of attempts and the time are each taken from the stricter side.
    """
    walls = [wall for wall in (first.wall, second.wall) if wall is not None]
    return Ceilings(
        min(first.attempts, second.attempts),
        min(walls) if walls else None,
        RestartRate(
            min(first.storm.attempts, second.storm.attempts), max(first.storm.within, second.storm.within)
        ),
        min(first.no_progress, second.no_progress),
    )
