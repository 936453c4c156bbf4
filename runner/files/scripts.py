"""The script of the working directory that a command starts, and why the code of a job does not have it."""

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from posixpath import basename, normpath, splitext
from typing import Final

from runner.base.textfile import one_line
from runner.files.shell import INTERPRETERS, SHELLS, interpreter_of

SCRIPTS: Final = (*INTERPRETERS, ".bash")
"""Endings of scripts."""

_STARTERS: Final = frozenset({"env", "nice", "time", "timeout", "nohup", "stdbuf", "uv", "run"})
_SETTING: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*|[0-9.]+[smhd]?|-[a-z]", re.DOTALL)
"""Words between a starter and its program."""

_PYTHON: Final = re.compile(r"(?:python|pypy)[0-9.]*")
_PYTHON_VALUES: Final = frozenset({"-W", "-X", "--check-hash-based-pycs"})
_NO_SCRIPT: Final = re.compile(r"-[A-Za-z]*[cms].*|-|--.*")
"""Options of interpreters after which no script follows, or not surely."""

_PLAIN: Final = frozenset({"Rscript", "julia", "perl", "ruby", "papermill"})
"""Interpreters whose options are not known here."""

_LAUNCHERS: Final = ("torchrun", "deepspeed", "accelerate")
_MODULES: Final = frozenset({"-m", "--module", "--no_python", "--no-python"})
_MOST_COMPARED: Final = 5000


def find_script(command: Sequence[str], *, on_path: bool) -> int | None:
    """Return the index of the word that is a file of the working directory; None: none is for sure.

    Args:
        command: The words of a program.
        on_path: Whether a shell could find a script by its name alone in a directory of the image.
    """
    at = next((n for n, word in enumerate(command) if not _comes_before(word)), len(command))
    found = at if "/" in "".join(command[at : at + 1]) else None
    if found is None or command[at].startswith("/"):
        found = _script_of(basename("".join(command[at : at + 1])), command, at + 1, on_path=on_path)
    if found is None or command[found].startswith(("/", "~", "$", "-")):
        return None
    return None if ".." in command[found].split("/") else found


def find_unstartable(command: Sequence[str], files: Mapping[str, bool]) -> tuple[int, str] | None:
    """Return the index of a program that is a file of the working directory and does not start so, and why.

    Args:
        command: The words of a program.
        files: The files of the code, and whether each may be executed.
    """
    at = next((n for n, word in enumerate(command) if not _comes_before(word)), len(command))
    word = "".join(command[at : at + 1])
    if word.startswith("/") or normpath(word) not in files or "uv" in map(basename, command[:at]):
        return None  # uv starts Python for a script
    if "/" not in word:
        return (at, describe_bare(word)) if word.endswith(SCRIPTS) else None
    return None if files[normpath(word)] else (at, describe_not_executable(word))


def describe_bare(name: str) -> str:
    """Return how a script of the working directory is started that is named as a command."""
    written, reader = shlex.quote(name), interpreter_of(name)
    return f"a program of the working directory begins with ./ : ./{name}, or {reader} {written}"


def describe_not_executable(path: str) -> str:
    """Return that a script may not be executed, and the lines that work."""
    return f"{path} may not be executed: chmod +x {path}, or {interpreter_of(path)} {path}"


def _comes_before(word: str) -> bool:
    return basename(word) in _STARTERS or _SETTING.fullmatch(word) is not None


def _script_of(program: str, command: Sequence[str], first: int, *, on_path: bool) -> int | None:
    """Return the index of the script that an interpreter or launcher is given."""
    if program in _LAUNCHERS:
        script = next((n for n, word in enumerate(command) if n >= first and word.endswith(".py")), None)
        return script if _MODULES.isdisjoint(command[first:script]) else None
    if program in _PLAIN:
        return first if first < len(command) and not command[first].startswith("-") else None
    is_shell = program in SHELLS
    if not is_shell and not _PYTHON.fullmatch(program):
        return None
    index = first
    while index < len(command) and command[index][:1] in ("-", "+"):
        if command[index] in _PYTHON_VALUES or (is_shell and command[index].endswith(("o", "O"))):
            index += 1
        elif _NO_SCRIPT.fullmatch(command[index]):
            return None
        index += 1
    if index >= len(command) or (is_shell and on_path and "/" not in command[index]):
        return None
    return index


def describe_absent(name: str, paths: Collection[str]) -> str:
    """Return that a file is not in the code of a job, and one that may be meant."""
    wanted, ending = normpath(name), splitext(name)[1]
    alike = sorted(
        (each for each in paths if each.endswith(ending)), key=lambda each: (each.count("/"), each)
    )
    same = [each for each in alike if basename(each) == basename(wanted)]
    near = same or get_close_matches(wanted, alike[:_MOST_COMPARED], 1)
    meant = f"; did you mean {one_line(near[0])}?" if near else ""
    return f"{one_line(name)} is not in the code of the job{meant}"
