import os
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest

from runner.base.errors import Unavailable
from runner.base.locks import is_locked, lock, open_lock, try_lock
from tests.fakes.patience import patience


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "the 'lock"


@pytest.fixture
def held(path: Path) -> Iterator[int]:
    descriptor = open_lock(path)
    assert try_lock(descriptor, path)
    yield descriptor
    os.close(descriptor)


def test_only_the_owner_can_open_a_lock_file(path: Path) -> None:
    path.touch(0o644)
    os.close(open_lock(path))
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        open_lock(path)


@pytest.mark.usefixtures("held")
def test_a_lock_that_is_held_is_not_free(path: Path) -> None:
    other = open_lock(path)
    assert not try_lock(other, path)
    assert is_locked(path)
    os.close(other)


def test_a_lock_ends_with_the_descriptor(path: Path) -> None:
    descriptor = open_lock(path)
    assert try_lock(descriptor, path)
    os.close(descriptor)
    assert not is_locked(path)


def test_a_file_that_is_not_there_is_not_locked(path: Path) -> None:
    assert not is_locked(path)
    assert not path.exists()


def test_a_lock_that_is_held_is_waited_for(path: Path) -> None:
    first, second, taken = open_lock(path), open_lock(path), Event()
    lock(first, path)

    def wait() -> None:
        lock(second, path)
        taken.set()

    waiter = Thread(target=wait, daemon=True)
    waiter.start()
    assert not taken.is_set()
    os.close(first)
    assert taken.wait(patience())
    waiter.join(patience())
    os.close(second)


def test_a_file_without_locks_is_named(path: Path) -> None:
    path.touch()
    descriptor = os.open(path, os.O_RDONLY | os.O_PATH)
    with pytest.raises(Unavailable, match="the 'lock: cannot be locked: Bad file descriptor"):
        try_lock(descriptor, path)
    os.close(descriptor)
