"""The decision of a policy: the action with its reason, and the result of every rule."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from runner.core.policy.conditions import FactUse, Truth
from runner.core.policy.facts import DecisionPoint, Facts
from runner.core.policy.history import History
from runner.core.policy.model import Adjustment, StartPoint, Verb


class Guard(StrEnum):
    """The ceilings and guards that can change the action of a rule."""

    # Ceilings
    ATTEMPTS = "attempts"
    WALL = "wall"
    STORM = "storm"
    NO_PROGRESS = "no_progress"
    # Guards
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
    """An action.  ``rule`` is empty if no rule was true; ``limit`` is the guard that changed the action."""

    verb: Verb
    rule: str
    reason: str
    start: StartPoint = field(default_factory=StartPoint)
    adjust: tuple[Adjustment, ...] = ()
    delay: timedelta = field(default_factory=timedelta)
    charged: bool = True
    limit: Guard | None = None


class RuleResult(NamedTuple):
    """A rule, its truth, and the facts that decided."""

    rule: str
    do: Verb
    truth: Truth
    fact_uses: tuple[FactUse, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Advice:
    """The text of a rule that only advises."""

    rule: str
    text: str


@dataclass(frozen=True, slots=True)
class Situation:
    """The input of a decision.

    ``effective`` is the digest of the spec that took effect.  ``seed`` spreads the backoff of jobs, for
    example the job id.  ``started`` is None if the attempt never started.
    """

    facts: Facts
    now: datetime
    started: datetime | None = None
    effective: str = ""
    seed: str = ""

    @property
    def uptime(self) -> timedelta:
        """The running time of the attempt; zero if the clock was set back."""
        return max(self.now - self.started, timedelta()) if self.started else timedelta()


@dataclass(frozen=True, slots=True)
class PolicyDecision:
    """An action with everything that led to it.  ``history`` is the history of the job from now on."""

    moment: DecisionPoint
    action: Action
    history: History
    facts: Facts
    rule_results: tuple[RuleResult, ...] = ()
    advice: tuple[Advice, ...] = ()
