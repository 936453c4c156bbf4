"""Finds rules that can never match: an earlier rule matches first, or the condition contradicts itself.

Every reported rule is unreachable. Not every unreachable rule is found.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from runner.core.policy.catalog import FACTS
from runner.core.policy.conditions import Comparison, Condition, Operator, split_conjuncts
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
    for part in split_conjuncts(condition):
        if isinstance(part, Comparison) and FACTS[part.fact].kind not in LISTS:
            wanted.setdefault(part.fact, []).append(part)
    return next((fact for fact, parts in sorted(wanted.items()) if not _possible(parts)), None)


def _possible(parts: Iterable[Comparison]) -> bool:
    least, most, strict = float("-inf"), float("inf"), False
    named: set[Scalar] | None = None
    for part in parts:
        match part.operator, part.operand:
            case Operator.GE | Operator.GT, int() | float() as bound:
                least, strict = max(least, bound), strict or part.operator is Operator.GT
            case Operator.LE | Operator.LT, int() | float() as bound:
                most, strict = min(most, bound), strict or part.operator is Operator.LT
            case _:
                choices = set(part.operand if isinstance(part.operand, tuple) else (part.operand,))
                named = choices if named is None else named & choices
    if named is not None:
        return any(_within(value, least, most) for value in named)
    return least < most or (least == most and not strict)


def _within(value: Scalar, least: float, most: float) -> bool:
    return isinstance(value, str) or least <= value <= most
