"""What another policy would have made of attempts that have been.

Only as far as the evidence goes: after the first verdict that differs and still starts an attempt,
the journal tells what happened under other settings, and that is said.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from runner.core.policy.decision import Action, Situation
from runner.core.policy.evaluate import decide
from runner.core.policy.explain import Record, read_situation
from runner.core.policy.facts import DecisionPoint
from runner.core.policy.history import History
from runner.core.policy.model import STARTS, Policy


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """One recorded attempt: what was decided then, and what the other policy says; None if it had stopped."""

    attempt: int
    recorded: str
    reason: str
    unsaved_s: float
    action: Action | None
    certain: bool


@dataclass(frozen=True, slots=True)
class Replay:
    """One job under another policy."""

    job: str
    steps: tuple[ReplayStep, ...]

    @property
    def attempts_made(self) -> int:
        """How many of the recorded attempts the other policy would have made."""
        return sum(turn.action is not None for turn in self.steps)

    @property
    def unsaved_s(self) -> tuple[float, float]:
        """Seconds of work that were done and not saved: as recorded, and of the attempts still made."""
        still = sum(turn.unsaved_s for turn in self.steps if turn.action)
        return sum(turn.unsaved_s for turn in self.steps), still

    @property
    def continues(self) -> bool:
        """Whether the other policy would go on where the journal ends."""
        last = self.steps[-1].action if self.steps else None
        return last is not None and last.verb in STARTS


def replay(job: str, policy: Policy, journal: Sequence[Record]) -> Replay:
    """Return what a policy makes of the ends that one job's journal holds, in their order.

    Raises:
        KeyError, TypeError, ValueError: something in it is no record.
    """
    ends = sorted(
        (kept for kept in journal if kept["moment"] == DecisionPoint.EXIT), key=lambda kept: kept["attempt"]
    )
    history, stopped, certain = History(), False, True
    turns: list[ReplayStep] = []
    for kept in ends:
        situation = read_situation(kept)
        decision = None if stopped else decide(policy, DecisionPoint.EXIT, history, situation)
        recorded = kept["verdict"]
        verdict = decision.action if decision else None
        lost = unsaved_s(situation)
        turns.append(ReplayStep(kept["attempt"], recorded["do"], recorded["reason"], lost, verdict, certain))
        if decision:
            history = _next(decision.history, situation)
            stopped = decision.action.verb not in STARTS
            certain = certain and _alike(decision.action, recorded["do"], recorded["with"])
    return Replay(job, tuple(turns))


def _next(history: History, situation: Situation) -> History:
    """Return a history that knows whether a person asked for the attempt that comes next."""
    facts = situation.facts
    asked = facts.get("operator.request") == "restart" or facts.get("killed_by") == "change"
    return history.request_next() if asked else history


def unsaved_s(situation: Situation) -> float:
    """Return the seconds of an attempt that no checkpoint keeps."""
    facts, uptime = situation.facts, situation.uptime.total_seconds()
    if facts.get("exit.class") == "success":
        return 0.0
    age = facts.get("checkpoint.age_s")
    return min(uptime, age) if isinstance(age, int | float) else uptime


def _alike(verdict: Action, do: str, turned: object) -> bool:
    return verdict.verb == do and {str(each.knob): each.turn for each in verdict.adjust} == turned
