"""Writes a policy as a policy file, with everything that it extends, one rule per line."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import Final, TypeAlias

from runner.base.units import format_duration
from runner.base.yaml import resolve_scalar
from runner.core.policy.conditions import AllOf, AnyOf, Comparison, Condition, Not, Operator
from runner.core.policy.facts import DecisionPoint
from runner.core.policy.model import STARTS, Mode, OnExhausted, Policy, Rule, StartPoint
from runner.files.policy.load import SECTIONS, VERSION

Tree: TypeAlias = "Mapping[str, Tree] | list[Tree] | str | float | bool | timedelta | None"

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*( [A-Za-z0-9_./-]+)*")


def dump_policy(policy: Policy) -> str:
    """Return a policy file that parses to this policy."""
    most = policy.ceilings.attempts
    head: dict[str, Tree] = {
        "policy": VERSION,
        "name": policy.name,
        # Above the ceiling on attempts it is refused when parsed, and so is max with factor 1.
        "ceilings": asdict(policy.ceilings) | {"no_progress": min(policy.ceilings.no_progress, most)},
        "backoff": {
            name: value
            for name, value in asdict(policy.backoff).items()
            if name != "max" or policy.backoff.factor != 1
        },
        "economics": asdict(policy.economics),
    }
    lines = [f"{name}: {_flow(value)}" for name, value in head.items()]
    for moment, section in SECTIONS.items():
        lines += _section(section, policy.rules(moment), moment)
    return "\n".join(lines) + "\n"


def _section(name: str, rules: tuple[Rule, ...], moment: DecisionPoint) -> list[str]:
    if not rules:
        return []
    return ["", f"{name}:", *(f"  - {_flow(_rule(rule, moment))}" for rule in rules)]


def _rule(rule: Rule, moment: DecisionPoint) -> dict[str, Tree]:
    said: dict[str, Tree] = {"name": rule.name, "when": condition_tree(rule.when), "do": str(rule.do)}
    if rule.mode is not Mode.ACT:
        said["mode"] = str(rule.mode)
    if moment is DecisionPoint.EXIT and rule.do in STARTS:
        said |= _of_an_attempt(rule)
    return said | ({"why": rule.why} if rule.why else {})


def _of_an_attempt(rule: Rule) -> dict[str, Tree]:
    said: dict[str, Tree] = {}
    if rule.start != StartPoint():
        said["from"] = str(rule.start.source) if rule.start.step is None else {"step": rule.start.step}
    if rule.adjust:
        said["with"] = {str(each.knob): each.turn for each in rule.adjust}
    if not rule.charge:
        said["charge"] = False
    if rule.tries is not None:
        said["tries"] = rule.tries
    if rule.spent is not OnExhausted.GIVE_UP:
        said["spent"] = str(rule.spent)
    return said


def condition_tree(condition: Condition, *, inside: bool = False) -> dict[str, Tree]:
    """Return a condition as the mapping in a policy file."""
    match condition:
        case Comparison(fact, Operator.IS, operand):
            return {fact: _operand(operand)}
        case Comparison(fact, sign, operand):
            return {fact: {str(sign): _operand(operand)}}
        case Not(part):
            return {"not": condition_tree(part)}
        case AnyOf(parts):
            return {"any": [condition_tree(part) for part in parts]}
        case AllOf(parts):  # exhaustive
            return _all(parts, inside=inside)


def _all(parts: tuple[Condition, ...], *, inside: bool) -> dict[str, Tree]:
    """Return a conjunction in the shortest form: comparisons of one fact together, others side by side."""
    compared = [part for part in parts if isinstance(part, Comparison) and part.operator is not Operator.IS]
    if len(compared) == len(parts) and len({part.fact for part in compared}) == 1:
        operators: dict[str, Tree] = {str(part.operator): _operand(part.operand) for part in compared}
        if len(operators) == len(parts):
            return {compared[0].fact: operators}
    entries = [condition_tree(part, inside=True) for part in parts]
    merged = {name: value for entry in entries for name, value in entry.items()}
    if not inside and len(merged) == len(entries):
        return merged
    return {"all": list(entries)}


def _operand(value: object) -> Tree:
    return list(value) if isinstance(value, tuple) else value  # type: ignore[return-value]  # a fact's value


def _flow(value: Tree) -> str:
    match value:
        case Mapping():
            return "{" + ", ".join(f"{name}: {_flow(each)}" for name, each in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_flow, value)) + "]"
        case timedelta():
            return format_duration(value)
        case str():
            plain = _PLAIN.fullmatch(value) and resolve_scalar(value) == value
            return value if plain else json.dumps(value, ensure_ascii=False)
        case _:
            return json.dumps(value)
