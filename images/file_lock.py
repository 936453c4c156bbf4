"""Locks between builds in this process and others; the kernel releases a lock when its holder ends."""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from images.cancellation import CancellationToken

_RETRY_S: Final = 0.05
"""Between two attempts to get a lock; a blocking call could not be cancelled."""


@contextmanager
def locked(
    cache_dir: Path, name: str, waiting: Callable[[], None], token: CancellationToken | None = None
) -> Iterator[None]:
    """Hold a lock; call ``waiting`` first if another build holds it.

    Raises:
        BuildCancelled: ``token`` was cancelled during the wait.
    """
    token = token or CancellationToken()
    with _file(cache_dir, name).open("w") as file:
        if not _try_lock(file):
            waiting()
            while not _try_lock(file):
                token.wait(_RETRY_S)
        yield


@contextmanager
def try_locked(cache_dir: Path, name: str) -> Iterator[bool]:
    """Yield True if the lock was free; if it was, it is held until the end of the block."""
    with _file(cache_dir, name).open("w") as file:
        yield _try_lock(file)


def _try_lock(file: IO[str]) -> bool:
    """Take a lock if it is free, and return whether it was."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _file(cache_dir: Path, name: str) -> Path:
    place = cache_dir / "locks"
    place.mkdir(parents=True, exist_ok=True)
    if place.stat().st_mode & 0o077:  # whoever can open the file can hold its lock
        place.chmod(0o700)
    return place / name
