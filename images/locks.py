"""Locks between builds, in this process and in others, that end with whoever holds them."""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from images.cancellation import CancellationToken

_LOOK_S: Final = 0.2  # between two tries; the kernel's own waiting could not be given up


@contextmanager
def locked(
    cache_dir: Path, name: str, waiting: Callable[[], None], interest: CancellationToken | None = None
) -> Iterator[None]:
    """Keep everybody else out, after saying so if that means to wait.

    Raises:
        BuildAbandoned: ``interest`` was abandoned meanwhile.
    """
    interest = interest or CancellationToken()
    with _file(cache_dir, name).open("w") as file:
        if not _taken(file):
            waiting()
            while not _taken(file):
                interest.wait(_LOOK_S)
        yield


@contextmanager
def if_free(cache_dir: Path, name: str) -> Iterator[bool]:
    """Yield whether the lock was free; if so it is held until the end."""
    with _file(cache_dir, name).open("w") as file:
        yield _taken(file)


def _taken(file: IO[str]) -> bool:
    """Return whether the lock was free and is ours now."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _file(cache_dir: Path, name: str) -> Path:
    place = cache_dir / "locks"
    place.mkdir(parents=True, exist_ok=True)
    if place.stat().st_mode & 0o077:  # whoever can open a file for reading can hold its lock
        place.chmod(0o700)
    return place / name
