"""Faults of the state directory itself: stale, taken, newer, damaged, full."""

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.test_checkpoints_damaged import fill
from tests.fakes.daemon.service import Service, service, until

pytestmark = pytest.mark.engine


@pytest.fixture
def quiet() -> Iterator[Service]:
    """A daemon that has nothing to do, and not started yet."""
    with service(executor="process") as made:
        made.state.mkdir()
        yield made


def serve(quiet: Service, code: int) -> str:
    return quiet.runner("serve", "--state-dir", str(quiet.state), code=code)


def test_a_stale_socket_gives_way(quiet: Service) -> None:
    quiet.start().kill()
    assert quiet.socket.is_socket()
    quiet.runner("list")
    assert quiet.client.version()["pid"] == quiet.told_pid()


def test_a_second_daemon_on_the_same_state_is_refused_and_disturbs_nothing(quiet: Service) -> None:
    quiet.start()
    pid = quiet.told_pid()
    said = serve(quiet, code=3)
    assert f"{quiet.state}: another daemon (pid {pid}) has this state; runner stop ends it" in said
    assert quiet.client.version()["pid"] == pid


def test_a_store_of_a_newer_version_is_refused_and_not_a_byte_of_it_changes(quiet: Service) -> None:
    quiet.start().kill()
    with sqlite3.connect(quiet.state / "store.db") as store:
        store.execute("PRAGMA user_version = 99")
        store.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store.close()
    before = store_bytes(quiet.state)
    said = serve(quiet, code=3)
    assert "written by a newer runner (store version 99, known:" in said
    assert "written by a newer runner" in quiet.runner("list", code=4)
    assert store_bytes(quiet.state) == before
    for path in quiet.state.glob("store.db*"):  # nothing for the cleaning up to talk to
        path.unlink()


def store_bytes(state: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in state.glob("store.db*")}


def test_something_that_is_no_store_is_refused_and_kept(quiet: Service) -> None:
    (quiet.state / "store.db").write_bytes(b"somebody's notes\n" * 100)
    assert "is not a job store; move it away" in serve(quiet, code=3)
    assert (quiet.state / "store.db").read_bytes() == b"somebody's notes\n" * 100
    (quiet.state / "store.db").unlink()


@pytest.fixture(params=["4m"])
def small_state(counter: str, request: pytest.FixtureRequest) -> Iterator[Service]:
    """A daemon whose whole state lies on a small file system."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    with service(executor="docker", allowed_images={"counter": counter}) as daemon:
        daemon.state.mkdir()
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={request.param},mode=755", "tmpfs", daemon.state],
            check=True,
        )
        yield daemon.start()


def test_a_full_state_directory_refuses_what_is_new_and_loses_nothing_that_was_there(
    small_state: Service,
) -> None:
    job_id = small_state.submit(small_state.counting("count", 160, retry={"no_progress": 100}))
    small_state.prints(job_id, "step 12")
    filler = fill(small_state.state, leaving=0)
    use_up_the_last_page(small_state.state / "daemon.log")  # from here on, logging fails too
    assert "is the disk full" in small_state.runner("submit", str(small_state.counting("late", 5)), code=4)
    until(lambda: "is the disk full" in small_state.job(job_id)["why"], "a reason")
    small_state.kill()
    small_state.runner("list", code={0, 4})  # a new daemon may find a page left for its files, or not
    filler.unlink()
    small_state.runner("list")
    small_state.reaches(job_id, "held")
    assert "a disk or a quota is full" in small_state.told(job_id)
    small_state.runner("release", job_id)
    small_state.reaches(job_id, "running")
    ended = small_state.ends(job_id)
    assert (ended["outcome"], ended["attempt"]) == ("succeeded", 2)
    assert ended["result"]["resumed_from"] >= 10
    small_state.assert_whole()


@pytest.mark.parametrize("small_state", ["64m"], indirect=True)
def test_on_a_full_disk_jobs_are_cancelled_and_daemons_started_with_the_room_that_was_kept(
    small_state: Service,
) -> None:
    """Or nobody could stop what fills it."""
    job_id = small_state.submit(small_state.counting("count", 6000), end="cancelled")
    small_state.runs(job_id, "step 2")
    filler = fill(small_state.state, leaving=0)
    late = small_state.submit(small_state.counting("late", 3))
    until(lambda: "No space left on device" in small_state.job(late)["why"], "a reason")
    small_state.kill()
    small_state.runner("list")
    small_state.runner("cancel", job_id)
    filler.unlink()
    assert small_state.ends(job_id)["outcome"] == "cancelled"
    assert small_state.ends(late)["outcome"] == "succeeded"
    small_state.assert_whole()


def use_up_the_last_page(path: Path) -> None:
    """Append to a file what fits without a new block."""
    with path.open("ab") as file:
        file.write(b"\n" * (-file.tell() % os.sysconf("SC_PAGE_SIZE")))


def test_a_state_directory_with_a_hostile_name_serves_jobs(hostile_path: Path, counter: str) -> None:
    with service(executor="docker", allowed_images={"counter": counter}) as daemon:
        daemon.state_name = hostile_path.name
        daemon.start()
        job_id = daemon.submit(daemon.counting("count", 3))
        assert daemon.ends(job_id)["outcome"] == "succeeded"
        assert daemon.runner("logs", job_id).splitlines()[-1] == "end"
    shutil.rmtree(hostile_path)
