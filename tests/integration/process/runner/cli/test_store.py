"""The store of a real daemon is backed up, put back and refused, as the page for operators says."""

import os
import re
import shlex
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.chaos.campaign import processes_below
from tests.fakes.daemon.service import Service, service, until

PAGE = Path(__file__).parents[5] / "docs" / "operate" / "operations.md"
WAITS = "trap 'exit 143' TERM; while test -d $RUNNER_JOB_DIR; do sleep 0.05 & wait $!; done"
"""It waits for a command in the background: of one in the foreground, a shell says how the stop ended it."""
LATER = ("--not-before", "2099-01-01T00:00:00+00:00")


@pytest.fixture
def daemon() -> Iterator[Service]:
    with service(executor="process") as made:
        yield made.start()


def typed_on_the_page() -> list[tuple[str, ...]]:
    """Return the commands of the section about backups, in order."""
    section = PAGE.read_text().split("### Backup and restore")[1].split("\n## ")[0]
    blocks = re.findall(r"```bash\n(.*?)```", section, re.DOTALL)
    return [tuple(shlex.split(line)[1:]) for block in blocks for line in block.splitlines()]


def names(daemon: Service) -> set[str]:
    return {str(job["name"]) for job in daemon.client.jobs()}


def later(daemon: Service, name: str) -> str:
    return daemon.submit(daemon.training(name, 3), *LATER, end="cancelled")


def files(daemon: Service) -> set[str]:
    return {path.name for path in daemon.state.glob("store.db*")}


def refused_start(daemon: Service) -> str:
    return daemon.runner("serve", "--state-dir", str(daemon.state), code=3)


def test_the_commands_of_the_page_put_back_what_was_backed_up(daemon: Service) -> None:
    later(daemon, "kept")
    back_up, stop, put_back, start = typed_on_the_page()
    assert (stop, start) == (("stop", "runner"), ("start", "runner"))  # of systemctl; it names one's own, too
    daemon.runner(*back_up)
    later(daemon, "lost")
    refusal = daemon.runner(*put_back, code=3)
    assert "another daemon" in refusal
    assert "runner stop ends it" in refusal
    daemon.runner("stop")
    assert files(daemon) == {"store.db"}
    daemon.runner(*put_back)
    daemon.start()
    assert names(daemon) == {"kept"}
    assert later(daemon, "next") == "3"  # the run directory of job 2 stayed


def test_a_backup_beside_the_log_of_a_killed_daemon_is_refused_not_mixed(daemon: Service) -> None:
    later(daemon, "kept")
    daemon.runner("backup", "copy.db")
    for name in ("lost", "too"):
        later(daemon, name)
    daemon.kill()
    shutil.copyfile(daemon.root / "copy.db", daemon.state / "store.db")
    assert "belongs to another file than the store.db beside it" in refused_start(daemon)
    daemon.runner("restore", "copy.db")
    daemon.start()
    assert names(daemon) == {"kept"}


def test_a_killed_daemon_is_followed_by_one_that_trusts_its_log(daemon: Service) -> None:
    later(daemon, "first")
    for _ in range(2):
        daemon.kill()
        assert "store.db-wal" in files(daemon)
        daemon.start()
    assert names(daemon) == {"first"}


@pytest.mark.parametrize("how", ["emptied", "removed"])
def test_a_lost_store_beside_run_directories_is_refused_with_the_next_step(daemon: Service, how: str) -> None:
    later(daemon, "kept")
    daemon.runner("backup", "copy.db")
    daemon.runner("stop")
    (daemon.state / "jobs" / "1").mkdir(parents=True, exist_ok=True)
    store = daemon.state / "store.db"
    store.write_bytes(b"") if how == "emptied" else store.unlink()
    refusal = refused_start(daemon)
    assert "is missing or empty, but there are run directories of jobs up to 1" in refusal
    assert "runner restore FILE" in refusal
    daemon.runner("restore", "copy.db")
    daemon.start()
    assert names(daemon) == {"kept"}


def test_a_file_that_is_no_store_is_not_restored(daemon: Service) -> None:
    daemon.runner("stop")
    before = (daemon.state / "store.db").read_bytes()
    (daemon.root / "notes").write_bytes(b"notes\n" * 100)
    (daemon.root / "empty").touch()
    with closing(sqlite3.connect(daemon.root / "other.db")) as other:
        other.execute("CREATE TABLE notes (text)")
    wrong = {
        "notes": "is not a job store",
        "empty": "is empty",
        "other.db": "is a database, but not a job store",
        "missing": "no such file",
        "state": "is a directory",
        "/dev/null": "is no regular file",
    }
    for name, fact in wrong.items():
        said = daemon.runner("restore", name, code=3)
        assert said == f"{daemon.root / name}: {fact}; give a file that runner backup has made\n"
    assert "no file has an empty name" in daemon.runner("restore", "", code=2)
    assert (daemon.state / "store.db").read_bytes() == before
    assert files(daemon) == {"store.db"}


def test_a_backup_that_cannot_be_made_says_why(daemon: Service) -> None:
    assert "no such directory; make it" in daemon.runner("backup", "missing/copy.db", code=3)
    assert "no file has an empty name" in daemon.runner("backup", "", code=2)
    daemon.runner("stop")
    (daemon.state / "store.db").unlink()
    assert "no such file; there is nothing to back up" in daemon.runner("backup", "copy.db", code=3)
    assert not (daemon.root / "copy.db").exists()


def test_a_backup_does_not_replace_a_file(daemon: Service) -> None:
    (daemon.root / "copy.db").write_text("mine")
    assert "exists" in daemon.runner("backup", "copy.db", code=3)
    assert (daemon.root / "copy.db").read_text() == "mine"


def program(daemon: Service, name: str, script: str) -> str:
    """Submit a program, and return the job's id."""
    workload = {"kind": "program", "command": ["/bin/sh", "-c", script]}
    resources = {"cpus": 1, "memory": "64MiB"}
    return daemon.submit(daemon.file(name, workload=workload, resources=resources, retry={"backoff": "0s"}))


def test_after_a_restore_no_attempt_gets_the_number_or_the_log_of_one_that_the_store_does_not_know(
    daemon: Service,
) -> None:
    job_id = program(daemon, "often", f"echo attempt $RUNNER_ATTEMPT; {WAITS}")
    daemon.runs(job_id, "attempt 1")
    copy = str(daemon.root / "copy.db")
    daemon.runner("backup", copy)
    daemon.client.act(job_id, "restart", {"from": "scratch"})
    daemon.prints(job_id, "attempt 2", attempt=2)
    daemon.runner("cancel", job_id)
    daemon.ends(job_id)
    daemon.runner("stop")
    daemon.runner("restore", copy)
    daemon.start()
    daemon.prints(job_id, "attempt 3", attempt=3)
    assert daemon.log(job_id, 2) == "attempt 2\n"
    assert [attempt["number"] for attempt in daemon.job(job_id)["attempts"]] == [1, 3]
    assert "job.attempts_skipped" in daemon.daemon_log()
    daemon.client.act(job_id, "restart", {"from": "scratch"})
    daemon.prints(job_id, "attempt 4", attempt=4)
    assert daemon.job(job_id)["attempts"][-1]["lineage"] == 3
    daemon.runner("cancel", job_id)


def test_an_attempt_that_the_restored_store_does_not_know_is_not_joined_by_another(daemon: Service) -> None:
    job_id = program(daemon, "twice", f"echo attempt $RUNNER_ATTEMPT; {WAITS}")
    daemon.runs(job_id, "attempt 1")
    copy = str(daemon.root / "copy.db")
    daemon.runner("backup", copy)
    daemon.client.act(job_id, "restart", {"from": "checkpoint"})
    daemon.prints(job_id, "attempt 2", attempt=2)
    daemon.runner("stop")
    daemon.runner("restore", copy)
    daemon.start()
    until(lambda: "attempt 2 still runs" in daemon.runner("why", job_id), "why names attempt 2")
    [program_pid] = [pid for pid in processes_below(daemon.state / "jobs" / job_id) if is_shell(pid)]
    os.kill(program_pid, signal.SIGTERM)
    daemon.prints(job_id, "attempt 3", attempt=3)
    daemon.runner("cancel", job_id)


def is_shell(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"/bin/sh\0-c\0echo")
    except (FileNotFoundError, ProcessLookupError):  # a child that has just ended
        return False


def test_jobs_that_a_restored_store_does_not_know_are_named(daemon: Service) -> None:
    later(daemon, "kept")
    copy = str(daemon.root / "copy.db")
    daemon.runner("backup", copy)
    lost = later(daemon, "lost")
    daemon.runner("stop")
    daemon.runner("restore", copy)
    daemon.start()
    assert "jobs.not_in_store" in daemon.daemon_log()
    assert f"does not know, as after a restore: {lost};" in daemon.runner("list")
    refused = daemon.runner("show", lost, code=2)
    assert str(daemon.state / "jobs" / lost) in refused
