"""Field types of the job file: sizes and durations with their ranges, names and paths.

Each is a pydantic type that parses and checks a value and raises the message for the user.
"""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
)

from runner.base.textfile import quoted
from runner.base.units import format_duration, format_size, parse_duration, parse_size, written_size
from runner.files.field_checks import (
    check_host_path,
    check_job_name,
    check_label_key,
    check_label_value,
    check_mount_target,
    check_policy,
    check_text,
    check_variable_name,
    refuse_number,
)

MIB: Final = 1024**2
GIB: Final = 1024**3
TIB: Final = 1024**4
SECOND: Final = timedelta(seconds=1)

SIZE_PATTERN: Final = r"^ *[0-9]+(\.[0-9]+)? ?[KMGTPkmgtp]?([Ii]?[Bb])? *$"
DURATION_PATTERN: Final = r"^ *([0-9]+(\.[0-9]+)? *(d|h|m|s|ms) *)+$"


class ClosedModel(BaseModel):
    """A section of the settings, or a part of a revision; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _size(least: int, most: int) -> Callable[[object], int]:
    def check(value: object) -> int:
        size = parse_size(value)
        if least <= size <= most:
            return size
        bare = 0 < size < most and str(value).strip() == str(size)
        meant = f"{size}{'GiB' if size < 1024 else 'MiB'}"
        hint = f"; a number without a unit is bytes; did you mean {quoted(meant)}?" if bare else ""
        raise ValueError(f"must be from {format_size(least)} to {format_size(most)}, not {value}{hint}")

    return check


def _duration(least: timedelta, most: timedelta) -> Callable[[object], timedelta]:
    def check(value: object) -> timedelta:
        duration = parse_duration(value)
        if least <= duration <= most:
            return duration
        raise ValueError(f"must be from {format_duration(least)} to {format_duration(most)}, not {value}")

    return check


_SIZES: Final = WithJsonSchema(
    {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": SIZE_PATTERN}]}
)
_DURATIONS: Final = WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN})
_WRITTEN: Final = PlainSerializer(format_duration, return_type=str, when_used="json")

Memory = Annotated[int, PlainValidator(_size(64 * MIB, 64 * TIB)), _SIZES]
BufferMemory = Annotated[int, PlainValidator(_size(MIB, 64 * TIB)), _SIZES]
Shm = Annotated[int, PlainValidator(_size(MIB, 64 * TIB)), _SIZES]


Bytes = Annotated[int, BeforeValidator(written_size)]
"""A size of the settings, in bytes or with a unit as in job files; each has limits of its own."""


def _path(value: object) -> object:
    return Path(value) if isinstance(value, str) else value


WrittenPath = Annotated[Path, BeforeValidator(_path)]
AUTO_INTERVAL: Final = "auto"


def _automatic(check: Callable[[object], timedelta]) -> Callable[[object], "timedelta | Literal['auto']"]:
    """Accept the word ``auto`` besides what ``check`` accepts."""

    def either(value: object) -> "timedelta | Literal['auto']":
        try:
            return "auto" if value == AUTO_INTERVAL else check(value)
        except ValueError as error:
            raise ValueError(str(error).replace("must be a ", "must be auto or a ", 1)) from error

    return either


def _interval_text(value: "timedelta | Literal['auto']") -> str:
    return value if isinstance(value, str) else format_duration(value)


SaveInterval = Annotated[
    timedelta | Literal["auto"],
    PlainValidator(_automatic(_duration(SECOND / 10, timedelta(days=1)))),
    WithJsonSchema({"anyOf": [{"const": AUTO_INTERVAL}, {"type": "string", "pattern": DURATION_PATTERN}]}),
    PlainSerializer(_interval_text, return_type=str, when_used="json"),
]
Wait = Annotated[timedelta, PlainValidator(_duration(0 * SECOND, timedelta(days=1))), _DURATIONS, _WRITTEN]
Grace = Annotated[timedelta, PlainValidator(_duration(SECOND, timedelta(hours=1))), _DURATIONS, _WRITTEN]
TimeLimit = Annotated[timedelta, PlainValidator(_duration(SECOND, timedelta(days=366))), _DURATIONS, _WRITTEN]

Name = Annotated[str, AfterValidator(check_job_name)]
JobName = Annotated[Name, BeforeValidator(refuse_number)]
PolicyChoice = Annotated[str, AfterValidator(check_policy)]
HostPath = Annotated[str, AfterValidator(check_host_path)]
Target = Annotated[str, AfterValidator(check_mount_target)]
Variable = Annotated[str, AfterValidator(check_variable_name)]
Text = Annotated[str, AfterValidator(check_text)]
LabelKey = Annotated[str, AfterValidator(check_label_key)]
LabelValue = Annotated[str, AfterValidator(check_label_value)]
