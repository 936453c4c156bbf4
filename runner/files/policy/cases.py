"""Test cases of a policy that users write: the facts, and the decision that is expected.

A case may list earlier attempts. They go through the same policy, so that tries and ceilings are consumed
as in a real job.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from runner.base.textfile import Problem, quoted, read_source
from runner.core.policy.adjustments import keeps_settings
from runner.core.policy.decision import Guard, PolicyDecision, Situation
from runner.core.policy.evaluate import decide
from runner.core.policy.facts import DecisionPoint, Facts, FactValue
from runner.core.policy.history import History
from runner.core.policy.model import STARTS, Policy, Setting, Verb
from runner.files.cursor import Cursor, read_field, read_whole
from runner.files.policy.conditions import find_fact, parse_known_value
from runner.files.validation import did_you_mean

HOUR: Final = timedelta(hours=1)
BEGIN: Final = datetime(2030, 1, 1, tzinfo=UTC)
MAX_TIMES: Final = 1000

_SITUATION: Final = ("at", "facts", "lasted")
_EXPECTED: Final = ("do", "rule", "nearly", "with", "from", "charged", "limit", "advice", "says")


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The situation of one decision, repeated ``times`` times."""

    moment: DecisionPoint
    facts: Facts
    lasted: timedelta = HOUR
    times: int = 1


@dataclass(frozen=True, slots=True)
class Case:
    """Earlier situations, the present one and the expected decision; only given expectations are compared."""

    name: str
    before: tuple[CaseResult, ...]
    now: CaseResult
    expected: dict[str, str]
    cursor: Cursor = field(compare=False)

    def problem(self, fact: str) -> Problem:
        """Return a problem of the decision, at the position of the case."""
        return Problem(self.cursor.key_at, self.name, fact)


def read_cases(path: Path) -> tuple[Case, ...]:
    """Return the cases in a file; may raise FileError."""
    return parse_cases(read_source(path, "file of cases"), path)


def parse_cases(raw: bytes, path: Path) -> tuple[Case, ...]:
    """Return the cases in a YAML text.

    Raises:
        FileError: with every problem at once.
    """
    return read_whole(raw, path, _cases)


def run_case(policy: Policy, case: Case) -> Iterator[str]:
    """Yield the differences of the verdict from the expected one."""
    decision = decide_case(policy, case)
    found = _found(decision)
    for name, wanted in case.expected.items():
        if name == "says":
            if wanted not in found["says"]:
                yield f"should say {quoted(wanted)}, but says {quoted(found['says'])}"
        elif name == "nearly":
            yield from _not_nearly(decision, wanted)
        elif found[name] != wanted:
            yield f"{name} should be {wanted}, but is {found[name]}: {decision.action.reason}"


def _not_nearly(decision: PolicyDecision, name: str) -> Iterator[str]:
    """Yield the reasons why a rule that should nearly have answered did answer, or could not."""
    weighed = {each.rule: each for each in decision.rule_results}
    if name not in weighed:
        yield f"there is no rule {quoted(name)}{did_you_mean(name, weighed)}"
    elif weighed[name].truth:
        yield f"rule {quoted(name)} should not match, but does"


def decide_case(policy: Policy, case: Case) -> PolicyDecision:
    """Return the decision of a policy about a case, with the attempts before it."""
    history, clock, spec = History(), BEGIN, 0
    for told in (each for each in case.before for _ in range(each.times)):
        decision = _ask(policy, told, history, clock, spec)
        history = decision.history
        clock += told.lasted + decision.action.delay if told.moment is DecisionPoint.EXIT else timedelta()
        spec += any(not keeps_settings(each) for each in decision.action.adjust)
    return _ask(policy, case.now, history, clock, spec)


def _ask(policy: Policy, told: CaseResult, history: History, clock: datetime, spec: int) -> PolicyDecision:
    situation = Situation(told.facts, clock + told.lasted, clock, f"spec-{spec}", "case")
    return decide(policy, told.moment, history, situation)


def _found(decision: PolicyDecision) -> dict[str, str]:
    verdict = decision.action
    starts = verdict.verb in STARTS
    step = verdict.start.step
    source = str(verdict.start.source) if step is None else f"step {step}"
    return {
        "do": str(verdict.verb),
        "rule": verdict.rule or "none",
        "with": _turned({str(each.knob): each.turn for each in verdict.adjust}),
        "from": source if starts else "nothing",
        "charged": str(verdict.charged).lower(),
        "limit": str(verdict.limit or "none"),
        "advice": ", ".join(each.rule for each in decision.advice) or "none",
        "says": verdict.reason,
    }


def _turned(adjustments: dict[str, str]) -> str:
    return ", ".join(f"{knob} {turn}" for knob, turn in sorted(adjustments.items())) or "nothing"


# --- Reading ------------------------------------------------------------------------------------------


def _cases(top: Cursor) -> tuple[Case, ...]:
    here = top.fields(("cases",))
    cases = [_case(item) for item in here["cases"].items()] if "cases" in here else []
    if not cases:
        top.problems.append(Problem(top.key_at, "cases", "is required: a list of cases"))
    return tuple(cases)


def _case(cursor: Cursor) -> Case:
    here = cursor.fields(("name", *_SITUATION, "before", "expect"))
    for missing in [each for each in ("name", "facts", "expect") if each not in here]:
        cursor.report(f"{missing} is required")
    name = read_field(here, "name", Cursor.text, "")
    before = here["before"].items() if "before" in here else []
    told = tuple(_situation(each.fields((*_SITUATION, "times"))) for each in before)
    expected = _expected(here["expect"]) if "expect" in here else {}
    return Case(name, told, _situation(here), expected, cursor)


def _situation(here: dict[str, Cursor]) -> CaseResult:
    moment = DecisionPoint(read_field(here, "at", lambda each: each.word(DecisionPoint), "exit"))
    return CaseResult(
        moment,
        _facts(here["facts"], moment) if "facts" in here else {},
        read_field(here, "lasted", lambda each: each.duration(timedelta(), timedelta(days=3660)), HOUR),
        read_field(here, "times", lambda each: each.whole(1, MAX_TIMES), 1),
    )


def _facts(cursor: Cursor, moment: DecisionPoint) -> dict[str, FactValue]:
    facts: dict[str, FactValue] = {}
    for name, entry in cursor.entries().items():
        fact = find_fact(name, entry, moment, '; write "at: {}" beside "facts"')
        if fact and fact.derived:
            entry.report_at_key('is computed from earlier attempts; describe them in "before"')
        value = parse_known_value(fact, entry) if fact else None
        if value is not None:
            facts[name] = value
    return facts


def _expected(cursor: Cursor) -> dict[str, str]:
    here = cursor.fields(_EXPECTED)
    if "do" not in here:
        cursor.report("do is required: the verb that should follow")
    wanted = {name: _wanted(name, entry) for name, entry in here.items()}
    return {name: text for name, text in wanted.items() if text is not None}


def _wanted(name: str, cursor: Cursor) -> str | None:
    match name:
        case "do":
            return cursor.word(Verb)
        case "with":
            entries = cursor.fields(Setting, kind="adjustment")
            return _turned({knob: entry.text() or "" for knob, entry in entries.items()})
        case "charged":
            charged = cursor.truth()
            return None if charged is None else str(charged).lower()
        case "limit":
            return cursor.word([*Guard, "none"])
        case "advice":
            return ", ".join(item.text() or "" for item in cursor.items()) or "none"
        case _:
            return cursor.text(500)
