"""Text files that people write: reading them within limits, and problems with positions.

Only the standard library is imported, because the client reads the job file too. Everything that is shown
of a file, its name included, fits on one line; control characters are escaped.
"""

import errno
import os
import stat
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from runner.base.errors import UsageError

MAX_BYTES: Final = 1024 * 1024
"""A larger file is not a job file; it is refused without reading all of it."""

MAX_PROBLEMS: Final = 100
"""The number of problems that are shown; a parser that has found more need not go on."""

MAX_LINES_BYTES: Final = 512 * 1024**2
"""A larger file is not a trace or a journal."""

JOB_FILE: Final = "job file"
INIT_HINT: Final = '; "runner init" writes one to start from'
"""The hint for a missing job file."""

_SHOWN_CHARACTERS: Final = 60

_NOT_REGULAR: Final = "is not a regular file; pipes and devices are not read"


def whole_characters(text: bytes) -> int:
    """Return the length of a text in UTF-8 without a character at its end that is not complete."""
    for count in range(1, min(len(text), 4) + 1):
        byte = text[-count]
        if byte & 0xC0 != 0x80:  # the first byte of a character, which tells its length
            length = 1 + (byte >= 0xC2) + (byte >= 0xE0) + (byte >= 0xF0)
            return len(text) - count if count < length and byte < 0xF5 else len(text)
    return len(text)


def list_yaml_stems(directory: Path) -> list[str]:
    """Return the names of the YAML files in a directory, without their endings."""
    return [name.removesuffix(".yaml") for name in os.listdir(directory) if name.endswith(".yaml")]  # noqa: PTH208


class Position(NamedTuple):
    """A line and a column in a text file, counted from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a file and its position; ``at`` is None if the file as a whole is the problem."""

    at: Position | None
    field: str  # dotted path; empty if no field is concerned
    fact: str

    def line(self, path: Path) -> str:
        """Return ``file:line:column: field: fact``."""
        place = f":{self.at.line}:{self.at.column}" if self.at else ""
        field = f"{self.field}: " if self.field else ""
        return f"{one_line(str(path))}{place}: {field}{self.fact}"


class FileError(UsageError):
    """A file that a user wrote is not valid; carries all its problems in order of position."""

    def __init__(self, path: Path, problems: Iterable[Problem]) -> None:
        self.path = path
        self.problems = tuple(sorted(set(problems), key=_order))
        super().__init__("\n".join(self.lines))

    @property
    def lines(self) -> tuple[str, ...]:
        """A line for each problem, at most ``MAX_PROBLEMS``, and a line that says that there are more."""
        shown = tuple(problem.line(self.path) for problem in self.problems[:MAX_PROBLEMS])
        if len(self.problems) <= MAX_PROBLEMS:
            return shown
        fact = f"has more than {MAX_PROBLEMS} problems; the others are not listed"
        return (*shown, f"{one_line(str(self.path))}: {fact}")


def standard_input() -> BinaryIO:
    """Return standard input, for which ``-`` stands.

    Raises:
        UsageError: it is closed, as in some processes that a daemon starts.
    """
    if sys.stdin is None:
        raise UsageError("-: standard input is closed; give the path of a file")
    return sys.stdin.buffer


def read_source(path: Path, kind: str = JOB_FILE) -> bytes:
    """Return the content of a job file or of another ``kind`` of file.

    Raises:
        FileError: it is missing, not a regular file, unreadable or larger than ``MAX_BYTES``.
    """
    try:
        with open_source(path) as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise FileError(path, [Problem(None, "", _unreadable(path, error, kind))]) from error
    except ValueError as error:  # the name contains NUL
        raise FileError(path, [Problem(None, "", "is not a valid file name")]) from error
    if len(text) > MAX_BYTES:
        raise FileError(path, [Problem(None, "", f"larger than 1 MiB, so not a {kind}")])
    return text


def read_lines(path: Path, kind: str) -> str:
    """Return the text of a file with one record per line, such as a trace, which may be large.

    Raises:
        FileError: it is missing, no regular file, unreadable, larger than ``MAX_LINES_BYTES`` or not UTF-8.
    """
    try:
        with open_source(path) as file:
            if os.fstat(file.fileno()).st_size > MAX_LINES_BYTES:
                raise FileError(path, [Problem(None, "", f"larger than 512 MiB, so not a {kind}")])
            return file.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(path, [Problem(None, "", "is not UTF-8 text")]) from error
    except OSError as error:
        fact = _NOT_REGULAR if isinstance(error, NotRegular) else f"cannot be read: {error.strerror}"
        raise FileError(path, [Problem(None, "", fact)]) from error


class NotRegular(OSError):
    """The path is a pipe, a socket or a device instead of a file."""

    def __init__(self) -> None:
        super().__init__(errno.EINVAL, "is not a regular file")


def open_source(path: Path) -> BufferedReader:
    """Open a regular file for reading; never blocks, as opening a named pipe would.

    Raises:
        OSError: it is missing or not readable; ``NotRegular``: it is not a file.
    """
    return os.fdopen(_regular(path, os.O_RDONLY), "rb")


def open_target(path: Path, *, overwrite: bool) -> TextIOWrapper:
    """Open a regular file for writing and empty it; never blocks, as opening a named pipe would.

    Raises:
        OSError: it is not writable, or exists and may not be overwritten; ``NotRegular``: it is not a file.
    """
    fd = _regular(path, os.O_WRONLY | os.O_CREAT | (0 if overwrite else os.O_EXCL))
    os.ftruncate(fd, 0)
    return os.fdopen(fd, "w", encoding="utf-8", newline="")


def _regular(path: Path, flags: int) -> int:
    try:
        fd = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, a device without a driver, a pipe that nobody reads
            raise NotRegular from error
        raise
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)) if stat.S_ISDIR(mode) else NotRegular


def one_line(text: str) -> str:
    """Return a text with all unprintable characters and line ends escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def quoted(text: str) -> str:
    """Return a text in double quotes, on one line and shortened."""
    cut = text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
    return '"' + one_line(cut).replace('"', '\\"') + '"'


def shown(value: object) -> str:
    """Return a value of a file as messages show it."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            return quoted(value)
        case list() | tuple():
            return "a list"
        case dict():
            return "a mapping"
        case _:
            return quoted(str(value))[1:-1]


def _order(problem: Problem) -> tuple[Position, str, str]:
    return problem.at or Position(0, 0), problem.field, problem.fact


def _unreadable(path: Path, error: OSError, kind: str) -> str:
    if error.errno == errno.ENOENT and path.is_symlink():
        return "is a symbolic link to a missing file"
    if error.errno == errno.ENOENT:
        return f"no such file{INIT_HINT if kind == JOB_FILE else ''}"
    if error.errno == errno.EISDIR:
        return f"is a directory, not a {kind}"
    if isinstance(error, NotRegular):
        return _NOT_REGULAR
    return f"cannot be read: {os.strerror(error.errno) if error.errno else error}"
