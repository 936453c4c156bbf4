"""The job file that says the same as a ``runner run`` command line.

The module writes YAML itself: loading a YAML library takes longer than a submission. It also converts
problems of that file into problems of the options that the user has typed.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Value: TypeAlias = "str | int | float | bool | Sequence[Value] | Mapping[str, Value]"

OPTIONS: Final = {
    "name": "--name",
    "workload.command": "COMMAND",
    "workload.code": "--code",
    "resources.gpus": "--gpus",
    "resources.cpus": "--cpus",
    "resources.memory": "--memory",
    "resources.time_limit": "--time",
    "image.requirements": "--with, --requirements",
    "image.system": "--system",
    "image": "--image",
    "checkpoint.files": "--checkpoint",
    "checkpoint.resume_args": "--resume-args",
    "mounts": "--mount",
    "environment": "--env",
    "secret_env": "--secret-env",
    "secrets": "--secret, --secret-env",
    "profile": "--profile",
    "labels": "--label",
    "network": "--network",
    "priority": "--priority",
    "queue.priority_class": "--class",
    "queue.after": "--after",
    "queue.not_before": "--not-before",
}
"""The fields of the job file, and the options that set them."""

LAUNCHERS: Final = frozenset(
    {
        "env",
        "nice",
        "time",
        "timeout",
        "stdbuf",
        "nohup",
        "bash",
        "sh",
        "torchrun",
        "accelerate",
        "uv",
        "xvfb-run",
    }
)
"""Programs that start another program, which gives the job its name."""

COMMON: Final = frozenset(
    {"train", "training", "trainer", "main", "run", "start", "launch", "app", "eval", "evaluate", "test"}
)
"""Names of scripts that say nothing without the project that they belong to."""

PLACES: Final = frozenset({"src", "scripts", "script", "bin", "code", "tools"})
"""Directories inside of projects that say nothing about them."""

PACKAGE_FILES: Final = ("requirements.txt", "pylock.toml", "pyproject.toml", "setup.cfg", "setup.py")
"""Files beside a script that name its packages; the first one counts."""

_PLAIN: Final = re.compile(
    r"-{0,2}(?!\.[0-9])[A-Za-z_./][A-Za-z0-9_./+-]*|[0-9]+(?:[kKmMgGtT](?:i?B)?|[smhd])"
)
_WORDS: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n", ".inf", ".nan"})
_SCRIPT: Final = re.compile(r"(.*[^/])\.(?:py|ipynb|sh|bash|pl|rb|jl|R|lua|js)")
_PYTHON: Final = re.compile(r"python[0-9.]*")
_PROBLEM: Final = re.compile(
    r"(?:(?::\d+:\d+)?: )([a-z_]+(?:[.\[](?:\"[^\"]*\"|[A-Za-z0-9_./\[\]-])*)?): (.*)", re.DOTALL
)
_MAX_NAME: Final = 63


@dataclass(frozen=True, slots=True)
class CommandLine:
    """The values of ``runner run``; None and empty values are not written."""

    command: tuple[str, ...]
    code: str | None = None
    name: str | None = None
    gpus: int | None = None
    cpus: float | None = None
    memory: str | None = None
    time: str | None = None
    image: str | None = None
    requirements: str | None = None  # a file
    packages: tuple[str, ...] = ()
    system: tuple[str, ...] = ()  # Debian packages
    checkpoint: str | None = None  # a pattern
    resume_args: tuple[str, ...] = ()
    mounts: tuple[Mapping[str, Value], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    secrets: tuple[tuple[str, str], ...] = ()
    secret_env: tuple[tuple[str, str], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    profile: str | None = None
    network: str | None = None
    priority: int | None = None
    priority_class: str | None = None
    after: tuple[Mapping[str, Value], ...] = ()
    not_before: str | None = None
    terminal: bool = False
    attempts: int | None = None  # at most; None: as many as the policy allows
    keep_files: bool = False

    def fields(self) -> dict[str, Value]:
        """Return the job file as nested values, in the order of the reference."""
        return given(
            {
                "name": self.name or default_name(self.command, self.code),
                "workload": {
                    "kind": "program",
                    "command": self.command,
                    "code": self.code,
                    "terminal": self.terminal or None,
                },
                "profile": self.profile,
                "resources": {
                    "gpus": self.gpus,
                    "cpus": _number(self.cpus),
                    "memory": self.memory,
                    "time_limit": self.time,
                },
                "image": self._image(),
                "checkpoint": {
                    "files": self.checkpoint,
                    "keep_files": self.keep_files or None,
                    "resume_args": self.resume_args,
                },
                "network": self.network,
                "mounts": self.mounts,
                "environment": dict(self.environment),
                "secrets": dict(self.secrets + self.secret_env),
                "secret_env": tuple(name for name, _ in self.secret_env),
                "labels": dict(self.labels),
                "priority": self.priority,
                "queue": {
                    "priority_class": self.priority_class,
                    "after": self.after,
                    "not_before": self.not_before,
                },
                "retry": {"max_attempts": self.attempts},
            }
        )

    def _image(self) -> str | dict[str, Any] | None:
        """Return the field ``image``: a name, or packages on the image of a name."""
        file = self.requirements
        if not self.packages:
            asked: Value | None = file
        else:
            asked = [*([f"-r {file}"] if file else []), *self.packages]
        if asked is None and not self.system:
            return self.image
        return {"base": self.image, "requirements": asked, "system": self.system}


def relative(line: CommandLine) -> CommandLine:
    """Return a command line whose code and requirements can be sent: a shell makes ~/vit absolute."""
    code, requirements = line.code and os.path.relpath(line.code), line.requirements
    return replace(line, code=code, requirements=requirements and os.path.relpath(requirements))


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are neither None nor empty, at every level; 0 is a value."""
    inner = {key: given(value) if isinstance(value, dict) else value for key, value in values.items()}
    return {key: value for key, value in inner.items() if value is not None and value not in ((), {}, [])}


def _number(value: float | None) -> float | None:
    """Return a number without a useless fraction: 8 instead of 8.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


_OTHERS: Final = re.compile(
    r"environment\.ya?ml|requirements?[\w.-]*\.(?:txt|in)|requirements/[\w.-]+\.(?:txt|in)|pylock\..*\.toml"
)
"""Files of conda, and requirements and locks under another name."""

_OF_TOOLS: Final = {
    **dict.fromkeys(("uv", "pdm", "rye"), ("dev-dependencies",)),
    "poetry": ("group",),
    "pixi": ("dependencies", "pypi-dependencies"),
    "hatch": ("envs",),
}
"""Tables of a ``pyproject.toml`` in which tools have further packages."""


def default_name(command: Sequence[str], directory: str | None = None) -> str:
    """Return the name of a job without ``--name``: of its script or module, else of its program.

    Options, variables and launchers such as ``env`` and ``torchrun`` are skipped.  A name that any project
    has, such as ``train``, follows that of the project; ``directory`` is the one that the command starts in.
    """
    path = next(_candidates(command), command[0])
    name = _safe(os.path.basename(path))
    if name in COMMON and (project := _project(path, directory)):
        name = f"{project[: _MAX_NAME - len(name) - 1]}-{name}"
    return (f"job-{name}" if name.isdigit() else name)[:_MAX_NAME] or "job"


def find_package_file(directory: str, command: Sequence[str] = ()) -> str | None:
    """Return the name of the file that names the packages of a directory, None if there is none.

    A script of the command that names them itself comes first, as with ``uv run``.
    """
    script = next((word for word in command if word.endswith(".py") and not os.path.isabs(word)), None)
    if script is not None and _is_in(os.path.join(directory, script), rb"^# /// script\r?$"):
        return script
    for name in PACKAGE_FILES:
        path = os.path.join(directory, name)
        if os.path.isfile(path) and _names_packages(path, name):
            return name
    return None


def find_other_file(directory: str) -> str | None:
    """Return the name of a file with packages that is not taken unasked, None if there is none."""
    from runner.files.conda import EXPORTED

    try:
        names = sorted(entry.name for entry in os.scandir(directory) if entry.is_file())
        if os.path.isdir(inner := os.path.join(directory, "requirements")):
            names += sorted(f"requirements/{name}" for name in os.listdir(inner))
        found = [name for name in names if name in EXPORTED or _OTHERS.fullmatch(name)]
        if "pyproject.toml" in names:
            said = rb"^\[(tool\.poetry\.dependencies|dependency-groups)\]"
            found += ["pyproject.toml"] if _is_in(os.path.join(directory, "pyproject.toml"), said) else []
    except OSError:  # told later, as what keeps the code from being taken
        return None
    return next(iter(found), None)


def describe_left_out(directory: str) -> Iterator[str]:
    """Yield what a job does not get of a ``pyproject.toml`` that it takes, and of the locks beside it."""
    from runner.files.conda import EXPORTED

    for name in ("poetry.lock", "pdm.lock"):
        if os.path.isfile(os.path.join(directory, name)):
            yield f"the versions of {name} are not read; write them down: {EXPORTED[name]}"
    found = _load(os.path.join(directory, "pyproject.toml")) or {}
    if isinstance(groups := found.get("dependency-groups"), dict) and groups:
        step = f"{EXPORTED['uv.lock']} --group NAME"
        yield f"the groups {', '.join(groups)} of dependencies are left out; write one down: {step}"
    tool = found.get("tool")
    tools = (
        {name: each for name, each in tool.items() if isinstance(each, dict)}
        if isinstance(tool, dict)
        else {}
    )
    named = [
        f"tool.{name}.{key}" for name in _OF_TOOLS for key in _OF_TOOLS[name] if tools.get(name, {}).get(key)
    ]
    if named:
        yield f"{', '.join(named)}: left out; list what the job needs in [project] dependencies"
    uv = tools.get("uv", {})
    index = uv.get("index")
    others = index if isinstance(index, list) else []
    others = [each for each in others if isinstance(each, dict) and not each.get("explicit")]
    if others or not uv.keys().isdisjoint({"index-url", "extra-index-url", "find-links"}):
        yield "the operator chooses the indexes; those of tool.uv are left out"


def _names_packages(path: str, name: str) -> bool:
    """Return True if a file is that of a project with packages; one that cannot be read is told later."""
    if name == "pyproject.toml":
        found = _load(path)
        return found is None or "project" in found
    return not name.startswith("setup.") or _is_in(path, rb"install_requires|package_dir|entry_points")


def _is_in(path: str, said: bytes) -> bool:
    """Return True if a pattern is in a file, or it cannot be read."""
    try:
        with open(path, "rb") as file:
            return re.search(said, file.read(), re.MULTILINE) is not None
    except OSError:
        return os.path.isfile(path)


def _load(path: str) -> dict[str, Any] | None:
    import tomllib

    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except (OSError, ValueError):
        return None


def _project(path: str, directory: str | None) -> str:
    """Return the name of the project of a script, empty if none of its directories has one of its own."""
    if directory is None and not os.path.dirname(path):
        return ""
    place = os.path.abspath(os.path.join(directory or os.sep, os.path.dirname(path)))
    while os.path.basename(place) in PLACES:
        place = os.path.dirname(place)
    return "" if place == os.path.expanduser("~") else _safe(os.path.basename(place))


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")


def _candidates(command: Sequence[str]) -> Iterator[str]:
    """Yield scripts, modules and programs of a command as paths without a suffix, the best first."""
    words = list(command[:50])
    for index, word in enumerate(words):
        inner = word.split() if index and words[index - 1].endswith("c") else [word]  # sh -c, bash -lc
        if match := next(filter(None, map(_SCRIPT.fullmatch, inner)), None):
            yield match[1]
        elif (
            word == "-m"
            and index + 1 < len(words)
            and index
            and _PYTHON.fullmatch(words[index - 1].split("/")[-1])
        ):
            yield words[index + 1].removesuffix(".__main__").replace(".", "/")
    for word in words:
        is_setting = word.startswith("-") or "=" in word or word.replace(".", "").isdigit()
        if not is_setting and os.path.basename(word) not in LAUNCHERS:
            yield _first_words(word)


def _first_words(text: str) -> str:
    """Return the program that a text of a shell begins with, and its arguments up to an option or a path."""
    program, *others = re.split(r"[;&|<>\n]", text)[0].split() or [text]
    return " ".join((program, *takewhile(re.compile(r"[\w.,:=@+]+").fullmatch, others)))


def yaml_text(fields: Mapping[str, Value], heading: str = "") -> str:
    """Return nested values as YAML in block style; lists of scalars are written on one line."""
    lines = [f"# {line}" for line in heading.splitlines()]
    for key, value in fields.items():
        lines += _entry(key, value, "")
    return "\n".join(lines) + "\n"


def _entry(key: str, value: Value, indent: str) -> Iterator[str]:
    match value:
        case dict():
            yield f"{indent}{_scalar(key)}:"
            for name, below in value.items():
                yield from _entry(name, below, indent + "  ")
        case list() | tuple() if any(isinstance(each, dict) for each in value):
            yield f"{indent}{_scalar(key)}:"
            yield from (f"{indent}  - {_flow(each)}" for each in value)
        case _:
            yield f"{indent}{_scalar(key)}: {_flow(value)}"


def _flow(value: Value) -> str:
    match value:
        case dict():
            return "{" + ", ".join(f"{_scalar(key)}: {_flow(each)}" for key, each in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(_flow, value)) + "]"
        case _:
            return _scalar(value)


def _scalar(value: Value) -> str:
    """Return a scalar, in double quotes if it could be read as something else."""
    if not isinstance(value, str):
        return json.dumps(value)
    if (_PLAIN.fullmatch(value) and value.lower() not in _WORDS and value.strip(".") != "") or value == ".":
        return value
    return json.dumps(value)


def of_option(line: str, shown: str) -> str:
    """Return a problem of the generated job file as a problem of the option that set the field.

    ``shown`` is the name under which the file was sent; a refusal begins with the field and its line instead.
    """
    if not line.startswith(shown):
        return re.sub(
            r"^([a-z_.]+) \(line \d+\): ", lambda at: f"{shown}: {OPTIONS.get(at[1], at[1])}: ", line
        )
    match = _PROBLEM.fullmatch(line.removeprefix(shown))
    if match is None:
        return shown + re.sub(r":\d+:\d+: ", ": ", line.removeprefix(shown), count=1)
    path, fact = re.sub(r"\[(\d+)\]", "", match[1]), match[2]
    while path and path not in OPTIONS:
        path = path.rpartition(".")[0]
    option = OPTIONS.get(path, match[1])
    below = match[1].removeprefix(path).lstrip(".").strip('"') if option in {"--env", "--label"} else ""
    fields = "|".join(re.escape(field) for field in OPTIONS if "." in field)
    fact = re.sub(rf"\b(?:{fields})\b(?!\.)", lambda field: OPTIONS[field[0]], fact)
    return f"{shown}: {option}: {below + ': ' if below else ''}{fact}"
