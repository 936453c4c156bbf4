"""What a policy answers: a verdict, why, and what every rule said."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from runner.core.policy.conditions import FactUse, Truth
from runner.core.policy.facts import DecisionPoint, Facts
from runner.core.policy.history import History
from runner.core.policy.model import Adjustment, StartPoint, Verb


class Guard(StrEnum):
    """What may stand against the answer of a rule, whatever the file says."""

    # Ceilings
    ATTEMPTS = "attempts"
    WALL = "wall"
    STORM = "storm"
    NO_PROGRESS = "no_progress"
    # Clamps
    OPERATOR = "operator"
    NOT_DONE = "not_done"
    NO_CHECKPOINT = "no_checkpoint"
    LOST_CHECKPOINTS = "lost_checkpoints"
    UNUSABLE_CHECKPOINTS = "unusable_checkpoints"
    NO_PREVIOUS = "no_previous"
    NOT_FREE = "not_free"
    NEEDS_APPROVAL = "needs_approval"
    MAX_SWAPS = "max_swaps"


@dataclass(frozen=True, slots=True)
class Action:
    """What follows.  ``rule`` is empty when none was true; ``limit`` says what changed that rule's answer."""

    verb: Verb
    rule: str
    reason: str
    start: StartPoint = field(default_factory=StartPoint)
    adjust: tuple[Adjustment, ...] = ()
    delay: timedelta = field(default_factory=timedelta)
    charged: bool = True
    limit: Guard | None = None


class RuleResult(NamedTuple):
    """One rule, whether it was true, and the facts that decided."""

    rule: str
    do: Verb
    truth: Truth
    fact_uses: tuple[FactUse, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Advice:
    """What a rule said that only speaks."""

    rule: str
    text: str


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known when a policy is asked.

    ``effective`` is a digest of the spec as it really ran, ``seed`` spreads the backoff of jobs (their
    id will do), ``started`` is None when the attempt never started.
    """

    facts: Facts
    now: datetime
    started: datetime | None = None
    effective: str = ""
    seed: str = ""

    @property
    def uptime(self) -> timedelta:
        """How long the attempt has run; a clock that was set back makes it zero, not negative."""
        return max(self.now - self.started, timedelta()) if self.started else timedelta()


@dataclass(frozen=True, slots=True)
class PolicyDecision:
    """A verdict with everything that led to it.  ``history`` is the job's from now on."""

    moment: DecisionPoint
    action: Action
    history: History
    facts: Facts
    rule_results: tuple[RuleResult, ...] = ()
    advice: tuple[Advice, ...] = ()
