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


TRUE: Final = ("true", "yes", "1")
TRUTHS: Final = (*TRUE, "false", "no", "0")
CLASSES: Final = tuple(each.name for each in DEFAULT_CLASSES)


@dataclass(frozen=True, slots=True)
class Field:
    """One column of a trace: a text, one of some words, or a number of at least ``least``."""

    meaning: str
    default: Cell = None
    required: bool = False
    words: tuple[str, ...] = ()
    least: float | None = None
    most: float = math.inf
    whole: bool = False

    def value(self, given: object) -> Any:  # noqa: ANN401  of the type of the column
        """Return the value of a cell.

        Raises:
            ValueError: it is wrong.
        """
        text = str(given)
        if self.words:
            word = text if self.words is CLASSES else text.lower()
            if word not in self.words:
                known = f"{', '.join(self.words)}{did_you_mean(text, self.words)}"
                raise ValueError(f"{quoted(text)} is none of {known}")
            return word in TRUE if self.words is TRUTHS else word
        if self.least is None:
            return text
        number = _number(text)
        if number is None or number < self.least:
            raise ValueError(f"must be a number of at least {self.least:g}, not {quoted(text)}")
        if self.whole and not number.is_integer():
            raise ValueError(f"must be a whole number, not {quoted(text)}")
        if number > self.most:
            raise ValueError(f"must be {self.most:g} at most, not {quoted(text)}")
        return int(number) if self.whole else number


FIELDS: Final[Mapping[str, Field]] = {
    "job": Field("name of the job, for after; its line number by default", ""),
    "user": Field("who submitted it", required=True),
    "submit_s": Field("seconds from any beginning", required=True, least=0.0),
    "duration_s": Field("how long it really runs", required=True, least=0.001),
    "gpus": Field("devices", required=True, least=0.0, whole=True),
    "limit_s": Field("time limit; empty: none", least=0.001),
    "group": Field("group of the user", ""),
    "class": Field("priority class: idle, normal, urgent", "normal", words=CLASSES),
    "priority": Field("among the user's own jobs", 50, least=0.0, most=100, whole=True),
    "cpus": Field("cores", 1.0, least=0.0),
    "memory_gib": Field("host memory", 0.0, least=0.0),
    "device_gib": Field("least memory of each device", 0.0, least=0.0),
    "linked": Field("true: all on one island", "false", words=TRUTHS),
    "after": Field("jobs that must have succeeded, with spaces between", ""),
    "sweep": Field("sweep that it belongs to", ""),
    "at_a_time": Field("jobs of the sweep that may run together", least=1.0, whole=True),
    "saves": Field("true: it saves when it is asked to stop", "true", words=TRUTHS),
    "save_s": Field("how long that takes; empty: it works on for the grace period", least=0.0),
    "restart_s": Field("from a new start to where it was", RESTART_S, least=0.0),
    "checkpoint_every_s": Field("of a job that does not save when asked; empty: it never saves", least=1.0),
    "progress": Field("true: it reports its steps, so its end is known", "false", words=TRUTHS),
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
    at, count, cells = Position(number, 1), len(problems), dict[str, Any]()
    problems += [Problem(at, str(name), "unknown field") for name in row if name not in FIELDS]
    for name, each in FIELDS.items():
        given = each.default if row.get(name) is None else row[name]
        if given is None and each.required:
            problems.append(Problem(at, name, "is required"))
        try:
            cells[name] = None if given is None else each.value(given)
        except ValueError as error:
            problems.append(Problem(at, name, str(error)))
    if len(problems) > count:
        return None
    needs = ResourceRequest(
        cpus=cells["cpus"],
        memory_bytes=int(cells["memory_gib"] * GIB),
        gpus=cells["gpus"],
        device_bytes=int(cells["device_gib"] * GIB),
        linked=cells["linked"],
    )
    return Arrival(
        job_id=cells["job"] or f"line-{number}",
        owner=cells["user"],
        request=shapes.setdefault(needs, needs),
        submitted_s=cells["submit_s"],
        duration_s=cells["duration_s"],
        time_limit_s=cells["limit_s"],
        group=cells["group"],
        priority_class=cells["class"],
        priority=cells["priority"],
        dependencies=tuple(Dependency(each, DependencyCondition.OK) for each in cells["after"].split()),
        array=JobArray(cells["sweep"], cells["at_a_time"]) if cells["sweep"] else None,
        saves=cells["saves"],
        save_s=cells["save_s"],
        restart_s=cells["restart_s"],
        checkpoint_every_s=cells["checkpoint_every_s"],
        progress=cells["progress"],
    )


def _number(text: str) -> float | None:
    """Return a finite number; None if a text is none."""
    try:
        return number if math.isfinite(number := float(text)) else None
    except ValueError:
        return None


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
