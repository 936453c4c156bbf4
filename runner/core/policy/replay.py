"""Replay: what another policy would have decided about recorded attempts.

After the first action that differs and starts an attempt, the journal describes attempts with other settings.
The steps from there on are marked as uncertain.
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
    """A recorded attempt, the recorded decision, and the action of the other policy; None after its end."""

    attempt: int
    recorded: str
    reason: str
    unsaved_s: float
    action: Action | None
    certain: bool


@dataclass(frozen=True, slots=True)
class Replay:
    """The replay of one job."""

    job: str
    steps: tuple[ReplayStep, ...]

    @property
    def attempts_made(self) -> int:
        """The number of recorded attempts that the other policy would have made."""
        return sum(turn.action is not None for turn in self.steps)

    @property
    def unsaved_s(self) -> tuple[float, float]:
        """Unsaved seconds of work: as recorded, and of the attempts that are still made."""
        still = sum(turn.unsaved_s for turn in self.steps if turn.action)
        return sum(turn.unsaved_s for turn in self.steps), still

    @property
    def continues(self) -> bool:
        """Return True if the other policy would start another attempt at the end of the journal."""
        last = self.steps[-1].action if self.steps else None
        return last is not None and last.verb in STARTS


def replay(job: str, policy: Policy, journal: Sequence[Record]) -> Replay:
    """Return the decisions of a policy about the ends in the journal of one job.

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
    """Return the history for the next attempt, with the request of a user for it, if any."""
    facts = situation.facts
    asked = facts.get("operator.request") == "restart" or facts.get("killed_by") == "change"
    return history.request_next() if asked else history


def unsaved_s(situation: Situation) -> float:
    """Return the seconds of an attempt that no checkpoint has saved."""
    facts, uptime = situation.facts, situation.uptime.total_seconds()
    if facts.get("exit.class") == "success":
        return 0.0
    age = facts.get("checkpoint.age_s")
    return min(uptime, age) if isinstance(age, int | float) else uptime


def _alike(verdict: Action, do: str, turned: object) -> bool:
    return verdict.verb == do and {str(each.knob): each.turn for each in verdict.adjust} == turned
