"""A process that was asked to end does so, whatever its threads wait for."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import pytest

from runner.server import leaving
from runner.server.leaving import StopDeadline, end_threads


def in_a_process(work: Callable[[], object], said: Path) -> int:
    """Return how a process ended that did some work and then returned; it says things into a file."""
    child = os.fork()
    if child == 0:
        code = 3
        try:
            os.dup2(os.open(said, os.O_CREAT | os.O_WRONLY, 0o600), 2)
            signal.alarm(60)  # a process that would never end fails this test
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def wait_for_nothing() -> None:
    Event().wait()


def test_a_process_that_is_held_up_ends_when_its_time_is_over_and_tells_its_stacks(tmp_path: Path) -> None:
    def work() -> None:
        deadline = StopDeadline(0.1)
        deadline.set()
        deadline.set()  # the second signal gives no more time
        wait_for_nothing()

    assert in_a_process(work, tmp_path / "said") == 1
    assert "in wait_for_nothing" in (tmp_path / "said").read_text()


def test_a_thread_in_the_middle_of_its_work_is_waited_for(tmp_path: Path) -> None:
    done = tmp_path / "done"
    asked = Event()

    def write() -> None:
        asked.wait()
        done.write_text("yes")

    def work() -> None:
        Thread(target=write).start()
        asked.set()
        end_threads(4)
        assert done.exists()

    assert in_a_process(work, tmp_path / "said") == 0


def test_a_thread_that_does_not_end_does_not_keep_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaving, "LINGER_S", 0.1)

    def work() -> None:
        Thread(target=wait_for_nothing, name="stuck").start()
        sys.stdout.flush()
        end_threads(4)

    assert in_a_process(work, tmp_path / "said") == 4
