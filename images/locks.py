"""Locks between builds, in this process and in others, that end with whoever holds them."""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(cache_dir: Path, name: str, waiting: Callable[[], None]) -> Iterator[None]:
    """Keep everybody else out, after saying so if that means to wait."""
    with _file(cache_dir, name).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def if_free(cache_dir: Path, name: str) -> Iterator[bool]:
    """Yield whether the lock was free; if so it is held until the end."""
    with _file(cache_dir, name).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _file(cache_dir: Path, name: str) -> Path:
    place = cache_dir / "locks"
    place.mkdir(parents=True, exist_ok=True)
    return place / name
