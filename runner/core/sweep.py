"""Sweeps: which candidates go on at a rung, and when a sweep ends.

Successive halving with a pause: a candidate that is not among the best of a rung keeps its checkpoint, and
takes the place of one that fails later.  A rung is decided when all its candidates have reached it, so that
neither the order in which they run nor a restart of the daemon changes a decision.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from runner.base.textfile import quoted
from runner.core.job.states import Held, State

PAUSED: Final = "paused at step "

OVER: Final = "the sweep is over: "

NAMED: Final = 10
"""Metrics that a reason names at most."""

DECIDED: Final = "sweep_decided"
"""Kind of the event of a decision about a candidate."""


def paused_text(step: int) -> str:
    """Return the reason why a candidate is held at a rung."""
    return f"{PAUSED}{step}, until its sweep decides"


def is_paused(state: State) -> bool:
    """Return True if a candidate waits at a rung; one that a person holds does not."""
    return isinstance(state, Held) and state.why.startswith(PAUSED)


@dataclass(frozen=True, slots=True)
class SweepTerms:
    """Terms by which candidates are compared, and the times of it."""

    metric: str
    maximize: bool = False
    rungs: tuple[int, ...] = ()
    eta: int = 3
    max_failures: int | None = None
    budget_h: float | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """One job of a sweep."""

    job_id: str
    number: int
    reached: int = 0  # rungs; all of them if it has succeeded
    values: tuple[float | None, ...] = ()  # of the metric at each of these; None: no finite one
    paused: bool = False  # at the last of these
    outcome: str | None = None  # None: it has not ended
    final: float | None = None
    device_h: float = 0.0
    lineage: int = 1  # a restart at step 0 begins another, with other values
    reported: frozenset[str] = frozenset()  # names of its metrics so far


class CandidateVerb(StrEnum):
    """Next step of a candidate."""

    PROMOTE = "promote"
    STAY = "stay"  # paused
    END = "end"


@dataclass(frozen=True, slots=True)
class Decision:
    """Next step of a candidate, and its reason."""

    verb: CandidateVerb
    job_id: str
    reason: str
    step: int | None = None


def decide(terms: SweepTerms, candidates: Sequence[Candidate]) -> tuple[Decision, ...]:
    """Return the fate of candidates that wait, and of all that go on when a limit ends the sweep."""
    if (why := _exhausted(terms, candidates)) is not None:
        return _end(candidates, why)
    members, decisions = list(candidates), list[Decision]()
    for index, step in enumerate(terms.rungs):
        living = [each for each in members if each.outcome != "failed"]
        there = [each for each in living if each.reached > index]
        if any(each.reached <= index and each.outcome is None for each in living):
            return tuple(decisions)
        ranked = sorted(there, key=lambda each, at=index: (_cost(terms, each.values[at]), each.number))  # type: ignore[misc]
        if there and all(each.values[index] is None for each in there):
            return _end(candidates, f"{OVER}step {step}: {_missing(terms.metric, there)}")
        kept = max(1, len(members) // terms.eta)
        for place, each in enumerate(ranked, start=1):
            if each.paused and each.reached == index + 1:
                verb = CandidateVerb.PROMOTE if place <= kept else CandidateVerb.STAY
                fact = f"{terms.metric} {_number(each.values[index])} is {place} of {len(ranked)}"
                end = (
                    "goes on"
                    if verb is CandidateVerb.PROMOTE
                    else f"stays paused, {min(kept, len(ranked))} go on"
                )
                reason = f"{_at_rung(each.lineage, step)}: {fact}; {end}"
                decisions.append(Decision(verb, each.job_id, reason, step))
        members = ranked[:kept]
    if all(each.outcome is not None for each in members):
        best = winner(terms, candidates)
        reported = " with a value" if any(each.outcome == "succeeded" for each in candidates) else ""
        named = f"candidate {best.number} is the best" if best else f"no candidate has succeeded{reported}"
        waiting = [each for each in candidates if each.paused]  # what runs was let go on, and ends by itself
        return (*decisions, *_end(waiting, f"{OVER}{named}"))
    return tuple(decisions)


def decided_values(metric: str, reasons: Sequence[str], lineage: int = 1) -> dict[int, float | None]:
    """Return the values by which a lineage of a candidate has been compared before, by the step of the rung.

    A later reading of its curve may differ: a long curve keeps the means of neighbours.
    """
    rung = _at_rung(lineage, r"(\d+)")
    found = (re.match(rf"{rung}: {re.escape(metric)} (\S+|\(.*\)) is ", each) for each in reasons)
    return {int(each[1]): None if each[2].startswith("(") else float(each[2]) for each in found if each}


def _at_rung(lineage: int, step: object) -> str:
    """Return the beginning of a reason, which says whose value it has."""
    return f"step {step}" if lineage == 1 else f"lineage {lineage}, step {step}"


def compared(value: float | None) -> float | None:
    """Return a value of a metric with the digits that are noted, by which candidates are compared."""
    return None if value is None else float(_number(value))


def winner(terms: SweepTerms, candidates: Sequence[Candidate]) -> Candidate | None:
    """Return the best of the candidates that have succeeded."""
    done = [each for each in candidates if each.outcome == "succeeded" and each.final is not None]
    return min(done, key=lambda each: (_cost(terms, each.final), each.number), default=None)


def _exhausted(terms: SweepTerms, candidates: Sequence[Candidate]) -> str | None:
    """Return the limit of a sweep that is exceeded, None if none is."""
    failed = sum(each.outcome == "failed" for each in candidates)
    if terms.max_failures is not None and failed >= terms.max_failures:
        return f"sweep.max_failures: {failed} candidates have failed"
    used = sum(each.device_h for each in candidates)
    if terms.budget_h is not None and used >= terms.budget_h:
        return f"sweep.budget: {terms.budget_h:g} h are used"
    return None


def _missing(metric: str, candidates: Sequence[Candidate]) -> str:
    """Return that no candidate has a value of the metric, and the metrics that they have."""
    fact = f"no candidate has a finite {metric}"
    reported = sorted(set[str]().union(*(each.reported for each in candidates)))
    if metric in reported:
        return f"{fact}, although they report it"
    more = f" and {len(reported) - NAMED} more" if len(reported) > NAMED else ""
    names = ", ".join(map(quoted, reported[:NAMED])) or "nothing"
    return f"{fact} so far; they report {names}{more}"


def _end(candidates: Sequence[Candidate], why: str) -> tuple[Decision, ...]:
    return tuple(Decision(CandidateVerb.END, each.job_id, why) for each in candidates if each.outcome is None)


def _cost(terms: SweepTerms, value: float | None) -> float:
    """Return a number that is smaller for a better value; what is not finite is worst."""
    if value is None or not math.isfinite(value):
        return math.inf
    return -value if terms.maximize else value


def _number(value: float | None) -> str:
    return "(no finite value)" if value is None else f"{value:.6g}"
