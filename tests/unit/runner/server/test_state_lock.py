"""A state directory has one daemon at a time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import IO

import pytest

from runner.base.errors import Refused
from runner.client.autostart import EXIT_LIMIT_S
from runner.server.state_lock import hold_state


@contextmanager
def holder(directory: Path, words: str) -> Iterator[IO[str]]:
    """Be another daemon that has the state directory, until the file is closed."""
    with (directory / "lock").open("w+") as file:
        flock(file, LOCK_EX)
        file.write(words)
        file.flush()
        yield file


def test_a_daemon_that_leaves_is_waited_for_and_its_state_is_taken_over(tmp_path: Path) -> None:
    waits: list[float] = []
    with holder(tmp_path, "123 leaving") as file:

        def goes_at_the_twentieth_look(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 20:
                file.close()

        with hold_state(tmp_path, goes_at_the_twentieth_look):
            assert (tmp_path / "lock").read_text().split() == [str(os.getpid())]
    assert len(waits) == 20


def test_a_daemon_that_stays_is_named_and_its_state_is_not_waited_for(tmp_path: Path) -> None:
    waits: list[float] = []
    with (
        holder(tmp_path, "123".ljust(20)),
        pytest.raises(Refused, match=r"another daemon \(pid 123\) has this state; runner stop ends it"),
        hold_state(tmp_path, waits.append),
    ):
        raise AssertionError
    assert sum(waits) < 1


def test_a_daemon_that_leaves_without_end_is_named_at_last(tmp_path: Path) -> None:
    waits: list[float] = []
    with (
        holder(tmp_path, "123 leaving"),
        pytest.raises(Refused, match=r"the daemon that is stopping \(pid 123\) still uses this state"),
        hold_state(tmp_path, waits.append),
    ):
        raise AssertionError
    assert sum(waits) == pytest.approx(EXIT_LIMIT_S, abs=1)


def test_somebody_who_only_looks_whether_the_state_is_taken_does_not_turn_a_daemon_away(
    tmp_path: Path,
) -> None:
    with holder(tmp_path, "") as looks, hold_state(tmp_path, lambda _: looks.close()):
        assert looks.closed


def test_a_state_directory_is_locked_for_programs_that_clean_up(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        with hold_state(tmp_path), pytest.raises(BlockingIOError):
            flock(descriptor, LOCK_EX | LOCK_NB)
        flock(descriptor, LOCK_EX | LOCK_NB)
    finally:
        os.close(descriptor)
