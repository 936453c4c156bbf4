"""What is told of the end of a program besides its exit code, over a real daemon, store and run directory."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.adapters.host.run_directory import HostRunDirectory
from runner.core.ports.checkpoints import RoomToSave
from runner.services.submission import service as submission
from tests.unit.runner.server.api.test_jobs import Site

PROGRAM = "workload: {kind: program, command: [python, train.py]}\nretry: {max_attempts: 1}\n"
RAISED = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nKeyError: 3\n'


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.service.daemon.stop()


def write(site: Site, name: str, text: str) -> None:
    """Write a file beside the log of the attempt, as its user does."""
    path = site.attempt_dir() / name
    path.write_text(text)
    if os.geteuid() == 0:
        owner = site.attempt_dir().stat()
        os.chown(path, owner.st_uid, owner.st_gid)


@pytest.mark.parametrize(
    ("log", "free_bytes", "end"),
    [
        ("step 8\n", 0, (1, "disk_full")),
        ("step 8\n", 0, (135, "disk_full")),
        ("step 8\n", 2**30, (1, "exception")),
        ("step 8\n", 0, (137, "killed")),
        (RAISED, 0, (1, "exception")),
        ("step 8\n", 0, (0, "completed")),
    ],
)
def test_a_program_that_fails_without_a_word_on_a_full_disk_has_failed_of_that(
    site: Site, monkeypatch: pytest.MonkeyPatch, log: str, free_bytes: int, end: tuple[int, str]
) -> None:
    monkeypatch.setattr(HostRunDirectory, "room_to_save", lambda *_: RoomToSave(free_bytes, 0))
    site.submit(PROGRAM)
    site.until("running")
    write(site, "log.txt", log)
    code, cause = end
    site.end(code)
    job = site.until("held" if cause == "disk_full" else "finished")
    attempt = job["attempts"][0]
    assert attempt["cause"] == cause
    told = f"jobs/1 is full, so the last words of its log may be lost: exit code {code}"
    assert (told in attempt["message"]) is (cause == "disk_full")


@pytest.mark.parametrize(
    ("left", "code", "told"),
    [
        ("python3\n", 0, "1 process was left running, and ended with the attempt: python3"),
        ("sh\nsleep\nsleep\n", 1, "3 processes were left running, and ended with the attempt: sh, sleep"),
        ("\x1b[31mred\n", 0, "ended with the attempt: \\x1b[31mred"),
        ("a\nb\nc\nd\ne\nf\ng\n", 0, "a, b, c, d, e and 2 others"),
    ],
)
def test_what_a_program_has_left_running_is_told(site: Site, left: str, code: int, told: str) -> None:
    site.submit(PROGRAM)
    site.until("running")
    write(site, "left.txt", left)
    site.end(code)
    assert told in site.until("finished")["attempts"][0]["message"]
    events = site.ask("GET", "/events?job=1").json()["events"]
    assert any(told in each["text"] for each in events)


def test_a_submission_to_a_full_disk_says_that_the_job_waits_for_room(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert site.submit(PROGRAM).json()["warnings"] == []
    monkeypatch.setattr(submission, "LEAST_TO_START_BYTES", 2**62)
    [warning] = site.submit(PROGRAM).json()["warnings"]
    assert warning.startswith(f"{site.directory}: ")
    assert warning.endswith("it waits until somebody makes room there")
