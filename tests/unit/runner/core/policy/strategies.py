"""Arbitrary facts, conditions and policies, for the property tests."""

from datetime import timedelta
from functools import cache

from hypothesis import strategies as st

from runner.core.policy.catalog import facts_at
from runner.core.policy.conditions import ALWAYS, AllOf, AnyOf, Comparison, Condition, Not, Operator
from runner.core.policy.facts import LISTS, NUMERIC, DecisionPoint, Fact, FactKind, FactValue, Scalar
from runner.core.policy.model import (
    SETTING_CHANGES,
    STARTS,
    VERBS,
    Adjustment,
    Backoff,
    Ceilings,
    Economics,
    Mode,
    OnExhausted,
    Policy,
    RestartRate,
    Rule,
    Setting,
    Source,
    StartPoint,
)

WORDS = st.sampled_from(["a", "b", "some words", "x: y", "true", "12", 'quo"ted'])


def values(fact: Fact) -> st.SearchStrategy[Scalar]:
    least, most = fact.least or 0, fact.most or 10_000
    match fact.kind:
        case FactKind.TRUTH:
            return st.booleans()
        case FactKind.WORD:
            return st.sampled_from([word for word in fact.values if word != "watch/..."])
        case FactKind.TEXT | FactKind.WORDS:
            return WORDS
        case FactKind.WHOLE | FactKind.WHOLES:
            return st.integers(int(least), int(most))
        case FactKind.NUMBER:  # exhaustive
            return st.integers(int(least), int(most)) | st.floats(least, most, allow_nan=False).map(abs)


def known_values(fact: Fact) -> st.SearchStrategy[FactValue]:
    return st.lists(values(fact), max_size=3).map(tuple) if fact.kind in LISTS else values(fact)


@cache
def gathered(moment: DecisionPoint) -> list[Fact]:
    """The facts that somebody has to gather."""
    return [fact for fact in facts_at(moment).values() if not fact.derived]


@cache
def facts(moment: DecisionPoint) -> st.SearchStrategy[dict[str, FactValue]]:
    optional = {fact.name: known_values(fact) for fact in gathered(moment)}
    interesting = (
        *("exit.class", "exit.code", "oom.device", "phase", "progress.advanced", "preempted", "root"),
        *("diff.class", "heartbeat.age_over_limit", "checkpoint.present", "operator.request"),
    )
    few = {name: optional[name] for name in interesting if name in optional}
    one = st.sampled_from(sorted(optional)).flatmap(
        lambda name: st.fixed_dictionaries({name: optional[name]})
    )
    return st.tuples(st.fixed_dictionaries({}, optional=few), one).map(
        lambda both: {**both[0], **both[1]}
    ) | st.just({})


@st.composite
def comparisons(draw: st.DrawFn, moment: DecisionPoint) -> Comparison:
    fact = draw(st.sampled_from(gathered(moment)))
    orders = [Operator.LT, Operator.LE, Operator.GE, Operator.GT] if fact.kind in NUMERIC else []
    sign = draw(st.sampled_from([Operator.IS, Operator.IN, *orders]))
    if sign is Operator.IN:
        return Comparison(fact.name, sign, tuple(draw(st.lists(values(fact), min_size=1, max_size=3))))
    return Comparison(fact.name, sign, draw(values(fact)))


@cache
def conditions(moment: DecisionPoint) -> st.SearchStrategy[Condition]:
    return st.recursive(
        comparisons(moment),
        lambda inner: (
            st.lists(inner, min_size=2, max_size=3).map(lambda parts: AllOf(tuple(parts)))
            | st.lists(inner, min_size=2, max_size=3).map(lambda parts: AnyOf(tuple(parts)))
            | inner.map(Not)
        ),
        max_leaves=4,
    )


ADJUSTMENTS = st.sampled_from(
    [
        *(Adjustment(knob, SETTING_CHANGES[knob]) for knob in SETTING_CHANGES),
        Adjustment(Setting.PROFILE, "fast"),
    ]
)
STARTINGS = st.sampled_from(
    [StartPoint(), StartPoint(Source.PREVIOUS), StartPoint(Source.BEFORE_NAN), StartPoint(Source.STEP, 40)]
)


@st.composite
def rules(draw: st.DrawFn, moment: DecisionPoint, number: int) -> Rule:
    verb = draw(st.sampled_from(VERBS[moment]))
    when = draw(conditions(moment) | st.just(ALWAYS))
    mode = draw(st.sampled_from([Mode.ACT, Mode.ACT, Mode.LOG]))
    if moment is not DecisionPoint.EXIT or verb not in STARTS:
        return Rule(f"rule-{number}", verb, when, mode=mode, why=draw(st.just("") | WORDS))
    adjust = draw(st.lists(ADJUSTMENTS, max_size=2, unique_by=lambda each: each.knob).map(tuple))
    return Rule(
        f"rule-{number}",
        verb,
        when,
        draw(STARTINGS) if verb == "resume" else StartPoint(),
        adjust,
        draw(st.booleans()),
        draw(st.none() | st.integers(1, 4)),
        draw(st.sampled_from(list(OnExhausted))),
        mode,
    )


@st.composite
def rule_lists(draw: st.DrawFn, moment: DecisionPoint) -> tuple[Rule, ...]:
    count = draw(st.integers(0, 3))
    return tuple(draw(rules(moment, number)) for number in range(count))


CEILINGS = st.builds(
    Ceilings,
    attempts=st.integers(1, 8),
    wall=st.none() | st.integers(1, 40).map(lambda hours: timedelta(hours=hours)),
    storm=st.builds(
        RestartRate, st.integers(1, 6), st.integers(1, 600).map(lambda minutes: timedelta(minutes=minutes))
    ),
    no_progress=st.integers(1, 5),
)
BACKOFFS = st.builds(
    Backoff,
    first=st.integers(0, 100).map(lambda s: timedelta(seconds=s)),
    factor=st.floats(1, 10),
    max=st.integers(100, 1000).map(lambda s: timedelta(seconds=s)),
    jitter=st.floats(0, 1),
)


@st.composite
def policies(draw: st.DrawFn, moment: DecisionPoint) -> Policy:
    """Draw a policy with rules for one moment."""
    own = draw(rule_lists(moment))
    sections: dict[DecisionPoint, tuple[Rule, ...]] = {
        each: own if each is moment else () for each in DecisionPoint
    }
    return Policy(
        "any",
        draw(CEILINGS),
        draw(BACKOFFS),
        Economics(
            draw(st.floats(1, 3)),
            timedelta(seconds=draw(st.integers(0, 9))),
            draw(st.integers(0, 3)),
        ),
        sections[DecisionPoint.EXIT],
        sections[DecisionPoint.WATCH],
        sections[DecisionPoint.CHANGE],
    )
