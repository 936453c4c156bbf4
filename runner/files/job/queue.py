"""The models of the sections ``queue``, ``devices``, ``matrix`` and ``schedule``, and their contradictions.

Whether a priority class, a device or another job exists is checked where these are known.
"""

import math
import re
import zoneinfo
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from itertools import product
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from jobs import contract
from runner.base.textfile import quoted, shown
from runner.base.units import format_size
from runner.core.scheduler.snapshot import DependencyCondition, DeviceKind
from runner.files.field_checks import check_pattern
from runner.files.job.cron import MAX_CHARACTERS, NAMED, parse_cron
from runner.files.types import GIB, Memory, Name
from runner.files.validation import did_you_mean, suggest_choice

MAX_COMBINATIONS: Final = 1000
"""The limit of jobs in one matrix; each is validated as a whole file."""

FIRST: Final = datetime(2000, 1, 1, tzinfo=UTC)
LAST: Final = datetime(9001, 1, 1, tzinfo=UTC)
"""Between these, every time zone and every sum with a duration is representable."""

MAX_FIELD: Final = 300
"""Characters of the path of a field that a matrix varies."""

MAX_ZONE: Final = 64
"""Characters of the name of a time zone."""

_capability: Final = check_pattern(r"[0-9]{1,2}\.[0-9]", 'a compute capability such as "8.0"')
_CRON_PART: Final = re.compile(r"[0-9A-Za-z*/,#?-]+")
_reference: Final = check_pattern(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", "the id or the name of a job")
_FIELD: Final = re.compile(r"[a-z][a-z_0-9]*(\.[A-Za-z0-9_][A-Za-z0-9_./-]*)*")
_ZONE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}")


def _instant(value: object) -> object:
    """Return a time with its UTC offset; without one, the time zone would be a guess."""
    moment = _read_moment(value)
    if moment is None:
        raise ValueError(f"must be a time such as 2030-01-31T18:00:00+01:00, not {shown(value)}")
    if moment.tzinfo is None:
        raise ValueError(f"needs an offset from UTC: did you mean {quoted(f'{moment.isoformat()}Z')}?")
    if not FIRST <= moment < LAST:
        raise ValueError(f"must be in the years {FIRST:%Y} to {LAST.year - 1}, not {shown(value)}")
    return moment


def _read_moment(value: object) -> datetime | None:
    if isinstance(value, datetime):
        return value
    try:
        return datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _cron(value: str) -> str:
    """Return a cron expression of five parts, or a name such as @daily."""
    if value in NAMED:
        return value
    if value.startswith("@"):
        hint = suggest_choice(value, NAMED)
        raise ValueError(f"there is no schedule called {quoted(value)}{hint}")
    if len(value) > MAX_CHARACTERS:
        raise ValueError(f"has {len(value)} characters, and the limit is {MAX_CHARACTERS}")
    parts = value.split()
    if len(parts) != 5:
        raise ValueError(
            f"must have five fields (minute hour day month weekday), but {quoted(value)} has {len(parts)}"
        )
    for part in parts:
        if not _CRON_PART.fullmatch(part):
            raise ValueError(f"{quoted(part)} is not valid in a cron expression")
    expression = " ".join(parts)
    parse_cron(expression, "UTC")  # raises what is wrong with it, or that it never comes
    return expression


def _zone(value: str) -> str:
    if len(value) > MAX_ZONE or not _ZONE.fullmatch(value):
        raise ValueError(f"must be a time zone such as Europe/Berlin or UTC, not {quoted(value)}")
    if value != "UTC" and value not in _zones():
        hint = did_you_mean(value, _zones()) or "; write a name such as Europe/Berlin"
        raise ValueError(f"there is no time zone {quoted(value)}{hint}")
    return value


@cache
def _zones() -> frozenset[str]:
    """Return the time zones of this machine; cached, because listing is slow."""
    return frozenset(zoneinfo.available_timezones())


def _model(value: str) -> str:
    """Return a part of the name of a device model."""
    if not 2 <= len(value) <= 64 or not value.isprintable():
        raise ValueError(f'must be part of a model\'s name such as "H100", not {quoted(value)}')
    return value


def _varied(value: str) -> str:
    """Return the dotted path of a field."""
    if len(value) > MAX_FIELD or not _FIELD.fullmatch(value):
        raise ValueError("is not a field that a matrix can vary; write a path such as workload.steps")
    return value


def one_or_more(value: object) -> object:
    """Return a list; a text alone becomes one with this entry."""
    return (value,) if isinstance(value, str) else value


Timestamp = Annotated[datetime, BeforeValidator(_instant), WithJsonSchema({"type": "string"})]
Capability = Annotated[str, AfterValidator(_capability)]
Cron = Annotated[str, AfterValidator(_cron)]
Zone = Annotated[str, AfterValidator(_zone)]
Model = Annotated[str, AfterValidator(_model)]
Models = Annotated[tuple[Model, ...], Field(max_length=16), BeforeValidator(one_or_more)]
Reference = Annotated[str, AfterValidator(_reference)]
VariedField = Annotated[str, AfterValidator(_varied)]
MatrixValue: TypeAlias = bool | int | float | str


class JobDependency(contract.Spec):
    """Another job that must have ended first."""

    job: Reference = Field(description="Its id, or its name: the newest of yours with that name.")
    condition: Literal["ok", "any", "failed"] = Field(
        "ok",
        description="ok: it succeeded; failed: it did not; any: it ended. Of a matrix, all jobs must have"
        " ended; ok: all succeeded; failed: one did not.",
    )

    @property
    def wanted(self) -> DependencyCondition:
        return DependencyCondition(self.condition)


def _dependency(value: object) -> object:
    if isinstance(value, str):
        return {"job": value}
    if isinstance(value, Mapping | JobDependency):
        return value
    hint = f'; put it in quotes: "{value}"' if type(value) is int else ""
    raise ValueError(f"must be the id or the name of a job, or a mapping with it, not {shown(value)}{hint}")


class QueueFields(contract.Spec):
    """Conditions of the start of a job, and its place among others."""

    priority_class: Name = Field("normal", description="A class of the settings; a higher one goes first.")
    after: tuple[Annotated[JobDependency, BeforeValidator(_dependency)], ...] = Field(
        (), max_length=64, description="Jobs that must have ended first; a text is the name or id of one."
    )
    on_unmet: Literal["cancel", "wait"] | None = Field(
        None,
        description="What becomes of the job once one of these has ended otherwise: cancel, at once; wait,"
        " until somebody restarts that one; null: it waits for an hour, and is then cancelled.",
    )
    preemptible: bool = Field(
        default=True,
        description="false: never preempted for jobs with less service; its usage counts 1.5 times.",
    )
    not_before: Timestamp | None = Field(
        None, description="Earliest start, with an offset from UTC; null: now."
    )


class DeviceRequest(contract.Spec):
    """On which devices a job can run; how many it wants is ``resources.gpus``."""

    kind: Literal["whole", "slice", "shared"] = Field(
        "whole", description="Whole GPUs, MIG slices, or a part of the memory of a GPU that others use too."
    )
    model: Models = Field((), description="Part of the model's name, such as H100; of several, any will do.")
    memory: Memory | None = Field(
        None, description="Least memory of each device; of a shared one, the part that this job takes."
    )
    capability: Capability | None = Field(None, description='Least compute capability, such as "8.0".')
    linked: bool = Field(default=False, description="true: all in one NVLink or xGMI link group.")

    @property
    def lent_as(self) -> DeviceKind:
        return DeviceKind(self.kind)

    @property
    def least_capability(self) -> tuple[int, int]:
        major, _, minor = (self.capability or "0.0").partition(".")
        return int(major), int(minor)


def _with_values(written: Any) -> Any:  # noqa: ANN401  whatever a file has
    """Return a matrix as it is written; fields that are not below ``values`` are told as such."""
    others = (
        [each for each in written if each not in Matrix.model_fields] if isinstance(written, dict) else []
    )
    if others and "values" not in written:
        field = others[0] if str(others[0]).isidentifier() else shown(others[0])
        raise ValueError(f"the fields that vary are below values: write values: {{{field}: [...]}}")
    return written


class Matrix(contract.Spec):
    """Many jobs from one file: one for each combination of values."""

    values: dict[VariedField, tuple[MatrixValue, ...]] = Field(
        min_length=1,
        max_length=16,
        description="A list of values for each field, with dotted names; at most 1000 jobs.",
    )
    exclude: tuple[dict[VariedField, MatrixValue], ...] = Field(
        (),
        max_length=1000,
        description="Combinations to leave out; a partial one excludes all that contain it.",
    )
    at_a_time: int | None = Field(
        None, ge=1, le=10_000, description="Jobs that may run at once; null: any number."
    )
    max_failures: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="After so many failed jobs those that have not run are cancelled; null: never.",
    )

    _below_values = model_validator(mode="before")(_with_values)


class Schedule(contract.Spec):
    """Times at which the job is submitted again, on its own."""

    cron: Cron = Field(description="minute hour day month weekday, or @hourly, @daily and the like.")
    timezone: Zone = Field("UTC", description="Time zone of the expression, such as Europe/Berlin.")
    overlap: Literal["skip", "queue", "replace"] = Field(
        "skip",
        description="While the last job is unfinished: skip this time, queue another job, or replace it.",
    )
    missed: Literal["run_once", "skip"] = Field(
        "skip", description="Times at which the daemon was down: skip them, or one job for all."
    )
    until: Timestamp | None = Field(
        None, description="The last time of a submission, with an offset from UTC; null: no end."
    )


def matrix_combinations(matrix: Matrix) -> tuple[Mapping[str, MatrixValue], ...]:
    """Return the combinations of a matrix in order, without the excluded ones."""
    names = list(matrix.values)
    every = (dict(zip(names, values, strict=True)) for values in product(*matrix.values.values()))
    return tuple(each for each in every if not any(_holds(each, left_out) for left_out in matrix.exclude))


def _holds(combination: Mapping[str, MatrixValue], part: Mapping[str, MatrixValue]) -> bool:
    return all(name in combination and combination[name] == value for name, value in part.items())


FieldProblem: TypeAlias = tuple[tuple[str | int, ...], str]
"""The path of a field, and its problem."""


def find_contradictions(
    *,
    gpus: int,
    queueing: QueueFields,
    devices: DeviceRequest,
    matrix: Matrix | None,
    schedule: Schedule | None,
) -> Iterator[FieldProblem]:
    """Yield the contradictions between these sections and the number of GPUs."""
    yield from _impossible_devices(gpus, devices)
    for number, fact in find_repeated_dependencies(queueing).items():
        yield ("queue", "after", number), fact
    if matrix is not None:
        yield from find_matrix_contradictions(matrix)
    if schedule is not None and queueing.not_before is not None:
        yield (
            ("queue", "not_before"),
            "cannot be combined with schedule, which sets the start; remove one of them",
        )


def find_repeated_dependencies(queueing: QueueFields) -> Mapping[int, str]:
    """Return the messages of repeated dependencies by index."""
    jobs = [after.job for after in queueing.after]
    return {
        number: f"{quoted(job)} is listed twice; remove one"
        for number, job in enumerate(jobs)
        if job in jobs[:number]
    }


def _impossible_devices(gpus: int, devices: DeviceRequest) -> Iterator[FieldProblem]:
    if not gpus and devices != DeviceRequest():
        yield ("devices",), "describes GPUs, but the job requests none; set resources.gpus"
    if devices.kind == "shared" and devices.memory is None:
        yield ("devices", "memory"), "is required for shared devices; set the memory that the job may use"
    if devices.kind == "shared" and devices.memory is not None and devices.memory > 1024 * GIB:
        yield ("devices", "memory"), f"{format_size(devices.memory)} is more than any device has; lower it"
    if devices.kind != "whole" and devices.linked:
        yield ("devices", "linked"), f"must be false for {devices.kind} devices, which have no links"


def find_matrix_contradictions(matrix: Matrix) -> Iterator[FieldProblem]:
    """Yield the problems of a matrix that do not depend on the varied fields."""
    count = math.prod(len(values) for values in matrix.values.values())
    for name, values in matrix.values.items():
        if not values:
            yield ("matrix", "values", name), "has no values; add some or remove the field"
        if len({(type(value), value) for value in values}) < len(values):
            yield ("matrix", "values", name), "has a value twice; remove one"
    if count > MAX_COMBINATIONS:
        yield (
            ("matrix", "values"),
            f"makes {count} jobs, and the limit is {MAX_COMBINATIONS}; remove some values",
        )
    for number, part in enumerate(matrix.exclude):
        for name in part.keys() - matrix.values.keys():
            yield (
                ("matrix", "exclude", number, name),
                "is not a field of the matrix; add it to matrix.values or remove it",
            )
        for name, value in part.items():
            if name in matrix.values and value not in matrix.values[name]:
                yield (
                    ("matrix", "exclude", number, name),
                    f"{shown(value)} is not one of its values in the matrix",
                )
    if 0 < count <= MAX_COMBINATIONS and not matrix_combinations(matrix):
        yield ("matrix", "exclude"), "excludes every combination; remove an entry"
