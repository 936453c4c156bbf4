"""Traces for the simulator: the jobs with their submission times, resource requests and running times.

A trace is CSV with a head, or JSON Lines, one job per line, in any order.  ``FIELDS`` is the
whole format; docs/explanation/simulation.md explains it.
"""

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from runner.base.errors import UsageError
from runner.base.textfile import FileError, Position, Problem, open_target, quoted, read_lines
from runner.core.scheduler.config import DEFAULT_CLASSES
from runner.core.scheduler.dependencies import CircularDependency, check_cycles
from runner.core.scheduler.simulator import Arrival
from runner.core.scheduler.snapshot import (
    GIB,
    RESTART_S,
    Dependency,
    DependencyCondition,
    JobArray,
    ResourceRequest,
)
from runner.files.validation import did_you_mean

Cell: TypeAlias = str | float | bool | None


@dataclass(frozen=True, slots=True)
class Field:
    """One column of a trace."""

    meaning: str
    default: Cell = None
    required: bool = False


FIELDS: Final[Mapping[str, Field]] = {
    "job": Field("name of the job, for after; its line number by default", ""),
    "user": Field("who submitted it", required=True),
    "submit_s": Field("seconds from any beginning", required=True),
    "duration_s": Field("how long it really runs", required=True),
    "gpus": Field("devices", required=True),
    "limit_s": Field("time limit; empty: none", None),
    "group": Field("group of the user", ""),
    "class": Field("priority class: idle, normal, urgent", "normal"),
    "priority": Field("among the user's own jobs", 50),
    "cpus": Field("cores", 1.0),
    "memory_gib": Field("host memory", 0.0),
    "device_gib": Field("least memory of each device", 0.0),
    "linked": Field("true: all on one island", False),  # noqa: FBT003  the default of a column
    "after": Field("jobs that must have succeeded, with spaces between", ""),
    "sweep": Field("sweep that it belongs to", ""),
    "at_a_time": Field("jobs of the sweep that may run together", None),
    "saves": Field("true: it saves when it is asked to stop", True),  # noqa: FBT003  the same
    "save_s": Field("how long that takes; empty: it works on for the grace period", None),
    "restart_s": Field("from a new start to where it was", RESTART_S),
    "checkpoint_every_s": Field("of a job that does not save when asked; empty: it never saves", None),
    "progress": Field("true: it reports its steps, so its end is known", False),  # noqa: FBT003  the same
}

REQUIRED: Final = frozenset(name for name, each in FIELDS.items() if each.required)

# --- reading


def read(path: Path) -> tuple[Arrival, ...]:
    """Return the jobs of a trace file by time of submission.

    Raises:
        FileError: with every problem at once.
    """
    rows = list(_rows(path))
    if rows and all(_foreign(row) for _, row in rows):
        raise _no_trace(path, rows[0][0], next(name for name in rows[0][1] if name not in FIELDS))
    problems: list[Problem] = []
    shapes: dict[ResourceRequest, ResourceRequest] = {}
    jobs = [_arrival(number, row, problems, shapes) for number, row in rows]
    found = [job for job in jobs if job is not None]
    problems += () if problems else _dangling(rows, found)
    if problems or not found:
        raise FileError(path, problems or [Problem(None, "", "holds no job")])
    return tuple(sorted(found, key=lambda job: (job.submitted_s, job.job_id)))


def _foreign(row: Mapping[str, Any]) -> bool:
    """Return True if a line is of something else: what it has is unknown, and what it needs is missing."""
    return not REQUIRED.issubset(row) and not row.keys() <= FIELDS.keys()


def _no_trace(path: Path, line: int, name: str) -> FileError:
    where = "docs/explanation/simulation.md has the fields"
    fact = f"is not a trace: line {line} has unknown field {quoted(name)}; {where}"
    return FileError(path, [Problem(None, "", fact)])


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the lines of a trace with their numbers."""
    text = read_lines(path, "trace")
    yield from _json_rows(path, text) if text.lstrip().startswith("{") else _csv_rows(path, text)


def _json_rows(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise FileError(path, [Problem(Position(number, 1), "", "is not a JSON object")]) from error
        if not isinstance(row, dict):
            raise FileError(path, [Problem(Position(number, 1), "", "is not a JSON object")])
        yield number, row


def _csv_rows(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text, newline=None), restkey="more cells than columns")
    unknown = [name for name in reader.fieldnames or () if name not in FIELDS]
    missing = [name for name in FIELDS if name in REQUIRED and name not in (reader.fieldnames or ())]
    if unknown and len(missing) == len(REQUIRED):
        raise _no_trace(path, 1, unknown[0])
    problems = [Problem(Position(1, 1), name, "unknown column") for name in unknown]
    problems += [Problem(Position(1, 1), name, "column is missing") for name in missing]
    if problems:
        raise FileError(path, problems)
    for row in reader:
        yield reader.line_num, {key: value for key, value in row.items() if value not in ("", None)}


def _arrival(
    number: int,
    row: Mapping[str, Any],
    problems: list[Problem],
    shapes: dict[ResourceRequest, ResourceRequest],
) -> Arrival | None:
    """Return the job of one line; None if it is wrong, with what is wrong noted down."""
    wrong = list(_wrong(number, row))
    problems += wrong
    if wrong:
        return None
    cells = {name: row.get(name, each.default) for name, each in FIELDS.items()}
    needs = ResourceRequest(
        cpus=float(cells["cpus"]),
        memory_bytes=int(float(cells["memory_gib"]) * GIB),
        gpus=int(float(cells["gpus"])),
        device_bytes=int(float(cells["device_gib"]) * GIB),
        linked=str(cells["linked"]).lower() in _TRUE,
    )
    at_a_time, sweep = cells["at_a_time"], str(cells["sweep"])
    return Arrival(
        job_id=str(cells["job"]) or f"line-{number}",
        owner=str(cells["user"]),
        request=shapes.setdefault(needs, needs),
        submitted_s=float(cells["submit_s"]),
        duration_s=float(cells["duration_s"]),
        time_limit_s=None if cells["limit_s"] is None else float(cells["limit_s"]),
        group=str(cells["group"]),
        priority_class=str(cells["class"]),
        priority=int(float(cells["priority"])),
        dependencies=tuple(Dependency(each, DependencyCondition.OK) for each in str(cells["after"]).split()),
        array=JobArray(sweep, None if at_a_time is None else int(float(at_a_time))) if sweep else None,
        saves=str(cells["saves"]).lower() in _TRUE,
        save_s=None if cells["save_s"] is None else float(cells["save_s"]),
        restart_s=float(cells["restart_s"]),
        checkpoint_every_s=None
        if cells["checkpoint_every_s"] is None
        else float(cells["checkpoint_every_s"]),
        progress=str(cells["progress"]).lower() in _TRUE,
    )


_NUMBERS: Final = {
    "submit_s": 0.0, "duration_s": 0.001, "gpus": 0.0, "limit_s": 0.001, "priority": 0.0, "cpus": 0.0,
    "memory_gib": 0.0, "device_gib": 0.0, "at_a_time": 1.0, "save_s": 0.0, "restart_s": 0.0,
    "checkpoint_every_s": 1.0,
}  # fmt: skip


_WHOLE: Final = frozenset({"gpus", "priority", "at_a_time"})
_TRUE: Final = ("true", "yes", "1")
_WORDS: Final = {
    "class": tuple(each.name for each in DEFAULT_CLASSES),
    "linked": (*_TRUE, "false", "no", "0"),
    "saves": (*_TRUE, "false", "no", "0"),
    "progress": (*_TRUE, "false", "no", "0"),
}

MOST_URGENT: Final = 100
"""The highest priority among one's own jobs."""


def _wrong(number: int, row: Mapping[str, Any]) -> Iterator[Problem]:
    at = Position(number, 1)
    for name in row:
        if name not in FIELDS:
            yield Problem(at, str(name), "unknown field")
    for name, each in FIELDS.items():
        if each.required and name not in row:
            yield Problem(at, name, "is required")
    for name, least in _NUMBERS.items():
        value = row.get(name)
        if value is not None and not _number(value, least):
            yield Problem(at, name, f"must be a number of at least {least:g}, not {quoted(str(value))}")

    for name in _WHOLE & row.keys():
        if _number(row[name], _NUMBERS[name]) and not float(str(row[name])).is_integer():
            yield Problem(at, name, f"must be a whole number, not {quoted(str(row[name]))}")
    if _number(row.get("priority"), MOST_URGENT + 1):
        yield Problem(at, "priority", f"must be {MOST_URGENT} at most, not {quoted(str(row['priority']))}")
    for name, words in _WORDS.items():
        word = str(row.get(name, words[0]))
        if (word if name == "class" else word.lower()) not in words:
            fact = f"{quoted(word)} is none of {', '.join(words)}{did_you_mean(word, words)}"
            yield Problem(at, name, fact)


def _number(value: object, least: float) -> bool:
    try:
        return math.isfinite(number := float(str(value))) and number >= least
    except ValueError:
        return False


def _dangling(rows: Iterable[tuple[int, object]], jobs: list[Arrival]) -> Iterator[Problem]:
    known: dict[str, int] = {}
    for (number, _), job in zip(rows, jobs, strict=False):
        if job.job_id in known:
            yield Problem(
                Position(number, 1), "job", f"{quoted(job.job_id)} is on line {known[job.job_id]} too"
            )
        known[job.job_id] = number
    missing = False
    for (number, _), job in zip(rows, jobs, strict=False):
        for after in job.dependencies:
            if after.job_id not in known:
                missing = True
                yield Problem(Position(number, 1), "after", f"there is no job {quoted(after.job_id)}")
    if not missing:
        yield from _cycle(known, jobs)


def _cycle(lines: Mapping[str, int], jobs: list[Arrival]) -> Iterator[Problem]:
    """Yield a problem if jobs wait for one another."""
    try:
        check_cycles({job.job_id: [after.job_id for after in job.dependencies] for job in jobs})
    except CircularDependency as error:
        line = min(lines[name] for name in error.cycle)
        yield Problem(Position(line, 1), "after", str(error))


def write(path: Path, trace: Iterable[Arrival]) -> None:
    """Write a trace as CSV.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        with open_target(path, overwrite=True) as file:
            out = csv.writer(file)
            out.writerow(FIELDS)
            out.writerows(_cells(job) for job in trace)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}; choose another place") from error


def _cells(job: Arrival) -> list[Cell]:
    needs, sweep = job.request, job.array
    return [
        job.job_id,
        job.owner,
        job.submitted_s,
        job.duration_s,
        needs.gpus,
        job.time_limit_s,
        job.group,
        job.priority_class,
        job.priority,
        needs.cpus,
        needs.memory_bytes / GIB,
        needs.device_bytes / GIB,
        str(needs.linked).lower(),
        " ".join(after.job_id for after in job.dependencies),
        sweep.id if sweep else None,
        sweep.max_parallel if sweep else None,
        str(job.saves).lower(),
        job.save_s,
        job.restart_s,
        job.checkpoint_every_s,
        str(job.progress).lower(),
    ]
