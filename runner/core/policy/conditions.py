"""Conditions over facts in three-valued logic, with the facts that decided.

The logic is Kleene's: a comparison with an unknown fact is unknown, ``all`` is false if one part is false,
``any`` is true if one part is true, and ``not unknown`` is unknown.  So no condition but the empty one is
true without a known fact.
"""

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias

from runner.core.policy.facts import Facts, FactValue, Scalar

Truth: TypeAlias = bool | None
"""None is unknown."""


class Operator(StrEnum):
    """The comparison of a fact with a value."""

    IS = "is"
    IN = "in"
    LT = "lt"
    LE = "le"
    GE = "ge"
    GT = "gt"


SIGNS: Final[Mapping[Operator, str]] = {
    Operator.IS: "",
    Operator.IN: "one of ",
    Operator.LT: "< ",
    Operator.LE: "<= ",
    Operator.GE: ">= ",
    Operator.GT: "> ",
}

_ORDER: Final[Mapping[Operator, Callable[[Any, Any], bool]]] = {
    Operator.LT: operator.lt,
    Operator.LE: operator.le,
    Operator.GE: operator.ge,
    Operator.GT: operator.gt,
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of one fact with one value, or with several for ``in``.

    A list fact ``is`` a value if it contains the value, and is ``in`` several values if it contains one of
    them.
    """

    fact: str
    operator: Operator
    operand: FactValue
    wanted: str = field(init=False, repr=False, compare=False)
    """The required value as text."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "wanted", SIGNS[self.operator] + format_value(self.operand))


@dataclass(frozen=True, slots=True)
class AllOf:
    """True if every part is true; always true without parts."""

    parts: tuple["Condition", ...] = ()


@dataclass(frozen=True, slots=True)
class AnyOf:
    """True if one part is true; never true without parts."""

    parts: tuple["Condition", ...]


@dataclass(frozen=True, slots=True)
class Not:
    """True if its part is false."""

    part: "Condition"


Condition: TypeAlias = Comparison | AllOf | AnyOf | Not

ALWAYS: Final = AllOf()


class FactUse(NamedTuple):
    """A fact that decided: the comparison and the value.  It is a tuple, because a decision makes dozens."""

    comparison: Comparison
    value: FactValue | None
    negated: bool = False

    @property
    def text(self) -> str:
        """The fact as text: ``phase = eval (wanted: train)``."""
        found = "is unknown" if self.value is None else f"= {format_value(self.value)}"
        negation = "not " if self.negated else ""
        return f"{self.comparison.fact} {found} (wanted: {negation}{self.comparison.wanted})"


class ConditionResult(NamedTuple):
    """The truth of a condition and the facts that decided it."""

    truth: Truth
    fact_uses: tuple[FactUse, ...] = ()


def evaluate(condition: Condition, facts: Facts) -> ConditionResult:
    """Return the truth of a condition for some facts, and the facts that decided it."""
    match condition:
        case Comparison():
            value = facts.get(condition.fact)
            return ConditionResult(_compare(condition, value), (FactUse(condition, value),))
        case AllOf(parts):
            return _join(parts, facts, decisive=False)
        case AnyOf(parts):
            return _join(parts, facts, decisive=True)
        case Not(part):  # exhaustive
            found = evaluate(part, facts)
            turned = tuple(reading._replace(negated=not reading.negated) for reading in found.fact_uses)
            return ConditionResult(None if found.truth is None else not found.truth, turned)


def _join(parts: tuple[Condition, ...], facts: Facts, *, decisive: bool) -> ConditionResult:
    """Return the truth of several parts; a part with the ``decisive`` truth decides alone."""
    settled: list[FactUse] = []
    unknown: ConditionResult | None = None
    for part in parts:
        found = evaluate(part, facts)
        if found.truth is decisive:
            return found
        if found.truth is None:
            unknown = unknown or found
        else:
            settled.extend(found.fact_uses)
    return unknown or ConditionResult(not decisive, tuple(settled))


def _compare(test: Comparison, value: FactValue | None) -> Truth:
    if value is None:
        return None
    if isinstance(value, tuple):
        wanted = test.operand if isinstance(test.operand, tuple) else (test.operand,)
        return any(entry in wanted for entry in value)
    if test.operator is Operator.IS:
        return value == test.operand
    if isinstance(test.operand, tuple):
        return value in test.operand
    return _ORDER[test.operator](value, test.operand)


def comparisons(condition: Condition) -> Iterator[Comparison]:
    """Yield every comparison in a condition."""
    match condition:
        case Comparison():
            yield condition
        case AllOf(parts) | AnyOf(parts):
            for part in parts:
                yield from comparisons(part)
        case Not(part):  # exhaustive
            yield from comparisons(part)


def split_conjuncts(condition: Condition) -> frozenset[Condition]:
    """Return the parts that must all be true for a condition to be true; nested ``all`` is flattened."""
    if not isinstance(condition, AllOf):
        return frozenset({condition})
    return frozenset().union(*map(split_conjuncts, condition.parts))


def format_value(value: FactValue) -> str:
    """Return a value as a policy file writes it."""
    if isinstance(value, tuple):
        return ", ".join(map(_word, value)) or "nothing"
    return _word(value)


def _word(value: Scalar) -> str:
    match value:
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.4g}"
        case _:
            return str(value)
