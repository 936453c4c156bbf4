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


@pytest.fixture
def remote_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of local state directories, where every home directory is on NFS."""
    kinds: dict[bool, str | None] = {True: None, False: "nfs4"}
    monkeypatch.setattr(autostart, "LOCAL_PLACES", str(tmp_path))
    monkeypatch.setattr(autostart, "remote_type", lambda path: kinds[path.startswith(str(tmp_path))])
    return tmp_path


def test_a_home_on_a_remote_file_system_gives_way_to_a_private_place_on_this_host(remote_home: Path) -> None:
    uid = os.geteuid() or 4_000_000
    place = remote_home / f"runner-{uid}"
    place.mkdir(0o700)
    os.chown(place, uid, -1)
    assert state_dir({"HOME": "/home/ada"}, uid) == str(place)
    assert state_dir({"RUNNER_STATE_DIR": "/home/ada/s"}, uid) == "/home/ada/s"  # the daemon refuses it
    assert state_dir({}, 0) == "/var/lib/runner"


def test_the_private_place_is_made_for_its_user_alone(remote_home: Path) -> None:
    uid = os.geteuid()
    assert autostart._make_local_place(uid) == str(remote_home / f"runner-{uid}")
    assert (remote_home / f"runner-{uid}").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("kind", ["another's", "open", "link", "file"])
def test_a_private_place_that_is_not_the_users_alone_is_never_asked(remote_home: Path, kind: str) -> None:
    uid, place = os.geteuid(), remote_home / f"runner-{os.geteuid()}"
    match kind:
        case "another's":
            uid, place = uid + 1, remote_home / f"runner-{uid + 1}"
            place.mkdir(0o700)
        case "open":
            place.mkdir()
            place.chmod(0o755)
        case "link":
            (remote_home / "elsewhere").mkdir(0o700)
            place.symlink_to(remote_home / "elsewhere")
        case _:
            place.touch(0o600)
    with pytest.raises(UsageError, match=r"not a directory of yours alone.*set RUNNER_STATE_DIR"):
        autostart._make_local_place(uid)


def test_a_host_without_a_local_place_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autostart, "LOCAL_PLACES", str(tmp_path))
    monkeypatch.setattr(autostart, "remote_type", lambda _: "lustre")
    with pytest.raises(UsageError, match=r"on a remote file system, too.*set RUNNER_STATE_DIR"):
        autostart._make_local_place(os.geteuid())
    monkeypatch.setattr(autostart, "LOCAL_PLACES", str(tmp_path / "none"))
    with pytest.raises(UsageError, match=r"No such file.*set RUNNER_STATE_DIR"):
        autostart._make_local_place(os.geteuid())


def test_the_private_place_is_told_before_its_first_daemon_and_not_again(
    remote_home: Path,
) -> None:
    said: list[str] = []
    place = autostart._make_local_place(os.geteuid())
    autostart._tell_of_local_place(str(remote_home), said.append)
    assert said == []
    autostart._tell_of_local_place(place, said.append)
    assert len(said) == 1
    assert place in said[0]
    (remote_home / place / "store.db").touch()
    autostart._tell_of_local_place(place, said.append)
    assert len(said) == 1


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
                assert not any(connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, 16))


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
    with (
        holds(stand, "7 leaving"),
        pytest.raises(Unavailable, match=r"the daemon \(pid 7\) is still stopping"),
    ):
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
