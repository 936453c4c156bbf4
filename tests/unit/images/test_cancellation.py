import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from images.cancellation import CancellationToken
from images.errors import BuildAbandoned, BuildFailed
from images.locks import if_free, locked
from images.log import BuildLog


def test_what_is_being_done_is_ended_when_nobody_waits_any_more() -> None:
    interest, ended = CancellationToken(), threading.Event()
    with interest.ending(ended.set):
        assert not ended.is_set()
        interest.abandon()
        assert ended.is_set()


def test_what_begins_after_that_is_ended_at_once() -> None:
    interest, ended = CancellationToken(), threading.Event()
    interest.abandon()
    with interest.ending(ended.set):
        assert ended.is_set()
    with pytest.raises(BuildAbandoned, match="nobody waits for it any more"):
        interest.check()


def test_what_is_over_is_not_ended() -> None:
    interest, ended = CancellationToken(), threading.Event()
    with interest.ending(ended.set):
        pass
    interest.abandon()
    assert not ended.is_set()


def test_a_program_is_killed_when_nobody_waits_any_more(tmp_path: Path) -> None:
    interest, path = CancellationToken(), tmp_path / "log.txt"
    with BuildLog(path, lambda _: interest.abandon()) as log, pytest.raises(BuildAbandoned):
        log.program(["sh", "-c", "echo $$; exec sleep 600"], interest=interest)
    assert not Path("/proc", path.read_text().strip()).exists()


def test_a_program_that_is_told_of_no_interest_runs_to_its_end(tmp_path: Path) -> None:
    interest = CancellationToken()
    interest.abandon()
    with BuildLog(tmp_path / "log.txt", interest=interest) as log:
        with pytest.raises(BuildFailed, match="exit code 3"):
            log.program(["sh", "-c", "exit 3"])
        log.program(["true"])


def test_the_wait_for_a_lock_can_be_given_up(tmp_path: Path) -> None:
    interest = CancellationToken()
    with (
        locked(tmp_path, "1", lambda: None),
        pytest.raises(BuildAbandoned),
        locked(tmp_path, "1", interest.abandon, interest),
    ):
        pytest.fail("the lock was held by somebody else")


def test_a_lock_that_becomes_free_is_taken(tmp_path: Path) -> None:
    with ExitStack() as first:
        first.enter_context(locked(tmp_path, "1", lambda: None))
        with locked(tmp_path, "1", first.close), if_free(tmp_path, "1") as free:
            assert not free
