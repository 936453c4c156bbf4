"""Parses the rules of a policy file, and checks that the fields of a rule and the rules fit together."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from runner.base.textfile import quoted
from runner.core.policy.conditions import ALWAYS, comparisons
from runner.core.policy.facts import DecisionPoint
from runner.core.policy.model import (
    DISTURBS,
    MOST_FACTOR,
    SETTING_CHANGES,
    STARTS,
    VERBS,
    Adjustment,
    Mode,
    OnExhausted,
    Rule,
    Setting,
    Source,
    StartPoint,
    Verb,
    memory_factor,
)
from runner.files.cursor import Cursor, read_field
from runner.files.policy.conditions import parse_condition
from runner.files.policy.lint import find_contradiction, find_unreachable_rules

MEANT: Final[Mapping[str, str]] = {
    "if": "when",
    "then": "do",
    "action": "do",
    "verb": "do",
    "adjust": "with",
    "max_tries": "tries",
    "retries": "tries",
    "reason": "why",
    "comment": "why",
}

VERBS_MEANT: Final[Mapping[str, str]] = {
    "kill": "stop",
    "retry": "resume",
    "fail": "give_up",
    "giveup": "give_up",
    "give-up": "give_up",
    "pause": "hold",
    "succeed": "finish",
    "ignore": "keep",
    "continue": "keep",
}

ALWAYS_THERE: Final = ("name", "when", "do", "mode", "why")
AT_EXIT: Final = ("from", "with", "charge", "tries", "spent")
LONGEST_NAME: Final = 41
NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,40}")
MAX_TRIES: Final = 100


@dataclass(frozen=True, slots=True)
class ParsedRules:
    """A rule with the cursors of its fields."""

    rule: Rule
    cursor: Cursor
    fields: Mapping[str, Cursor]


def parse_rules(cursor: Cursor, moment: DecisionPoint) -> list[ParsedRules]:
    """Return the valid rules of a list, and report the problems of the others."""
    written = [found for item in cursor.items() if (found := _rule(item, moment))]
    _check_names(written)
    _check_reachability(written)
    return written


def _rule(cursor: Cursor, moment: DecisionPoint) -> ParsedRules | None:
    before = len(cursor.problems)
    fields = cursor.fields((*ALWAYS_THERE, *AT_EXIT), MEANT)
    for missing in [each for each in ("name", "when", "do") if each not in fields and cursor.entries()]:
        cursor.report(f"{missing} is required{_TELL.get(missing, '')}")
    if not {"name", "when", "do"} <= fields.keys():
        return None
    name, verb = parse_name(fields["name"]), _verb(fields["do"], moment)
    when = parse_condition(fields["when"], moment)
    if name is None or verb is None or when is None:
        return None
    rule = Rule(
        name,
        verb,
        when,
        read_field(fields, "from", _start, StartPoint()),
        read_field(fields, "with", _adjustments, ()),
        read_field(fields, "charge", Cursor.truth, otherwise=True),
        read_field(fields, "tries", lambda tries: tries.whole(1, MAX_TRIES), None),
        OnExhausted(read_field(fields, "spent", lambda spent: spent.word(OnExhausted), "give_up")),
        Mode(read_field(fields, "mode", lambda mode: mode.word(Mode), "act")),
        read_field(fields, "why", Cursor.text, ""),
    )
    written = ParsedRules(rule, cursor, fields)
    _check_contradictions(written, moment)
    return written if len(cursor.problems) == before else None


_TELL: Final = {"when": "; write {} for always"}


def parse_name(cursor: Cursor) -> str | None:
    """Return the name of a policy or a rule."""
    value = cursor.value()
    if isinstance(value, str) and NAME.fullmatch(value):
        return value
    cursor.report(
        f"must be lowercase letters, digits and dashes and begin with a letter, not {cursor.written}"
    )
    return None


def _verb(cursor: Cursor, moment: DecisionPoint) -> Verb | None:
    value = cursor.value()
    meant = VERBS_MEANT.get(value) if isinstance(value, str) else None
    if meant in VERBS[moment]:
        cursor.report(f"there is no verb {cursor.written}; did you mean {quoted(str(meant))}?")
        return None
    if isinstance(value, str) and value in set(Verb) - set(VERBS[moment]):
        cursor.report(f"cannot be {cursor.written} in on_{moment}: {_WHY_NOT[moment]}")
        return None
    word = cursor.word(VERBS[moment], "there is no verb")
    return None if word is None else Verb(word)


_WHY_NOT: Final[Mapping[DecisionPoint, str]] = {
    DecisionPoint.EXIT: "the attempt has ended; write finish, resume, restart, hold or give_up",
    DecisionPoint.WATCH: "a rule about a running attempt can stop or advise; on_exit decides what follows",
    DecisionPoint.CHANGE: "a change is refused with keep, or applied with resume or restart",
}


def _start(cursor: Cursor) -> StartPoint | None:
    if isinstance(cursor.value(), str):
        word = cursor.word([each for each in Source if each is not Source.STEP], "there is no checkpoint")
        return None if word is None else StartPoint(Source(word))
    fields = cursor.fields(("step",))
    if not cursor.entries():
        cursor.report("names no checkpoint; write {step: N}")
    step = fields["step"].whole(0, 10**12) if "step" in fields else None
    return None if step is None else StartPoint(Source.STEP, step)


def _adjustments(cursor: Cursor) -> tuple[Adjustment, ...] | None:
    fields = cursor.fields(Setting, _KNOBS_MEANT, "adjustment")
    found = [_adjustment(Setting(name), value) for name, value in fields.items()]
    if not cursor.entries():
        cursor.report("is empty; remove the line")
    return tuple(adjustment for adjustment in found if adjustment) or None


_KNOBS_MEANT: Final[Mapping[str, str]] = {
    "batch": "micro_batch",
    "batch_size": "micro_batch",
    "microbatch": "micro_batch",
    "num_workers": "workers",
    "loader_workers": "workers",
    "dtype": "precision",
    "gpu": "device",
    "ram": "memory",
}


def _adjustment(knob: Setting, cursor: Cursor) -> Adjustment | None:
    match knob:
        case Setting.PROFILE:
            turn = cursor.text(63)
        case Setting.MEMORY:
            turn = _factor(cursor)
        case _:
            turn = cursor.word((SETTING_CHANGES[knob],))
    return None if turn is None else Adjustment(knob, turn)


def _factor(cursor: Cursor) -> str | None:
    turn = cursor.text(63)
    if turn is not None and memory_factor(turn) is None:
        cursor.report(
            f"must be a factor above 1 and up to {MOST_FACTOR:g}, such as 1.5x, not {cursor.written}"
        )
        return None
    return turn


# --- Consistency ------------------------------------------------------------------------------


def _check_contradictions(written: ParsedRules, moment: DecisionPoint) -> None:
    for name, fact in _contradictions(written.rule, written.fields, moment):
        written.fields[name].report_at_key(fact)
    if impossible := find_contradiction(written.rule.when):
        written.fields["when"].report_at_key(f"can never be true: no value of {impossible} satisfies it")


def _contradictions(
    rule: Rule, fields: Mapping[str, Cursor], moment: DecisionPoint
) -> Iterator[tuple[str, str]]:
    """Yield each field that does not fit the other fields, with the message."""
    here = [name for name in AT_EXIT if name in fields]
    if moment is not DecisionPoint.EXIT:
        yield from ((name, f"belongs to on_exit, not to on_{moment}; remove it") for name in here)
        if rule.do in DISTURBS and rule.when == ALWAYS and rule.mode is Mode.ACT:
            yield "when", f"would {rule.do} every running attempt; add a condition"
        return
    if rule.do not in STARTS:
        yield from (
            (name, f"has no effect because no attempt follows (do: {rule.do}); remove it") for name in here
        )
        return
    if rule.do is Verb.RESTART and "from" in fields:
        yield "from", "has no effect because a restart begins at step 0; remove it"
    if "spent" in fields and rule.tries is None and not rule.adjust:
        fact = 'has no effect because the rule has neither "tries" nor an adjustment that can be exhausted'
        yield "spent", f"{fact}; remove it"
    if not rule.charge and not list(comparisons(rule.when)):
        yield "charge", "would make every attempt free of charge; add a condition"


def _check_names(written: list[ParsedRules]) -> None:
    first: dict[str, Cursor] = {}
    for each in written:
        cursor = each.fields["name"]
        if each.rule.name in first:
            line = first[each.rule.name].key_at.line
            cursor.report(f"the rule in line {line} has the same name; choose another")
        first.setdefault(each.rule.name, cursor)


def _check_reachability(written: list[ParsedRules]) -> None:
    places = {id(each.rule): each for each in written}
    for rule, earlier in find_unreachable_rules([each.rule for each in written]):
        before = places[id(earlier)]
        reason = "is always true" if earlier.when == ALWAYS else "is true whenever this is"
        place = f"{quoted(earlier.name)} in line {before.cursor.key_at.line}"
        places[id(rule)].fields["when"].report_at_key(f"is never asked: {place} {reason}")
