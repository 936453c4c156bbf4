import os
import signal
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from errno import ENOSPC
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest

from runner.base.errors import Unavailable
from runner.client import autostart
from runner.client.autostart import (
    start,
)
from runner.client.client import find_or_start
from tests.unit.runner.client.test_autostart import Stand, quiet, starting

if TYPE_CHECKING:
    import subprocess


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    stand = Stand(tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(autostart, "LOCKED_PAUSE_S", 0.01)
    monkeypatch.setenv("RUNNER_STATE_DIR", str(tmp_path))
    monkeypatch.delenv("RUNNER_SOCKET", raising=False)
    yield stand
    stand.kill_all()


# --- starting


def test_the_first_command_starts_the_daemon_and_the_second_finds_it(stand: Stand) -> None:
    stand.daemon_works()
    for _ in range(2):
        client = find_or_start()
        assert client.version()["pid"] == stand.pids[0]
    assert len(stand.pids) == 1
    assert os.getsid(stand.pids[0]) == stand.pids[0]
    assert (stand.directory / "daemon.log").stat().st_mode & 0o777 == 0o600


def test_a_stale_socket_does_not_keep_the_daemon_from_being_started(stand: Stand) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(stand.place.socket)
    stand.daemon_works(first=f"rm '{stand.place.socket}'")
    assert find_or_start().version()["pid"] == stand.pids[0]


def test_a_daemon_killed_between_two_questions_is_started_again(stand: Stand) -> None:
    stand.daemon_works(first=f"rm -f '{stand.place.socket}'")
    client = find_or_start()
    assert client.job("train")["state"] == "running"
    os.kill(stand.pids[0], signal.SIGKILL)
    assert client.job("train")["state"] == "running"
    assert len(stand.pids) == 2


def test_a_daemon_that_dies_at_once_leaves_its_last_line_with_the_user(stand: Stand) -> None:
    (stand.directory / "daemon.log").write_text("a line of the day before\n")
    stand.daemon_is("echo first >&2; echo 'settings.yaml: cpus: must be positive' >&2; exit 2")
    with pytest.raises(Unavailable, match=r"did not start: settings.yaml: cpus: must be positive \(log: /"):
        start(stand.place, quiet)


def test_every_mistake_in_the_settings_reaches_the_user(stand: Stand) -> None:
    lines = ("/etc/s.yaml:1:1: foo: unknown field", "/etc/s.yaml:2:7: cpus: must be a number, not x")
    stand.daemon_is("".join(f"echo '{line}' >&2; " for line in ("before", *lines)) + "exit 2")
    with pytest.raises(Unavailable) as refused:
        start(stand.place, quiet)
    log = stand.directory / "daemon.log"
    assert str(refused.value) == f"the daemon did not start: {lines[0]}\n{lines[1]} (log: {log})"


def test_a_daemon_that_dies_in_silence_is_reported_without_an_older_line(stand: Stand) -> None:
    (stand.directory / "daemon.log").write_text("a line of the day before\n")
    stand.daemon_is("exit 1")
    with pytest.raises(Unavailable, match="did not start: it said nothing"):
        start(stand.place, quiet)


def test_a_daemon_that_only_starts_slowly_is_not_said_to_have_failed(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autostart, "START_LIMIT_S", 1.0)
    stand.daemon_is("exec sleep 600")
    with pytest.raises(
        Unavailable, match=r"\(pid \d+\) does not answer after 1s, and still starts; try again"
    ):
        start(stand.place, quiet)


def test_a_daemon_that_is_killed_before_it_answers_is_started_again(stand: Stand) -> None:
    stand.daemon_works(first=f"[ $(wc -l < '{stand.count}') -ge 3 ] || kill -9 $$")
    start(stand.place, quiet)
    assert len(stand.pids) == 3


def test_a_daemon_that_is_killed_again_and_again_is_given_up_and_the_signal_named(stand: Stand) -> None:
    stand.daemon_is("kill -9 $$")
    with pytest.raises(Unavailable, match=r"the daemon did not start: it was killed by signal 9 \(log: /"):
        start(stand.place, quiet)
    assert len(stand.pids) == autostart.LOCKED_TRIES


def test_a_lock_that_is_about_to_be_released_is_waited_for(stand: Stand) -> None:
    stand.daemon_works(first=f"[ $(wc -l < '{stand.count}') -ge 3 ] || exit 3")
    with held(stand):
        start(stand.place, quiet)
    assert len(stand.pids) == 3


def test_a_lock_released_after_the_refusal_is_tried_once_more(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand.daemon_works(first=f"[ $(wc -l < '{stand.count}') -ge 2 ] || exit 3")
    spawn = autostart._spawn
    with (stand.directory / "lock").open("w") as lock:
        flock(lock, LOCK_EX)

        def then_release(directory: str, log: IO[bytes]) -> "subprocess.Popen[bytes]":
            child = spawn(directory, log)
            lock.close()
            return child

        monkeypatch.setattr(autostart, "_spawn", then_release)
        start(stand.place, quiet)
    assert len(stand.pids) == 2


def test_a_lock_that_stays_is_reported_in_the_daemons_words(stand: Stand) -> None:
    stand.daemon_is("echo 'another daemon (pid 7) has this state' >&2; exit 3")
    with held(stand), pytest.raises(Unavailable, match=r"another daemon \(pid 7\) has this state"):
        start(stand.place, quiet)
    assert len(stand.pids) == autostart.LOCKED_TRIES


def test_a_refusal_that_is_not_the_lock_is_reported_at_once(stand: Stand) -> None:
    stand.daemon_is("echo 'written by a newer runner' >&2; exit 3")
    with pytest.raises(Unavailable, match="written by a newer runner"):
        start(stand.place, quiet)
    assert len(stand.pids) == 1


@contextmanager
def held(stand: Stand) -> Iterator[None]:
    """Hold the lock of the state directory, as a daemon does."""
    with (Path(stand.directory) / "lock").open("w") as lock:
        flock(lock, LOCK_EX)
        yield


def test_of_many_commands_one_starts_the_daemon_and_all_find_it(stand: Stand) -> None:
    stand.daemon_works()
    with ThreadPoolExecutor(8) as threads:
        clients = list(threads.map(lambda _: find_or_start(), range(8)))
    assert len(stand.pids) == 1
    assert {client.version()["pid"] for client in clients} == set(stand.pids)


def test_a_command_that_dies_while_it_starts_the_daemon_leaves_its_turn_to_another(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autostart, "SLOW_START_S", 0.0)
    stand.daemon_works()
    starter = starting(stand)
    told: list[str] = []

    def dies(line: str) -> None:
        told.append(line)
        starter.close()

    start(stand.place, dies)
    assert told[0] == f"waiting for the daemon of {stand.directory}, which another command starts ..."
    assert len(stand.pids) == 1


def test_a_failure_is_left_for_those_who_wait_and_not_for_those_who_come_later(stand: Stand) -> None:
    stand.daemon_is("echo 'cpus: must be positive' >&2; exit 2")
    with pytest.raises(Unavailable):
        start(stand.place, quiet)
    left = (stand.directory / "starting").read_text()
    assert left.startswith(f"{os.getpid()}\nthe daemon did not start: cpus: must be positive")
    stand.daemon_works()
    start(stand.place, quiet)
    assert len(stand.pids) == 2


def test_a_full_disk_is_told_for_the_daemon_that_could_not_write_it_down(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(ENOSPC, os.strerror(ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    stand.daemon_is("exit 1")
    with pytest.raises(Unavailable, match=f"did not start: {stand.directory}: no space left on device"):
        start(stand.place, quiet)


def test_a_slow_start_is_told_and_one_without_end_is_given_up(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autostart, "SLOW_START_S", 0.0)
    monkeypatch.setattr(autostart, "START_LIMIT_S", 0.1)
    stand.daemon_is("exec tail -f /dev/null")
    told: list[str] = []
    with pytest.raises(Unavailable, match=r"does not answer after 0\.1s, and still starts"):
        start(stand.place, told.append)
    assert told == [f"starting the daemon of {stand.directory} ..."]
