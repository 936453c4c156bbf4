import os
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import IO

import pytest

from runner.base.errors import Unavailable, UsageError
from runner.client import autostart
from runner.client.autostart import (
    CONNECT_LIMIT_S,
    SYSTEM_SOCKET,
    Endpoint,
    NoDaemon,
    connect,
    start,
    state_dir,
)
from tests.fakes.daemon import api as fake_api
from tests.fakes.daemon.api import FakeApi

PYTHON = os.path.abspath(sys.executable)  # noqa: PTH100 - a link stays one: it is what finds the packages


def quiet(_: str) -> None:
    """Nobody listens."""


class Stand:
    """A state directory, with a program in it that stands in for the Python which would be the daemon."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.place = Endpoint(str(directory / "runner.sock"), str(directory))
        self.count = directory / "count"

    def daemon_is(self, script: str) -> None:
        program = self.directory / "python"
        counted = f"echo $$ >> '{self.count}'\n"
        program.write_text(f"#!/bin/sh\n{counted}{script}\n")
        program.chmod(0o755)

    def daemon_works(self, first: str = "") -> None:
        program = f"exec '{PYTHON}' '{fake_api.__file__}' '{self.place.socket}'"
        self.daemon_is(f"{first}\n{program}")

    @property
    def pids(self) -> list[int]:
        """The daemons started so far."""
        return [int(line) for line in self.count.read_text().split()]

    def kill_all(self) -> None:
        for child in autostart._started:
            child.kill()
            child.wait()
        autostart.reap_children()


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    stand = Stand(tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(autostart, "LOCKED_PAUSE_S", 0.01)
    monkeypatch.setenv("RUNNER_STATE_DIR", str(tmp_path))
    monkeypatch.delenv("RUNNER_SOCKET", raising=False)
    yield stand
    stand.kill_all()


# --- where


def found(uid: int, **environ: str) -> list[str]:
    return [place.socket for place in autostart.endpoints(environ, uid)]


def test_the_system_daemon_comes_first_and_then_the_users_own() -> None:
    assert found(1000, HOME="/home/ada") == [SYSTEM_SOCKET, "/home/ada/.local/state/runner/runner.sock"]
    assert found(0) == [SYSTEM_SOCKET, "/var/lib/runner/runner.sock"]


def test_the_state_home_of_the_user_is_honoured_unless_it_is_relative() -> None:
    assert state_dir({"XDG_STATE_HOME": "/s", "HOME": "/h"}, 1000) == "/s/runner"
    assert state_dir({"XDG_STATE_HOME": "s", "HOME": "/h"}, 1000) == "/h/.local/state/runner"


def test_a_chosen_state_directory_is_the_only_place_and_may_be_started() -> None:
    (place,) = autostart.endpoints({"RUNNER_STATE_DIR": "/s/../t"}, 1000)
    assert place == Endpoint("/t/runner.sock", "/t")


def test_a_chosen_socket_is_the_only_place_and_is_never_started() -> None:
    (place,) = autostart.endpoints({"RUNNER_SOCKET": "/x/y.sock", "RUNNER_STATE_DIR": "/s"}, 1000)
    assert place == Endpoint("/x/y.sock", None)


def test_a_chosen_socket_that_is_the_users_own_may_be_started() -> None:
    (place,) = autostart.endpoints({"RUNNER_SOCKET": "/s/runner.sock", "RUNNER_STATE_DIR": "/s"}, 1000)
    assert place == Endpoint("/s/runner.sock", "/s")


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(UsageError, match="set RUNNER_STATE_DIR"):
        state_dir({}, 4_000_000)


# --- connecting


def test_a_socket_whose_path_is_too_long_for_the_kernel_is_reached_all_the_same(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 120) / "with space\nand 'quote'"
    directory.mkdir(parents=True)
    with FakeApi(directory / "runner.sock"), connect(str(directory / "runner.sock")) as connection:
        assert connection.getpeername()


def test_who_finds_a_crowd_before_a_daemon_waits_to_be_let_in(tmp_path: Path) -> None:
    path = str(tmp_path / "runner.sock")
    with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor(1) as late:
        listener.bind(path)
        listener.listen(0)
        with connect(path):  # all the room there is
            waiting = late.submit(connect, path)
            with pytest.raises(TimeoutError):
                waiting.result(0.05)
            listener.accept()[0].close()
            with waiting.result(10) as connection:
                assert connection.getpeername() == path
                assert connection.gettimeout() == CONNECT_LIMIT_S


def test_a_stale_socket_is_an_absence_with_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "runner.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    with pytest.raises(NoDaemon, match=r"runner.sock: no daemon answers \(Connection refused\)"):
        connect(str(path))


def test_the_winner_of_a_race_between_two_starts_serves_both(stand: Stand) -> None:
    stand.daemon_is("exit 3")
    with FakeApi(Path(stand.place.socket)):
        start(stand.place, quiet)
        assert autostart.answers(stand.place.socket)


# --- leaving


def holds(stand: Stand, words: str) -> IO[str]:
    """Be a daemon that has the state directory; until the file is closed."""
    file = (stand.directory / "lock").open("w")
    flock(file, LOCK_EX)
    file.write(words)
    file.flush()
    return file


def test_a_daemon_has_left_when_its_lock_is_free(stand: Stand) -> None:
    file = holds(stand, "7 leaving")
    waits: list[float] = []

    def leaves(seconds: float) -> None:
        waits.append(seconds)
        file.close()

    autostart.wait_for_exit(stand.place.state_dir or "", 7, leaves)
    assert len(waits) == 1


def test_a_daemon_has_left_when_another_one_has_its_state(stand: Stand) -> None:
    waits: list[float] = []
    with holds(stand, "8"):
        autostart.wait_for_exit(str(stand.directory), 7, waits.append)
    assert not waits


def test_a_daemon_whose_state_cannot_be_seen_is_not_waited_for(stand: Stand) -> None:
    waits: list[float] = []
    autostart.wait_for_exit(f"{stand.directory}/elsewhere", 7, waits.append)
    assert not waits


def test_a_daemon_that_does_not_leave_is_named(stand: Stand) -> None:
    with holds(stand, "7 leaving"), pytest.raises(Unavailable, match=r"the daemon \(pid 7\) still leaves"):
        autostart.wait_for_exit(str(stand.directory), 7, lambda _: None)


def starting(stand: Stand) -> IO[str]:
    """Be the command whose turn it is to start the daemon; until the file is closed."""
    file = (stand.directory / "starting").open("w+")
    flock(file, LOCK_EX)
    file.write("123")
    file.flush()
    return file


def test_what_went_wrong_for_one_command_is_told_by_those_that_waited_for_it(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autostart, "SLOW_START_S", 0.0)
    stand.daemon_works()
    starter = starting(stand)

    def fails(_: str) -> None:
        starter.write("\nthe daemon did not start: cpus: must be positive")
        starter.close()

    with pytest.raises(Unavailable, match="did not start: cpus: must be positive"):
        start(stand.place, fails)
    assert not stand.count.exists()


def test_a_daemon_that_answers_before_its_starter_is_done_is_enough(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autostart, "START_LIMIT_S", 0.0)
    with starting(stand), FakeApi(Path(stand.place.socket)):
        start(stand.place, quiet)
    assert not stand.count.exists()


def test_a_starter_that_does_not_end_is_named(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autostart, "START_LIMIT_S", 0.0)
    with (
        starting(stand),
        pytest.raises(Unavailable, match="process 123 is starting the daemon, and does not"),
    ):
        start(stand.place, quiet)


def test_a_state_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match="file/state: cannot keep the daemon's state here"):
        start(Endpoint("/nowhere/s", str(tmp_path / "file" / "state")), quiet)


def test_somebody_elses_daemon_is_not_started() -> None:
    with pytest.raises(NoDaemon):
        start(Endpoint("/nowhere/runner.sock", None), quiet)


def test_an_empty_state_directory_is_not_taken_for_none_at_all() -> None:
    with pytest.raises(UsageError, match="RUNNER_STATE_DIR is empty; unset it"):
        autostart.endpoints({"RUNNER_STATE_DIR": ""}, 0)
