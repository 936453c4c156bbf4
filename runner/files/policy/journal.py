"""Journals of decisions: one JSON object per line, in the form that is kept beside the attempts."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from runner.base.errors import UsageError
from runner.base.textfile import FileError, Position, Problem, one_line, quoted, read_lines, standard_input
from runner.core.policy.catalog import validate_facts
from runner.core.policy.explain import VERSION, Record, explain_record, read_situation
from runner.core.policy.facts import DecisionPoint
from runner.core.policy.model import Policy
from runner.core.policy.replay import Replay, ReplayStep, replay

STANDARD_INPUT: Final = Path("-")

MOST_NAMED: Final = 5
"""The number of jobs that a message lists."""

_NEEDED = (
    "job",
    "attempt",
    "moment",
    "at",
    "started",
    "effective",
    "policy",
    "facts",
    "verdict",
    "rules",
    "used",
)


def read_journals(paths: Iterable[Path]) -> tuple[Record, ...]:
    """Return the records of journals; ``-`` is standard input; may raise FileError."""
    return tuple(record for path in paths for record in parse_journal(_text(path), path))


def _text(path: Path) -> str:
    if path != STANDARD_INPUT:
        return read_lines(path, "journal")
    try:
        return standard_input().read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(path, [Problem(None, "", "is not UTF-8 text")]) from error


def parse_journal(text: str, path: Path) -> tuple[Record, ...]:
    """Return the records in the text of a journal.

    Raises:
        FileError: with every line that is not a record.
    """
    records: list[Record] = []
    problems: list[Problem] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            records.append(_record(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            problems.append(
                Problem(Position(number, 1), "", f"is not a record of a decision: {_said(error)}")
            )
    if problems:
        raise FileError(path, problems)
    return tuple(records)


def select_records(records: Iterable[Record], job: str, attempt: int | None) -> tuple[Record, ...]:
    """Return the decisions about an attempt of a job, by default the last one; may raise UsageError."""
    records = tuple(records)
    own = [kept for kept in records if kept["job"] == job]
    if not own:
        jobs = list(dict.fromkeys(str(kept["job"]) for kept in records))
        most = f"{', '.join(jobs[:MOST_NAMED])}{', ...' if len(jobs) > MOST_NAMED else ''}"
        raise UsageError(
            f"job {quoted(job)}: the journal has no decision about it; "
            f"it has decisions about {most or 'no job'}"
        )
    number = max(kept["attempt"] for kept in own) if attempt is None else attempt
    found = tuple(kept for kept in own if kept["attempt"] == number)
    if not found:
        there = ", ".join(str(n) for n in sorted({kept["attempt"] for kept in own}))
        raise UsageError(f"job {quoted(job)}: no decision about attempt {number}; there are {there}")
    return found


def explain_attempt(records: Iterable[Record], job: str, attempt: int | None) -> str:
    """Return the decisions about an attempt of a job as text; may raise UsageError."""
    return "\n\n".join("\n".join(explain_record(kept)) for kept in select_records(records, job, attempt))


def simulate_journal(policy: Policy, records: Iterable[Record]) -> tuple[Replay, ...]:
    """Replay every job of a journal with another policy, in the order of their first records."""
    jobs: dict[str, list[Record]] = {}
    for kept in records:
        if kept["moment"] == DecisionPoint.EXIT:
            jobs.setdefault(kept["job"], []).append(kept)
    return tuple(replay(job, policy, own) for job, own in jobs.items())


def replay_to_json(simulated: Replay) -> dict[str, Any]:
    """Return a replay as JSON values."""
    recorded, still = simulated.unsaved_s
    return {
        "job": simulated.job,
        "attempts": len(simulated.steps),
        "attempts_made": simulated.attempts_made,
        "lost_s": recorded,
        "lost_s_made": still,
        "goes_on": simulated.continues,
        "turns": [_turn(turn) for turn in simulated.steps],
    }


def _turn(turn: ReplayStep) -> dict[str, Any]:
    verdict = turn.action
    other = {"do": str(verdict.verb), "rule": verdict.rule, "reason": verdict.reason} if verdict else None
    return {
        "attempt": turn.attempt,
        "recorded": turn.recorded,
        "reason": turn.reason,
        "lost_s": turn.unsaved_s,
        "verdict": other,
        "certain": turn.certain,
    }


def _record(kept: Record) -> Record:
    """Return a record after checking that it is complete and valid."""
    if kept["record"] != VERSION:
        raise ValueError(f"version {kept['record']!r}, not {VERSION}")
    missing = [name for name in _NEEDED if name not in kept]
    if missing:
        raise ValueError(f"{missing[0]!r} is missing")
    facts = validate_facts(kept["facts"], DecisionPoint(kept["moment"]))
    for name, value in kept["facts"].items():
        if name not in facts:  # an attempt may report unknown facts, a journal may not
            raise ValueError(f"{name} cannot be {value!r}")
    read_situation(kept)
    "".join(explain_record(kept))
    return kept


def _said(error: Exception) -> str:
    return one_line(f"{error} is missing" if isinstance(error, KeyError) else str(error))
