"""Rules of a policy file: the verbs that a moment allows, and settings that contradict each other."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from runner.base.textfile import quoted
from runner.core.policy.conditions import ALWAYS, comparisons
from runner.core.policy.facts import Moment
from runner.core.policy.model import (
    DISTURBS,
    STARTS,
    TURNS,
    VERBS,
    Adjustment,
    Knob,
    Mode,
    Rule,
    Source,
    Spent,
    Start,
    Verb,
)
from runner.files.cursor import Spot, asked
from runner.files.policy.conditions import condition
from runner.files.policy.lint import contradiction, hidden

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
NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,40}")
MAX_TRIES: Final = 100


@dataclass(frozen=True, slots=True)
class Written:
    """A rule, and where it stands."""

    rule: Rule
    spot: Spot
    fields: Mapping[str, Spot]


def rules(spot: Spot, moment: Moment) -> list[Written]:
    """Return the rules of a list that are right, and complain about the others."""
    written = [found for item in spot.items() if (found := _rule(item, moment))]
    _complain_of_names(written)
    _complain_of_hidden(written)
    return written


def _rule(spot: Spot, moment: Moment) -> Written | None:
    before = len(spot.problems)
    fields = spot.fields((*ALWAYS_THERE, *AT_EXIT), MEANT)
    for missing in [each for each in ("name", "when", "do") if each not in fields and spot.entries()]:
        spot.complain(f"{missing} is required{_TELL.get(missing, '')}")
    if not {"name", "when", "do"} <= fields.keys():
        return None
    name, verb = _name(fields["name"]), _verb(fields["do"], moment)
    when = condition(fields["when"], moment)
    if name is None or verb is None or when is None:
        return None
    rule = Rule(
        name,
        verb,
        when,
        asked(fields, "from", _start, Start()),
        asked(fields, "with", _adjustments, ()),
        asked(fields, "charge", Spot.truth, otherwise=True),
        asked(fields, "tries", lambda tries: tries.whole(1, MAX_TRIES), None),
        Spent(asked(fields, "spent", lambda spent: spent.word(Spent), "give_up")),
        Mode(asked(fields, "mode", lambda mode: mode.word(Mode), "act")),
        asked(fields, "why", Spot.text, ""),
    )
    written = Written(rule, spot, fields)
    _complain_of_contradictions(written, moment)
    return written if len(spot.problems) == before else None


_TELL: Final = {"when": "; write {} for always"}


def _name(spot: Spot) -> str | None:
    value = spot.value()
    if isinstance(value, str) and NAME.fullmatch(value):
        return value
    spot.complain(f"must be small letters, digits and dashes, the first a letter, not {spot.written}")
    return None


def _verb(spot: Spot, moment: Moment) -> Verb | None:
    value = spot.value()
    meant = VERBS_MEANT.get(value) if isinstance(value, str) else None
    if meant in VERBS[moment]:
        spot.complain(f"there is no verb {spot.written}; did you mean {quoted(str(meant))}?")
        return None
    if isinstance(value, str) and value in set(Verb) - set(VERBS[moment]):
        spot.complain(f"cannot be {spot.written} in on_{moment}: {_WHY_NOT[moment]}")
        return None
    word = spot.word(VERBS[moment], "there is no verb")
    return None if word is None else Verb(word)


_WHY_NOT: Final[Mapping[Moment, str]] = {
    Moment.EXIT: "the attempt has ended; write finish, resume, restart, hold or give_up",
    Moment.WATCH: "a rule about a running attempt can stop or advise; what follows is asked of on_exit",
    Moment.CHANGE: "a change that is offered can be kept away (keep), or taken with resume or restart",
}


def _start(spot: Spot) -> Start | None:
    if isinstance(spot.value(), str):
        word = spot.word([each for each in Source if each is not Source.STEP], "there is no checkpoint")
        return None if word is None else Start(Source(word))
    fields = spot.fields(("step",))
    if not spot.entries():
        spot.complain("names no checkpoint; write {step: N}")
    step = fields["step"].whole(0, 10**12) if "step" in fields else None
    return None if step is None else Start(Source.STEP, step)


def _adjustments(spot: Spot) -> tuple[Adjustment, ...] | None:
    fields = spot.fields(Knob, _KNOBS_MEANT, "adjustment")
    found = [_adjustment(Knob(name), value) for name, value in fields.items()]
    if not spot.entries():
        spot.complain("says nothing; remove the line")
    return tuple(adjustment for adjustment in found if adjustment) or None


_KNOBS_MEANT: Final[Mapping[str, str]] = {
    "batch": "micro_batch",
    "batch_size": "micro_batch",
    "microbatch": "micro_batch",
    "num_workers": "workers",
    "loader_workers": "workers",
    "dtype": "precision",
    "gpu": "device",
}


def _adjustment(knob: Knob, spot: Spot) -> Adjustment | None:
    turn = spot.text(63) if knob is Knob.PROFILE else spot.word((TURNS[knob],))
    return None if turn is None else Adjustment(knob, turn)


# --- What contradicts itself --------------------------------------------------------------------------


def _complain_of_contradictions(written: Written, moment: Moment) -> None:
    for name, fact in _contradictions(written.rule, written.fields, moment):
        written.fields[name].complain_of_key(fact)
    if impossible := contradiction(written.rule.when):
        written.fields["when"].complain_of_key(
            f"can never be true: nothing that {impossible} can be is wanted"
        )


def _contradictions(rule: Rule, fields: Mapping[str, Spot], moment: Moment) -> Iterator[tuple[str, str]]:
    """Yield (field, what is wrong with it) where fields do not go together."""
    here = [name for name in AT_EXIT if name in fields]
    if moment is not Moment.EXIT:
        yield from ((name, f"belongs to on_exit, not to on_{moment}") for name in here)
        if rule.do in DISTURBS and rule.when == ALWAYS and rule.mode is Mode.ACT:
            yield "when", f"would always {rule.do} what runs; name the fact that speaks for it"
        return
    if rule.do not in STARTS:
        yield from ((name, f"says nothing where no attempt follows (do: {rule.do})") for name in here)
        return
    if rule.do is Verb.RESTART and "from" in fields:
        yield "from", "says nothing: a restart begins at step 0"
    if "spent" in fields and rule.tries is None and not rule.adjust:
        yield "spent", 'is never reached: the rule has neither "tries" nor a remedy that can be used up'
    if not rule.charge and not list(comparisons(rule.when)):
        yield "charge", "would make every attempt free; name the fact that excuses it"


def _complain_of_names(written: list[Written]) -> None:
    first: dict[str, Spot] = {}
    for each in written:
        spot = each.fields["name"]
        if each.rule.name in first:
            line = first[each.rule.name].key_at.line
            spot.complain(f"another rule has this name, in line {line}")
        first.setdefault(each.rule.name, spot)


def _complain_of_hidden(written: list[Written]) -> None:
    places = {id(each.rule): each for each in written}
    for rule, earlier in hidden([each.rule for each in written]):
        before = places[id(earlier)]
        reason = "is always true" if earlier.when == ALWAYS else "is true whenever this is"
        place = f"{quoted(earlier.name)} in line {before.spot.key_at.line}"
        places[id(rule)].fields["when"].complain_of_key(f"is never asked: {place} {reason}")
