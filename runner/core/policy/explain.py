"""Records of decisions as self-contained JSON, and their explanation as text.

A record has the facts, the result of every rule, the action, and what is used up.  A file with one record
per line is a journal; ``replay`` asks another policy about the attempts in it.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import Any, Final, TypeAlias

from runner.base.readable import readable_duration
from runner.core.policy.adjustments import describe_change
from runner.core.policy.conditions import FactUse, format_value
from runner.core.policy.decision import Action, PolicyDecision, RuleResult, Situation
from runner.core.policy.facts import DecisionPoint, Facts, FactValue
from runner.core.policy.history import RuleTally
from runner.core.policy.model import Adjustment, Policy, Rule, Source, StartPoint, Verb

VERSION: Final = 1

UNBOUNDED_GAIN: Final = 1e9
"""A gain from here on is unbounded: nothing is interrupted by the change."""

Record: TypeAlias = Mapping[str, Any]
"""A decision as JSON."""


@dataclass(frozen=True, slots=True)
class DecisionSubject:
    """The job and the attempt of a decision, and the digest of its policy."""

    job: str
    attempt: int
    digest: str


def make_record(
    about: DecisionSubject, policy: Policy, situation: Situation, decision: PolicyDecision
) -> dict[str, Any]:
    """Return the record of a decision as JSON."""
    history = decision.history
    return {
        "record": VERSION,
        "job": about.job,
        "attempt": about.attempt,
        "moment": str(decision.moment),
        "at": situation.now.isoformat(),
        "started": situation.started.isoformat() if situation.started else None,
        "effective": situation.effective,
        "policy": {"name": policy.name, "digest": about.digest},
        "facts": {name: _figure(value) for name, value in sorted(decision.facts.items())},
        "verdict": _verdict(decision.action),
        "rules": [_weighed(each) for each in decision.rule_results],
        "advice": [{"rule": each.rule, "text": each.text} for each in decision.advice],
        "used": {
            "attempts": history.attempts,
            "charged": history.charged,
            "of": policy.ceilings.attempts,
            "swaps": history.swaps,
            "ran_s": history.ran.total_seconds(),
            "tried": [_tally(each) for each in history.tried],
            "stuck": [_tally(each) for each in history.stuck],
        },
    }


def read_situation(kept: Record) -> Situation:
    """Return the situation of a record, for another policy to look at.

    Raises:
        KeyError, TypeError, ValueError: it is no record.
    """
    facts = {
        name: tuple(value) if isinstance(value, list) else value for name, value in kept["facts"].items()
    }
    started = kept["started"]
    return Situation(
        facts,
        datetime.fromisoformat(kept["at"]),
        datetime.fromisoformat(started) if started else None,
        str(kept["effective"]),
        str(kept["job"]),
    )


def _figure(value: FactValue) -> FactValue:
    """Return a fact as JSON; infinity is written as the largest float."""
    return sys.float_info.max if value == inf else value


def _verdict(verdict: Action) -> dict[str, Any]:
    return {
        "do": str(verdict.verb),
        "rule": verdict.rule,
        "reason": verdict.reason,
        "from": _start(verdict.start),
        "with": {str(each.knob): each.turn for each in verdict.adjust},
        "delay_s": verdict.delay.total_seconds(),
        "charged": verdict.charged,
        "limit": str(verdict.limit) if verdict.limit else None,
    }


def _start(start: StartPoint) -> str:
    return str(start.source) if start.step is None else f"step {start.step}"


def _weighed(each: RuleResult) -> dict[str, Any]:
    because = [_bounded(reading).text for reading in each.fact_uses]
    return {"name": each.rule, "do": str(each.do), "truth": each.truth, "because": because, "note": each.note}


def _bounded(reading: FactUse) -> FactUse:
    """Return a fact use with an unbounded gain as text."""
    return reading._replace(value=_gained(reading.value)) if _of_gain(reading) else reading


def _tally(tally: RuleTally) -> dict[str, Any]:
    kept: dict[str, Any] = {"root": tally.root, "effective": tally.effective, "times": tally.times}
    return {"rule": tally.rule, **kept} if tally.rule else kept


# --- In words -----------------------------------------------------------------------------------------

_TRUTH: Final[Mapping[bool | None, str]] = {True: "true", False: "false", None: "unknown"}


def explain_record(kept: Record) -> Iterator[str]:
    """Yield the lines that explain a record: the action, every rule with its facts, and what is used up."""
    verdict, used = kept["verdict"], kept["used"]
    yield f"{kept['job']}, attempt {kept['attempt']}, on_{kept['moment']}: {verdict['reason']}"
    policy = f"policy {kept['policy']['name']} ({kept['policy']['digest']})"
    yield f"  {_answer(verdict, kept['moment'])}; {policy}"
    yield ""
    width = max((len(rule["name"]) for rule in kept["rules"]), default=0)
    for rule in kept["rules"]:
        yield f"  {rule['name']:<{width}}  {_TRUTH[rule['truth']]:<7}  {_because(rule)}"
    yield ""
    ran = readable_duration(used["ran_s"])
    yield f"  charged {used['charged']} of {used['of']} attempts; ran {ran} in all"
    for tally in (*used["tried"], *used["stuck"]):
        yield f"  {_tallied(tally)}"
    yield from _economics(kept["facts"])
    for advice in kept["advice"]:
        yield f"  advice of {advice['rule']}: {advice['text']}"


def _answer(verdict: Mapping[str, Any], moment: str) -> str:
    """Return the action and its rule; only the end of an attempt can be charged."""
    said = f"rule {verdict['rule']}" if verdict["rule"] else "no rule"
    limit = f", limited by {verdict['limit']}" if verdict["limit"] else ""
    cost = ", charged" if verdict["charged"] else ", free of charge"
    return f"{verdict['do']} by {said}{limit}{cost if moment == DecisionPoint.EXIT else ''}"


def _because(rule: Mapping[str, Any]) -> str:
    facts = ", ".join(rule["because"]) or "always"
    return f"{facts}: {rule['note']}" if rule["note"] else facts


def _tallied(tally: Mapping[str, Any]) -> str:
    what = f"rule {tally['rule']} has answered" if "rule" in tally else "ended without progress"
    spec = f" with spec {tally['effective']}" if tally["effective"] else ""
    often = "once" if tally["times"] == 1 else f"{tally['times']} times"
    return f"{what} {often} for {tally['root']}{spec}"


def _economics(facts: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(facts):
        if name.startswith("econ."):
            yield f"  {name} = {_gained(facts[name])}"


def _of_gain(reading: FactUse) -> bool:
    return reading.comparison.fact.startswith("econ.") and _boundless(reading.value)


def _gained(value: Any) -> str:  # noqa: ANN401  (JSON)
    return "without bound" if _boundless(value) else format_value(value)


def _boundless(value: object) -> bool:
    return isinstance(value, float) and value >= UNBOUNDED_GAIN


OUT_OF_DEVICE_MEMORY: Final = (
    "ran out of device memory; make its batches smaller, or ask for a larger device (devices.memory)"
)
"""The advice for a program that ran out of device memory."""


def describe_exit(facts: Facts) -> str:
    """Return the cause of an end as text."""
    cause = str(facts.get("cause") or facts.get("exit.class") or "ended, and nobody knows why").replace(
        "_", " "
    )
    killer = str(facts.get("killed_by"))
    if killer.startswith("watch/") and cause in {"killed", "terminated"}:
        cause = f"stopped by rule {killer.removeprefix('watch/')}"
    phase = facts.get("phase")
    return cause if phase is None or facts.get("exit.class") == "success" else f"{cause} in {phase}"


def describe_program_exit(facts: Facts) -> str:
    """Return the cause of the end of a program as text, without phases."""
    if facts.get("cause") == "host_oom":
        return "ran out of memory"
    if facts.get("cause") == "shared_memory":
        return "ran out of shared memory"
    return OUT_OF_DEVICE_MEMORY if facts.get("oom.device") is True else describe_exit(facts)


def describe_action(verb: Verb, start: StartPoint, adjust: tuple[Adjustment, ...], facts: Facts) -> str:
    """Return an action as text: ``resume from step 4000 with micro-batch 256 → 128``."""
    words = {Verb.RESUME: f"resume {_begin(start, facts)}", Verb.RESTART: _describe_restart(facts)}
    done = words.get(verb, verb.replace("_", " "))
    turned = " and ".join(describe_change(adjustment, facts) for adjustment in adjust)
    return f"{done} with {turned}" if turned else done


def _describe_restart(facts: Facts) -> str:
    """Return a restart in a new lineage as text; only a workload that reports is known to begin at step 0."""
    reports = facts.get("turnable") is not False
    return "restart from step 0" if reports else "restart in a new lineage with an empty HOME"


def describe_warning(rule: Rule, facts: Facts) -> str:
    """Return the warning of a rule about a running attempt."""
    phase = facts.get("phase")
    said = rule.why or rule.name.replace("-", " ")
    return f"{said}, in {phase}" if phase is not None else said


def with_reason(text: str, rule: Rule) -> str:
    """Return a reason with the text of the policy's author."""
    return f"{text} ({rule.why})" if rule.why else text


def _begin(start: StartPoint, facts: Facts) -> str:
    step = facts.get("checkpoint.step")
    match start.source:
        case Source.NEWEST:
            return "from the newest checkpoint" if step is None else f"from step {step}"
        case Source.PREVIOUS:
            return f"from the checkpoint before {'the newest' if step is None else f'step {step}'}"
        case Source.BEFORE_NAN:
            return "from before the loss was not finite"
        case Source.STEP:  # exhaustive
            return f"from step {start.step}"
