"""Finds rules that can never match: an earlier rule matches first, or the condition contradicts itself.

Every reported rule is unreachable. Not every unreachable rule is found.
"""

import math
import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from runner.core.policy.catalog import FACTS
from runner.core.policy.conditions import Comparison, Condition, Not, Operator, split_conjuncts
from runner.core.policy.facts import LISTS, Scalar
from runner.core.policy.model import OnExhausted, Rule


def find_unreachable_rules(rules: Sequence[Rule]) -> Iterator[tuple[Rule, Rule]]:
    """Yield each unreachable rule with the earlier rule that matches whenever it does.

    The cost grows with the number of comparisons: a rule is compared only with those that share a rare one.
    """
    numbers: dict[Condition, int] = {}  # of equal parts
    wanted = [
        frozenset(numbers.setdefault(part, len(numbers)) for part in split_conjuncts(rule.when))
        for rule in rules
    ]
    counts = Counter(chain.from_iterable(wanted))
    always: int | None = None
    by_part: dict[int, list[int]] = defaultdict(list)  # deciding rules, each under its rarest part
    for index, (rule, parts) in enumerate(zip(rules, wanted, strict=True)):
        covering = (each for part in parts for each in by_part.get(part, ()) if wanted[each] <= parts)
        earlier = always if always is not None else min(covering, default=None)
        if earlier is not None and not rule.only_advises:
            yield rule, rules[earlier]
        # Whatever a covered rule covers is covered by the earlier rule, too.
        if earlier is None and _keeps(rule):
            if parts:
                by_part[min(parts, key=lambda part: (counts[part], part))].append(index)
            else:
                always = index


def _keeps(rule: Rule) -> bool:
    """Return True if a rule decides whenever it matches: it neither only advises nor passes on."""
    return not rule.only_advises and rule.spent is not OnExhausted.NEXT


def find_contradiction(condition: Condition) -> str | None:
    """Return a fact whose comparisons contradict each other; None if none is found."""
    wanted: dict[str, list[Comparison]] = {}
    excluded: dict[str, set[Scalar]] = defaultdict(set)
    for part in split_conjuncts(condition):
        said = part.part if isinstance(part, Not) else part
        if not isinstance(said, Comparison) or FACTS[said.fact].kind in LISTS:
            continue
        if said is part:
            wanted.setdefault(said.fact, []).append(said)
        elif said.operator not in _HOLDS:
            excluded[said.fact] |= _choices(said)
    return next(
        (fact for fact, parts in sorted(wanted.items()) if not _possible(parts, excluded[fact])), None
    )


_HOLDS: Final[Mapping[Operator, Callable[[Any, Any], bool]]] = {
    Operator.LT: operator.lt,
    Operator.LE: operator.le,
    Operator.GE: operator.ge,
    Operator.GT: operator.gt,
}
"""The comparisons with a bound; all others name values."""


def _possible(parts: Sequence[Comparison], excluded: set[Scalar]) -> bool:
    """Return True if a value satisfies all comparisons and is none of the excluded ones."""
    bounds: list[tuple[Operator, Any]] = [
        (part.operator, part.operand) for part in parts if part.operator in _HOLDS
    ]
    named = [_choices(part) for part in parts if part.operator not in _HOLDS]
    if named:
        left = set.intersection(*named) - excluded
        return any(all(_HOLDS[sign](value, bound) for sign, bound in bounds) for value in left)
    lower = [(bound, sign is Operator.GT) for sign, bound in bounds if sign in {Operator.GE, Operator.GT}]
    upper = [(bound, sign is Operator.LE) for sign, bound in bounds if sign in {Operator.LE, Operator.LT}]
    least, is_above = max(lower, default=(-math.inf, False))
    most, is_in = min(upper, default=(math.inf, True))
    return bool(least < most or (least == most and is_in and not is_above))


def _choices(part: Comparison) -> set[Scalar]:
    return set(part.operand if isinstance(part.operand, tuple) else (part.operand,))
