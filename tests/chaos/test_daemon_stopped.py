"""An orderly stop of a real daemon to which people are attached: nobody notices, and nothing is lost."""

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from runner.client.autostart import answers
from tests.fakes.daemon.service import Service, service, until
from tests.fakes.patience import patience

pytestmark = pytest.mark.engine

LATER = ("--not-before", "2099-01-01T00:00:00+00:00")


@pytest.fixture
def quiet() -> Iterator[Service]:
    """A daemon whose jobs need no engine."""
    with service(executor="process") as made:
        yield made.start()


@pytest.mark.parametrize("how", ["stop", "SIGTERM"])
def test_who_waits_or_follows_survives_a_daemon_that_is_stopped_and_does_not_bring_it_back(
    quiet: Service, how: str
) -> None:
    job_id = quiet.submit(quiet.training("later", 3), *LATER, end="cancelled")
    with quiet.typing("logs", "-f", job_id) as waits, quiet.typing("events", "-f", job_id) as follows:
        assert "submitted" in told(follows)
        assert "has not started" in complaint(waits)  # both are connected
        if how == "stop":
            quiet.runner("stop")
        else:
            before = quiet.daemon_pid()
            os.kill(before, signal.SIGTERM)
            quiet.await_end(before)
        assert "the daemon was stopped" in complaint(waits)
        assert "the daemon was stopped" in complaint(follows)
        assert quiet.pid() is None
        quiet.runner("cancel", job_id)
        _, complaints = waits.communicate(timeout=patience())
        assert "cancelled" in complaints
        assert any("cancel" in told(follows) for _ in range(3))


def told(follows: subprocess.Popen[str]) -> str:
    """Return the next line that a command prints."""
    assert follows.stdout is not None
    return follows.stdout.readline()


def complaint(follows: subprocess.Popen[str]) -> str:
    """Return the next line that a command prints beside its output."""
    assert follows.stderr is not None
    return follows.stderr.readline()


def test_a_restore_succeeds_while_others_wait_and_they_go_on_with_the_next_daemon(quiet: Service) -> None:
    job_id = quiet.submit(quiet.training("later", 3), *LATER, end="cancelled")
    copy = str(quiet.root / "copy.db")
    quiet.runner("backup", copy)
    with quiet.typing("logs", "-f", job_id) as waits:
        assert "has not started" in complaint(waits)
        quiet.runner("stop")
        assert "the daemon was stopped" in complaint(waits)
        quiet.runner("restore", copy)
        assert quiet.pid() is None
        quiet.runner("cancel", job_id)
        _, complaints = waits.communicate(timeout=patience())
        assert "cancelled" in complaints


def test_a_submission_right_after_a_stop_makes_its_job_while_others_wait(quiet: Service) -> None:
    first = quiet.submit(quiet.training("first", 3), *LATER, end="cancelled")
    with quiet.typing("wait", first):
        quiet.runner("stop")
        second = quiet.submit(quiet.training("second", 3), *LATER, end="cancelled")
        assert quiet.reaches(second, "queued")["name"] == "second"
        quiet.runner("cancel", first, second)


def test_who_waits_or_follows_survives_more_kills_than_a_question_is_tried(quiet: Service) -> None:
    job_id = quiet.submit(quiet.training("later", 3), *LATER, end="cancelled")
    with quiet.typing("wait", job_id) as waits, quiet.typing("events", "-f", job_id) as follows:
        assert "submitted" in told(follows)
        for _ in range(8):
            until(lambda: answers(str(quiet.socket)), "a follower has brought the daemon back")
            pid = quiet.daemon_pid()
            os.kill(pid, signal.SIGKILL)
            quiet.await_end(pid)
        quiet.client.version()
        quiet.runner("cancel", job_id)
        end, complaints = waits.communicate(timeout=patience())
        assert "cancelled" in end, complaints
        assert any("cancel" in told(follows) for _ in range(3))
