"""Directories of this process in which a program of another account works, and what such a program leaves.

This process makes a directory that stays its own, and gives single parts of it to the account, by descriptor,
before any program of the account runs.  From then on it opens these parts by descriptor alone, and follows
no link: their owner may have replaced anything in them.
"""

import os
import pwd
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from stat import S_ISDIR
from typing import Final
from urllib.parse import quote

from images.errors import BuildFailed
from images.packages.values import Account

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_REQUIREMENT: Final = re.compile(r"[A-Za-z0-9][ -~]{0,999}")  # an option begins with a dash
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Scratch:
    """A directory of this process, with parts that an account reads or fills."""

    path: Path
    account: Account | None
    """User whose program works here; ``None``: that of this process."""

    def write(self, name: str, content: str | bytes) -> Path:
        """Write a file that the account may read; nobody but this process can replace it."""
        path = self.path / name
        body = content.encode() if isinstance(content, str) else content
        with os.fdopen(os.open(path, _NEW, 0o600), "wb") as file:
            file.write(body)
            _give(file.fileno(), self.account)
        return path

    def directory(self, name: str) -> Path:
        """Make a directory, which is this process's until it is given away."""
        path = self.path / name
        path.mkdir(mode=0o700)
        return path

    def give(self, name: str) -> None:
        """Give a directory with the files in it to the account; from then on they are not to be trusted."""
        directory = os.open(self.path / name, _DIRECTORY)
        try:
            for each in os.listdir(directory):  # noqa: PTH208  (of a descriptor)
                file = os.open(each, _FILE, dir_fd=directory)
                try:
                    _give(file, self.account)
                finally:
                    os.close(file)
            _give(directory, self.account)  # at last: nobody else could enter it before
        finally:
            os.close(directory)

    @contextmanager
    def opened(self, name: str) -> Iterator[int]:
        """Open a directory that was given away."""
        directory = os.open(self.path / name, _DIRECTORY)
        try:
            yield directory
        finally:
            os.close(directory)


def make_scratch(parent: Path, prefix: str, account: Account | None) -> Scratch:
    """Make a directory below a directory of this process."""
    parent.mkdir(mode=0o711, parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
    made.chmod(0o711)  # so that the account reaches what is given to it
    return Scratch(made, account)


@contextmanager
def scratch(parent: Path, prefix: str, account: Account | None) -> Iterator[Scratch]:
    """Yield a new directory below a directory of this process; it is removed afterwards."""
    made = make_scratch(parent, prefix, account)
    try:
        yield made
    finally:
        remove_tree(made.path)


def remove_tree(directory: Path) -> None:
    """Remove a directory of this process with all that others have put there, however deep.

    ``rm`` goes by descriptors, follows no link, and does not recurse by its stack.
    """
    subprocess.run(
        ["rm", "-rf", "--one-file-system", "--", str(directory)],
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def name_of(account: Account | None) -> str:
    """Return the name of what is kept for an account: a uid that is used again is another person's.

    What an earlier person has put into a cache would decide what the later one's jobs run.
    """
    if account is None:
        return "own"
    with suppress(KeyError):
        return f"{account.uid}-{quote(pwd.getpwuid(account.uid).pw_name, safe='')}"
    return str(account.uid)


def own_directory(parent: Path, account: Account | None) -> Path:
    """Return the directory of an account below a directory of this process; made if it is not there.

    This process puts nothing into it.
    """
    return _directory(parent, name_of(account), partial(_give, account=account))


def lent_directory(parent: Path, name: str, reader: Account | None) -> Path:
    """Return a directory of this process below another one, which the group of an account may read."""
    return _directory(parent, name, partial(lend, reader=reader))


def _directory(parent: Path, name: str, give: Callable[[int], None]) -> Path:
    parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    path = parent / name
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    opened = os.open(path, _DIRECTORY)
    try:
        give(opened)
    finally:
        os.close(opened)
    return path


def lend(descriptor: int, reader: Account | None) -> None:
    """Let the group of an account read a file or directory, which this process alone may change."""
    if reader is not None:
        os.fchown(descriptor, os.geteuid(), reader.gid)
    is_directory = S_ISDIR(os.fstat(descriptor).st_mode)
    os.fchmod(descriptor, (0o750 if is_directory else 0o640) if reader is not None else 0o700)


def _give(descriptor: int, account: Account | None) -> None:
    if account is not None:
        os.fchown(descriptor, account.uid, account.gid)


def parse_names(text: bytes, what: str, most: int) -> tuple[str, ...]:
    """Return the short lines that the code of somebody else has answered.

    Raises:
        BuildFailed: it is anything else.
    """
    try:
        found = tuple(filter(None, text.decode().split("\n")))
    except ValueError as error:
        raise BuildFailed(f"{what}: its answer is no text") from error
    if len(found) > most or not all(map(_REQUIREMENT.fullmatch, found)):
        raise BuildFailed(f"{what}: its answer is not a list of {most} requirements at most")
    return found
