"""Submitting from Python: job files, their fields as a mapping, and commands."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict

from gpu_job_runner.job import Connection, Job, connect
from runner.base.errors import RunnerError, UsageError
from runner.cli.placing import placed
from runner.cli.run_file import CommandLine, relative, yaml_text
from runner.client.autostart import remote_host

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias, Unpack

    Word: TypeAlias = str | float | os.PathLike[str]

SHOWN: Final = "submit"
"""The name in messages of what was not written as a file."""

_POSITION: Final = re.compile(rf"(?m)^{SHOWN}:\d+:\d+: ")
_FIELD: Final = re.compile(r"(?m)^(?:resources|workload|queue)\.(\w+)")

REQUIREMENTS: Final = "requirements.txt"

OF_A_FILE: Final = frozenset({"name", "priority", "priority_class", "after", "not_before"})
"""Options that replace what a job file says."""

MOST_BYTES: Final = 1024 * 1024
"""Of a job file."""

SEVERAL: Final = {"matrix": "submit_all", "sweep": "sweep"}
"""Sections that make several jobs, and the function that submits them."""

PAIRS: Final = ("environment", "secrets", "labels")
LISTS: Final = ("packages", "resume_args")


class Options(TypedDict, total=False):
    """Requests of a command or a function, as the options of ``runner run`` say them."""

    name: str
    gpus: int
    cpus: float
    memory: str
    time: str
    code: str | None
    """The directory that it starts in a copy of: the current one. None: no code."""
    requirements: str | bool
    """A file with packages. True: ``requirements.txt`` if the code has one. False: none."""
    packages: Sequence[str] | str
    image: str
    checkpoint: str
    resume_args: Sequence[str] | str
    mounts: Mapping[str, str]
    """Files and directories of the host, by the path below ``/data`` where they are, read-only."""
    environment: Mapping[str, str]
    secrets: Mapping[str, str]
    labels: Mapping[str, str]
    profile: str
    network: str
    priority: int
    priority_class: str
    after: Sequence[Job[Any] | str] | Job[Any] | str
    """Jobs that must succeed before; ``JOB:any`` and ``JOB:failed`` say another end."""
    not_before: str
    attempts: int


class Spec(NamedTuple):
    """A job file as it is sent."""

    path: str
    text: bytes
    shown: str
    name: str | None = None
    instead: Mapping[str, object] = {}
    of_options: bool = False
    """True: it was made of the options of a command, by which its fields are told."""


def submit(
    what: str | os.PathLike[str] | Mapping[str, Any] | Sequence[Word], /, **options: Unpack[Options]
) -> Job[dict[str, Any]]:
    """Submit a job file, the fields of one as a mapping, or a command as a list of words.

    Of a job file, ``options`` may be ``name``, ``priority``, ``priority_class``, ``after`` and
    ``not_before``, which replace what it says.

    Raises:
        UsageError: something in it must be changed, or it makes several jobs: see ``submit_all``.
        Refused: a rule forbids it.
        Unavailable: no daemon answers.
    """
    spec, connection = make_spec(what, options), connect()
    _check_number(connection, spec, several=False)
    return send(connection, spec)[0]


def submit_all(
    what: str | os.PathLike[str] | Mapping[str, Any], /, **options: Unpack[Options]
) -> list[Job[dict[str, Any]]]:
    """Submit all jobs of a job file with a matrix, or none of them; see ``submit``."""
    spec, connection = make_spec(what, options), connect()
    _check_number(connection, spec, several=True)
    return send(connection, spec)


def send(connection: Connection, spec: Spec) -> list[Job[Any]]:
    """Submit a job file, and return its jobs; what the daemon warns of becomes warnings."""
    answer = _ask(connection, spec)
    for warning in answer.get("warnings", ()):
        warnings.warn(warning, stacklevel=3)  # the caller's line
    return [Job(each, connection) for each in answer["jobs"]]


def _ask(connection: Connection, spec: Spec, *, dry_run: bool = False) -> dict[str, Any]:
    """Return the answer to a submission; nobody has written the lines of what is no file."""
    place = placed(spec.path, spec.text)
    try:
        return connection.submit(
            place, spec.text, spec.name, dry_run=dry_run, instead=spec.instead, shown=spec.shown
        )
    except RunnerError as error:
        if spec.shown != SHOWN:
            raise
        told = _POSITION.sub("", str(error))
        found = type(error)(_FIELD.sub(_option, told) if spec.of_options else told)
        found.details = error.details
        raise found from error


def try_out(connection: Connection, spec: Spec) -> dict[str, Any]:
    """Return the result that a submission would have.

    Raises:
        UsageError: it would make a schedule.
    """
    plan = _ask(connection, spec, dry_run=True)
    if "schedule" in plan:
        raise UsageError(f"{spec.shown}: schedule: has no job yet; make it with runner submit")
    return plan


def _option(field: re.Match[str]) -> str:
    return {"time_limit": "time"}.get(field[1], field[1])


def _check_number(connection: Connection, spec: Spec, *, several: bool) -> None:
    """Refuse a job file that makes a schedule, or several jobs if one is wanted, before it is submitted."""
    if not any(each.encode() in spec.text for each in ("schedule", *(() if several else SEVERAL))):
        return
    plan = try_out(connection, spec)
    if not several and len(plan["jobs"]) > 1:
        section = "sweep" if plan["job"]["job"].get("sweep") else "matrix"
        fact = f"makes {len(plan['jobs'])} jobs; use {SEVERAL[section]}"
        raise UsageError(f"{spec.shown}: {section}: {fact}")


def make_spec(what: str | os.PathLike[str] | Mapping[str, Any] | Sequence[Word], options: Options) -> Spec:
    """Return the request for a job file, its fields or a command.

    Raises:
        UsageError: the file cannot be read, or an option is not for it.
    """
    here = os.path.join(os.getcwd(), SHOWN)  # noqa: PTH109, PTH118  as the command line does
    if isinstance(what, str | os.PathLike):
        from pathlib import Path

        from runner.base.textfile import read_source

        if isinstance(what, str) and len(words := what.split()) > 1 and not os.path.exists(what):  # noqa: PTH110
            raise UsageError(f"{what}: no such file; a command is a list of words: submit({words})")
        return Spec(os.fspath(what), read_source(Path(what)), os.fspath(what), *_replaced(options))
    if isinstance(what, Mapping):
        return Spec(here, _json(dict(what)).encode(), SHOWN, *_replaced(options))
    if isinstance(what, bytes) or not isinstance(what, Iterable):
        raise UsageError(f"submit: takes a job file, its fields or a list of words, not {what!r}")
    return Spec(here, command_text(tuple(what), options), SHOWN, of_options=True)


def check_options(options: Options, more: str = "") -> None:
    """Raise UsageError for an option that no job has."""
    if unknown := options.keys() - Options.__annotations__.keys():
        there = ", ".join(Options.__annotations__)
        raise UsageError(f"{min(unknown)}: no such option; there are {there}{more}")


def _json(value: object) -> str:
    """Return values as JSON, which is YAML as well.

    Raises:
        UsageError: one of them is nothing that a job file could say.
    """
    try:
        return json.dumps(value, indent=1, ensure_ascii=False, default=_plain)
    except (TypeError, ValueError) as error:  # keys of other types, or a value that contains itself
        raise UsageError(f"submit: {error}") from error


def _plain(value: object) -> object:
    """Return a value that JSON has not: a path, a number of NumPy, or a list of another type."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, Iterable) and not isinstance(value, AbstractSet | bytes):  # a set's order varies
        return list(value)
    raise TypeError(f"{value!r}: must be text, a number or a path, or a list or mapping of them")


def _replaced(options: Options) -> tuple[str | None, dict[str, object]]:
    """Return the name, and what else replaces fields of a job file."""
    if others := options.keys() - OF_A_FILE:
        raise UsageError(f"{min(others)}: is for commands and functions; say it in the job file")
    instead: dict[str, Any] = {**options}
    name = instead.pop("name", None)
    if not isinstance(name, str | None):
        raise UsageError(f"name: must be text, not {name!r}")
    if "after" in instead:
        instead["after"] = _after(instead["after"])
    return name, json.loads(_json(instead))


def command_text(command: tuple[Word, ...], options: Options) -> bytes:
    """Return the job file of a command, with the options of ``runner run``.

    Raises:
        UsageError: there is no command, or an option is unknown.
    """
    if not command:
        raise UsageError("submit: there is no command")
    check_options(options)
    given: dict[str, Any] = {"code": ".", **options}
    after = _after(given.pop("after", ()))
    for name in LISTS:
        given[name] = _items(name, given.get(name, ()))
    given = json.loads(_json(given))
    words = tuple(map(_word, command))
    requirements = given.pop("requirements", True)
    if requirements is True:
        file = os.path.normpath(f"{given['code']}/{REQUIREMENTS}")
        is_there = given["code"] is not None and "image" not in given and os.path.isfile(file)  # noqa: PTH113
        requirements = file if is_there else None
    for name in (*PAIRS, "mounts"):
        if not isinstance(given.setdefault(name, {}), Mapping):
            raise UsageError(f"{name}: must be a mapping, not {given[name]!r}")
    for name in PAIRS:
        given[name] = tuple(given[name].items())
    mounts = [{"source": source, "target": target} for target, source in given.pop("mounts").items()]
    line = CommandLine(words, requirements=requirements or None, mounts=tuple(mounts), after=after, **given)
    if remote_host(os.environ) is not None:
        line = relative(line)
    text = yaml_text(line.fields()).encode()
    if len(text) > MOST_BYTES:
        raise UsageError("submit: more than 1 MiB is sent with the job; put it in a file and mount that")
    return text


def _after(jobs: Sequence[Job[Any] | str] | Job[Any] | str) -> tuple[dict[str, str], ...]:
    """Return jobs that must have ended before as the job file has them; a single one is a list of itself."""
    found = []
    for job in _items("after", jobs):
        name, _, condition = (job.id if isinstance(job, Job) else str(job)).partition(":")
        found.append({"job": name, "condition": condition or "ok"})
    return tuple(found)


def _items(name: str, value: object) -> list[Any]:
    """Return a list of values; a single one is a list of itself."""
    if value is None:
        return []
    if isinstance(value, Mapping | bytes):
        raise UsageError(f"{name}: must be a list, not {value!r}")
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value]


def _word(word: object) -> str:
    """Return a word of a command: text, or a number or a path as text."""
    if isinstance(word, str):
        return word
    if isinstance(word, os.PathLike | Real):
        return str(word)
    raise UsageError(f"submit: a word of a command must be text, a number or a path, not {word!r}")
