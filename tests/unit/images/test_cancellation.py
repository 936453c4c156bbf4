import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from images.cancellation import CancellationToken
from images.errors import BuildCancelled
from images.file_lock import locked, try_locked


def test_what_is_being_done_is_ended_when_nobody_waits_any_more() -> None:
    token, ended = CancellationToken(), threading.Event()
    with token.on_cancel(ended.set):
        assert not ended.is_set()
        token.cancel()
        assert ended.is_set()


def test_what_begins_after_that_is_ended_at_once() -> None:
    token, ended = CancellationToken(), threading.Event()
    token.cancel()
    with token.on_cancel(ended.set):
        assert ended.is_set()
    with pytest.raises(BuildCancelled, match="no job waits for the image any more"):
        token.check()


def test_what_is_over_is_not_ended() -> None:
    token, ended = CancellationToken(), threading.Event()
    with token.on_cancel(ended.set):
        pass
    token.cancel()
    assert not ended.is_set()


def test_the_wait_for_a_lock_can_be_given_up(tmp_path: Path) -> None:
    token = CancellationToken()
    with (
        locked(tmp_path, "1", lambda: None),
        pytest.raises(BuildCancelled),
        locked(tmp_path, "1", token.cancel, token),
    ):
        pytest.fail("the lock was held by somebody else")


def test_a_lock_that_becomes_free_is_taken(tmp_path: Path) -> None:
    with ExitStack() as first:
        first.enter_context(locked(tmp_path, "1", lambda: None))
        with locked(tmp_path, "1", first.close), try_locked(tmp_path, "1") as free:
            assert not free
