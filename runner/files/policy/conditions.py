"""Parses the conditions of a policy file; every fact and operand is checked against the fact catalog."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from runner.base.textfile import quoted
from runner.base.yaml import MappingNode as Tree
from runner.base.yaml import ScalarNode, SequenceNode
from runner.core.policy.catalog import FACTS, facts_at
from runner.core.policy.conditions import ALWAYS, AllOf, AnyOf, Comparison, Condition, Not, Operator
from runner.core.policy.facts import LISTS, NUMERIC, DecisionPoint, Fact, FactKind, Scalar
from runner.files.cursor import Cursor
from runner.files.validation import did_you_mean, format_choices

MEANT: Final[Mapping[str, str]] = {
    "oom.cuda": "oom.device",
    "gpu.xid": "device.xid",
    "gpu.recovery": "device.recovery",
    "gpu.lost": "device.lost",
    "gpu.util": "device.util",
    "window": "device.window_s",
    "ckpt.present": "checkpoint.present",
    "ckpt.valid": "checkpoint.valid",
    "ckpt.step": "checkpoint.step",
    "ckpt.age": "checkpoint.age_s",
    "ckpt.compatible": "checkpoint.compatible",
    "heartbeat.age": "heartbeat.age_s",
    "deadline.slack": "deadline.slack_s",
    "attempt.uptime": "attempt.uptime_s",
    "root_cause": "cause",
    "exit": "exit.class",
}
"""Other names of facts, for the hints in messages."""

JOINTS: Final = ("all", "any", "not")
ORDERS: Final = (Operator.LT, Operator.LE, Operator.GE, Operator.GT)


def parse_condition(cursor: Cursor, moment: DecisionPoint) -> Condition | None:
    """Return the condition of a rule; ``{}`` is always true."""
    if isinstance(cursor.node, Tree) and not cursor.node.entries:
        return ALWAYS
    return _every(cursor, moment)


def _every(cursor: Cursor, moment: DecisionPoint) -> Condition | None:
    """Return the conjunction of the entries of a mapping."""
    entries = cursor.entries()
    if not entries and isinstance(cursor.node, Tree):
        cursor.report("is always true; write a condition")
    return _join(AllOf, [_entry(name, entry, moment) for name, entry in entries.items()])


def _entry(name: str, cursor: Cursor, moment: DecisionPoint) -> Condition | None:
    if name == "not":
        part = _every(cursor, moment)
        return Not(part) if part else None
    if name in JOINTS:
        return _several(name, cursor, moment)
    fact = find_fact(name, cursor, moment)
    return _wanted(fact, cursor) if fact else None


def _several(name: str, cursor: Cursor, moment: DecisionPoint) -> Condition | None:
    items = cursor.items()
    if not items and isinstance(cursor.node, SequenceNode):
        cursor.report("is an empty list; add conditions")
    return _join(AllOf if name == "all" else AnyOf, [_every(item, moment) for item in items])


def _join(
    kind: Callable[[tuple[Condition, ...]], Condition], parts: Sequence[Condition | None]
) -> Condition | None:
    """Return the conjunction or the disjunction of parts, None if one of them is wrong."""
    good = tuple(part for part in parts if part is not None)
    if not good or len(good) < len(parts):
        return None
    return good[0] if len(good) == 1 else kind(good)


def find_fact(name: str, cursor: Cursor, moment: DecisionPoint, elsewhere: str = "") -> Fact | None:
    """Return the fact of a name, or report the problem; ``elsewhere`` says how to reach another moment."""
    there = facts_at(moment)
    if name in there:
        return there[name]
    if name in FACTS:
        points = FACTS[name].decision_points
        moments = " and ".join(f"on_{each}" for each in points)
        hint = elsewhere.format(points[0])
        cursor.report_at_key(f"is not known on_{moment}; it is a fact of {moments}{hint}")
        return None
    meant = MEANT.get(name)
    hint = f"; did you mean {quoted(meant)}?" if meant in there else did_you_mean(name, there)
    cursor.report_at_key(f"there is no such fact{hint or _LIST}")
    return None


_LIST: Final = '; "runner policy facts" lists them'


# --- Comparisons -----------------------------------------------------------------------------


def _wanted(fact: Fact, cursor: Cursor) -> Condition | None:
    if isinstance(cursor.node, Tree):
        return _operators(fact, cursor)
    if isinstance(cursor.node, SequenceNode):
        cursor.report("must be one value; write {in: [...]} for one of several")
        return None
    operand = parse_value(fact, cursor)
    return None if operand is None else Comparison(fact.name, Operator.IS, operand)


def _operators(fact: Fact, cursor: Cursor) -> Condition | None:
    numeric = fact.kind in NUMERIC
    names = [*(("lt", "le", "ge", "gt") if numeric else ()), "in", "not"]
    entries = cursor.entries()
    if not entries:
        cursor.report(f"is empty; write a value, or {format_choices(names)}")
    return _join(AllOf, [_operator(fact, name, entry, names) for name, entry in entries.items()])


def _operator(fact: Fact, name: str, cursor: Cursor, names: list[str]) -> Condition | None:
    if name == "not":
        part = _wanted(fact, cursor)
        return Not(part) if part else None
    if name == "in":
        return _one_of(fact, cursor)
    if name not in names:
        ordered = name in ORDERS
        reason = (
            f"a {fact.kind} cannot be ordered"
            if ordered
            else f"unknown comparison{did_you_mean(name, names)}"
        )
        cursor.report_at_key(f"{reason}; write {format_choices(names)}")
        return None
    operand = parse_value(fact, cursor)
    return None if operand is None else Comparison(fact.name, Operator(name), operand)


def _one_of(fact: Fact, cursor: Cursor) -> Condition | None:
    items = cursor.items()
    if not items and isinstance(cursor.node, SequenceNode):
        cursor.report("is an empty list, so nothing can match; add a value")
    values = _values(fact, items)
    return Comparison(fact.name, Operator.IN, values) if values else None


def _values(fact: Fact, items: Iterable[Cursor]) -> tuple[Scalar, ...] | None:
    """Return values of a fact, None if one of them is wrong."""
    values = [parse_value(fact, item) for item in items]
    good = tuple(value for value in values if value is not None)
    return good if len(good) == len(values) else None


def parse_value(fact: Fact, cursor: Cursor) -> Scalar | None:
    """Return a value of the fact, or report the problem."""
    value = cursor.node.value if isinstance(cursor.node, ScalarNode) else None
    if fact.name == "exit.exception" and isinstance(value, str):
        value = value.rpartition(".")[2]  # as it is read from a traceback
    if value is not None and fact.allows(value):
        return value
    if isinstance(cursor.node, ScalarNode) and value is None:
        cursor.report(
            f"must be {_kind(fact)}, not null; a rule does not match while a fact that it needs is unknown"
        )
    else:
        hint = did_you_mean(str(value), fact.values) if isinstance(value, str) else ""
        cursor.report(f"must be {_kind(fact)}, not {cursor.written}{hint}")
    return None


def _kind(fact: Fact) -> str:
    """Return the values of a fact as messages describe them."""
    match fact.kind:
        case FactKind.TRUTH:
            return "true or false"
        case FactKind.WORD:
            return format_choices(fact.values)
        case FactKind.TEXT | FactKind.WORDS:
            return "text"
        case FactKind.WHOLE | FactKind.WHOLES:
            return f"a whole number{_range(fact)}"
        case FactKind.NUMBER:  # exhaustive
            return f"a number{_range(fact)}"


def _range(fact: Fact) -> str:
    if fact.least is not None and fact.most is not None:
        return f" from {fact.least:g} to {fact.most:g}"
    return f" of at least {fact.least:g}" if fact.least is not None else ""


def parse_known_value(fact: Fact, cursor: Cursor) -> Scalar | tuple[Scalar, ...] | None:
    """Return the value that a case gives to a fact; for a list fact a tuple."""
    return _values(fact, cursor.items()) if fact.kind in LISTS else parse_value(fact, cursor)
