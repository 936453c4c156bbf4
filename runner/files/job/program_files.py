"""The fields about checkpoints that a program saves on its own: ``checkpoint.files`` and ``resume_args``."""

import re
from pathlib import PurePosixPath
from typing import Final

from runner.base.textfile import quoted

HOME: Final = "/job/home/"
"""The home directory of a job, which is another one on the host."""

MAX_PATTERN: Final = 300
NEWEST: Final = "{newest}"
STEP: Final = "{step}"
_FIELD: Final = re.compile(r"\{[A-Za-z_]*\}")


def check_checkpoint_files(value: str) -> str:
    """Return the pattern of a program's checkpoints as written."""
    if not 0 < len(value) <= MAX_PATTERN:
        raise ValueError(f"must have 1 to {MAX_PATTERN} characters, not {len(value)}")
    if value.startswith("~") or "$" in value:
        raise ValueError(f'"~" and variables are not expanded in {quoted(value)}; write /job/home/...')
    if value.startswith("/") and not (value.startswith(HOME) and len(value) > len(HOME)):
        fact = "must be relative to the working directory, or below /job/home/"
        raise ValueError(f"{fact}, not {quoted(value)}")
    parts = value.removeprefix(HOME).split("/")
    if ".." in parts or "" in parts or "." in parts:
        raise ValueError(f'must not contain "..", "." or empty parts: {quoted(value)}')
    if "**" in parts:
        raise ValueError('"**" is not a pattern here; write one "*" for each directory')
    return str(PurePosixPath(value))


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
