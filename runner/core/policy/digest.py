"""The digest of a policy: computed from its canonical text, which does not depend on names in this code.

The canonical text is JSON with the words of the policy file. It includes every value, defaults too, so two
policies have the same text only if they are equal. Digests are kept with decisions: whoever changes the text
changes the digest of every policy.
"""

import hashlib
import json
from datetime import timedelta
from typing import Final, TypeAlias

from runner.core.policy.conditions import AllOf, AnyOf, Comparison, Condition, Not
from runner.core.policy.facts import FactValue
from runner.core.policy.model import Backoff, Ceilings, Economics, Policy, Rule

Json: TypeAlias = "dict[str, Json] | list[Json] | str | float | bool | None"

DIGITS: Final = 12
_MICROSECOND: Final = timedelta(microseconds=1)


def compute_digest(policy: Policy) -> str:
    """Return the first hexadecimal digits of the SHA-256 of a policy's canonical text."""
    return hashlib.sha256(canonical_text(policy).encode()).hexdigest()[:DIGITS]


def canonical_text(policy: Policy) -> str:
    """Return every value of a policy as JSON with sorted keys; durations are whole microseconds."""
    values: Json = {
        "name": policy.name,
        "ceilings": _ceilings(policy.ceilings),
        "backoff": _backoff(policy.backoff),
        "economics": _economics(policy.economics),
        "on_exit": [_rule(rule) for rule in policy.on_exit],
        "on_watch": [_rule(rule) for rule in policy.on_watch],
        "on_change": [_rule(rule) for rule in policy.on_change],
    }
    return json.dumps(values, sort_keys=True, separators=(",", ":"))


def _ceilings(ceilings: Ceilings) -> Json:
    return {
        "attempts": ceilings.attempts,
        "wall": None if ceilings.wall is None else _duration(ceilings.wall),
        "storm": {"attempts": ceilings.storm.attempts, "within": _duration(ceilings.storm.within)},
        "no_progress": ceilings.no_progress,
    }


def _backoff(backoff: Backoff) -> Json:
    return {
        "first": _duration(backoff.first),
        "factor": _number(backoff.factor),
        "max": _duration(backoff.max),
        "jitter": _number(backoff.jitter),
    }


def _economics(economics: Economics) -> Json:
    # Named only where it is not the usual one: policies from before it was a setting keep their digests.
    saving = {} if economics.saving == Economics().saving else {"saving": _duration(economics.saving)}
    return {
        **saving,
        "hurdle": _number(economics.hurdle),
        "max_swaps": economics.max_swaps,
        "rate_window": _duration(economics.rate_window),
    }


def _rule(rule: Rule) -> Json:
    return {
        "name": rule.name,
        "when": _condition(rule.when),
        "do": str(rule.do),
        "from": {"source": str(rule.start.source), "step": rule.start.step},
        "with": [[str(each.knob), each.turn] for each in rule.adjust],
        "charge": rule.charge,
        "tries": rule.tries,
        "spent": str(rule.spent),
        "mode": str(rule.mode),
        "why": rule.why,
    }


def _condition(condition: Condition) -> Json:
    match condition:
        case Comparison(fact, operator, operand):
            return {"fact": fact, str(operator): _operand(operand)}
        case Not(part):
            return {"not": _condition(part)}
        case AnyOf(parts):
            return {"any": [_condition(part) for part in parts]}
        case AllOf(parts):  # exhaustive
            return {"all": [_condition(part) for part in parts]}


def _operand(operand: FactValue) -> Json:
    if isinstance(operand, tuple):
        return [_operand(each) for each in operand]
    return operand if isinstance(operand, str) else _number(operand)


def _number(number: float) -> Json:
    """Return a number so that 2 and 2.0, which are equal, have one text."""
    return number if isinstance(number, int) or not number.is_integer() else int(number)


def _duration(duration: timedelta) -> int:
    return duration // _MICROSECOND
