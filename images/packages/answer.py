"""Answer of the resolver: a lock, in whose place the code of a package may have left anything.

It is read by a process of the user who resolved.  Whoever asked gets these values, which check themselves.
"""

import os
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from stat import S_ISREG
from typing import Any, Final, TypeAlias
from urllib.parse import unquote, urlsplit

from images.errors import BuildFailed
from images.packages.values import Account

ANSWER: Final = "pylock.toml"
"""The name of the file."""

MAX_ANSWER_BYTES: Final = 16 * 1024**2
"""Of a lock: that of a thousand packages with fifty wheels each."""

MAX_TEXT: Final = 4096

_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,250}")
_PACKAGE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


@dataclass(frozen=True, slots=True)
class FoundFile:
    """File of a package in an answer."""

    name: str
    url: str
    sha256: str | None = None
    size: int | None = None

    def __post_init__(self) -> None:
        """Refuse what is not a name of a file."""
        if _FILE_NAME.fullmatch(self.name) is None or max(len(self.url), len(self.sha256 or "")) > MAX_TEXT:
            raise ValueError("not the file of a package")


@dataclass(frozen=True, slots=True)
class FoundPackage:
    """Package of an answer, with its first wheel and its source distribution."""

    name: str
    version: str
    wheel: FoundFile | None = None
    source: FoundFile | None = None

    def __post_init__(self) -> None:
        """Refuse what is not a name of a package."""
        if _PACKAGE_NAME.fullmatch(self.name) is None or len(self.version) > MAX_TEXT:
            raise ValueError("not a package")


ReadAnswer: TypeAlias = Callable[[Account | None, int], tuple[FoundPackage, ...]]
"""Reads the answer in an open directory of an account, with its rights; raises ``BuildFailed``."""


def read_answer(directory: int) -> tuple[FoundPackage, ...]:
    """Return the packages of the answer in an open directory.

    Raises:
        BuildFailed: it is no small regular file, or not a lock.
    """
    try:
        return tuple(map(_package, tomllib.loads(_read(directory).decode()).get("packages", [])))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BuildFailed("the answer of the resolver is no list of packages") from error


def _read(directory: int) -> bytes:
    try:
        file = os.open(ANSWER, _FILE, dir_fd=directory)
    except OSError as error:
        raise BuildFailed(f"{ANSWER}: cannot be read: {error.strerror}") from error
    try:
        found = os.fstat(file)
        if not S_ISREG(found.st_mode):
            raise BuildFailed(f"{ANSWER}: is not a regular file")
        with os.fdopen(file, "rb", closefd=False) as opened:
            content = opened.read(MAX_ANSWER_BYTES + 1) if found.st_size <= MAX_ANSWER_BYTES else b""
    finally:
        os.close(file)
    if found.st_size > MAX_ANSWER_BYTES or len(content) > MAX_ANSWER_BYTES:
        raise BuildFailed(f"{ANSWER}: is larger than {MAX_ANSWER_BYTES // 1024**2} MiB")
    return content


def _package(found: dict[str, Any]) -> FoundPackage:
    wheels = [_file(each) for each in found.get("wheels", [])]
    source = _file(found["sdist"]) if "sdist" in found else None
    return FoundPackage(_text(found["name"]), _text(found["version"]), next(iter(wheels), None), source)


def _file(found: dict[str, Any]) -> FoundFile:
    url, size, digest = _text(found.get("url", "")), found.get("size"), found.get("hashes", {}).get("sha256")
    name = _text(found.get("name") or unquote(urlsplit(url).path.rpartition("/")[2]))
    if not isinstance(size, int | None):
        raise TypeError("a size is a number")
    return FoundFile(name, url, None if digest is None else _text(digest), size)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a name or an address is a text")
    return value
