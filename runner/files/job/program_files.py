"""The fields about checkpoints that a program saves on its own: ``checkpoint.files`` and ``resume_args``."""

import re
from math import prod
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from runner.base.textfile import quoted

if TYPE_CHECKING:
    from runner.files.job.model import JobFile, MountEntry

HOME: Final = "/job/home/"
"""The home directory of a job, which is another one on the host."""

MOUNTS: Final = "/data/"
"""The directory that mounts lie in."""

MAX_PATTERN: Final = 300
MAX_CHOICES: Final = 64
NEWEST: Final = "{newest}"
STEP: Final = "{step}"
_BRACES: Final = re.compile(r"\{([^{}]*)\}")
_FIELD: Final = re.compile(r"\{[A-Za-z_]*\}")


def check_checkpoint_files(value: str) -> str:
    """Return the pattern of a program's checkpoints as written, without a "./" at its beginning."""
    while value.startswith("./"):
        value = value[2:]
    value = value.removesuffix("/")
    if not 0 < len(value) <= MAX_PATTERN:
        raise ValueError(f"must have 1 to {MAX_PATTERN} characters, not {len(value)}")
    if value.startswith("~") or "$" in value:
        raise ValueError(f'"~" and variables are not expanded in {quoted(value)}; write /job/home/...')
    if value.startswith("/") and not value.startswith((HOME, MOUNTS)):
        fact = "must be relative to the working directory, below /job/home/, or below a mount in /data/"
        raise ValueError(f"{fact}, not {quoted(value)}")
    parts = value.removeprefix(HOME).removeprefix("/").split("/")
    if ".." in parts or "" in parts or "." in parts:
        raise ValueError(f'must not contain "..", "." or empty parts: {quoted(value)}')
    if "**" in parts:
        raise ValueError('"**" is not a pattern here; write one "*" for each directory')
    _check_braces(value)
    return str(PurePosixPath(value))


def _check_braces(value: str) -> None:
    groups = _BRACES.findall(value)
    rest = _BRACES.sub("", value)
    if "{" in rest or "}" in rest or any("/" in each for each in groups):
        raise ValueError(
            f'"{{a,b}}" stands for names within one directory, and not for each other: {quoted(value)}'
        )
    if prod(each.count(",") + 1 for each in groups) > MAX_CHOICES:
        raise ValueError(f"stands for more than {MAX_CHOICES} patterns: {quoted(value)}")


def find_unmatchable(value: str) -> str | None:
    """Return the reason why a pattern names nothing that a program would write; None if there is none."""
    if "\\" in value or not value.isprintable() or value.strip("'\" ") != value:
        fact = "must have no backslash, no control character, and no blank or quote around it"
        return f'{fact}: {quoted(value)}; "/" is between directories, "[*]" stands for a star'
    alone = next((each for each in _BRACES.findall(value) if "," not in each), None)
    return (
        None
        if alone is None
        else f'"{{{alone}}}" is not filled in; write "*" for what changes: {quoted(value)}'
    )


def checkpoint_mount(job: "JobFile") -> "MountEntry | None":
    """Return the mount that the checkpoints of a program lie in; None: they lie in its run directory."""
    files = job.checkpoint.files
    if files is None or not files.startswith(MOUNTS):
        return None
    return next((each for each in job.mounts if PurePosixPath(files).is_relative_to(each.target)), None)


def check_resume_args(value: tuple[str, ...]) -> tuple[str, ...]:
    """Return the arguments of a resumed attempt as written."""
    for text in value:
        for field in _FIELD.findall(text):
            if field not in {NEWEST, STEP}:
                raise ValueError(f"there is no {field}; write {NEWEST} or {STEP}")
    return value


def fill_resume_args(value: tuple[str, ...], path: str, step: int) -> tuple[str, ...]:
    """Return the arguments with the path and the number of a checkpoint."""
    return tuple(text.replace(NEWEST, path).replace(STEP, str(step)) for text in value)
