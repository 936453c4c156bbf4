"""Bad input to ``runner run`` and its relatives: one line, the documented code, nothing left."""

import os
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runner.base.errors import Refused, UsageError
from runner.client.http import ErrorResponse
from runner.client.sessions import finished, open_session
from tests.fakes.daemon.service import RUNNER, Service, service, until
from tests.fakes.patience import patience

MANY = 40


@pytest.fixture(scope="module")
def daemon() -> Iterator[Service]:
    with service(executor="process", code_bytes=65536) as made:
        yield made.start()


@pytest.fixture
def here(daemon: Service) -> Path:
    """A directory that a daemon in two parts reads, too: it opens the files of root as another user."""
    made = Path(tempfile.mkdtemp(dir=daemon.root))
    made.chmod(0o755)
    return made


def typed(daemon: Service, here: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Type a command in a directory."""
    return subprocess.run(
        [*RUNNER, *words],
        cwd=here,
        env=daemon.environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=patience(),
    )


def kept(daemon: Service) -> set[Path]:
    """Return the files of run directories and of code that the daemon has kept, drafts included."""
    places = (daemon.state / name for name in ("jobs", "code"))
    return {path for place in places for path in place.rglob("*") if not path.is_dir()}


def _socket(place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))


HOSTILE: list[tuple[str, Callable[[Path], object], str]] = [
    ("large.bin", lambda path: path.write_bytes(bytes(70_000)), "and 64 KiB may be; the largest: large.bin"),
    ("a\nb", lambda path: path.write_text(""), "a\\nb: has a line break in its name"),
]

LEFT_OUT: list[tuple[str, Callable[[Path], object], str]] = [
    ("pipe", os.mkfifo, "pipe is a named pipe, and is left out"),
    ("socket", _socket, "socket is a socket, and is left out"),
    (
        "out",
        lambda path: path.symlink_to("/etc/passwd"),
        "out is a link to /etc/passwd, and is left out; it belongs to",
    ),
]


@pytest.mark.parametrize(("name", "make", "fact"), HOSTILE, ids=[each[0].encode().hex() for each in HOSTILE])
def test_code_that_cannot_be_kept_is_one_line_and_leaves_nothing(
    daemon: Service, here: Path, name: str, make: Callable[[Path], object], fact: str
) -> None:
    before = kept(daemon)
    make(here / name)
    done = typed(daemon, here, "run", "--", "true")
    assert (done.returncode, done.stdout) == (UsageError.exit_code, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("runner run: --code: ")
    assert fact in line
    assert kept(daemon) == before
    assert daemon.client.jobs() == []


@pytest.mark.parametrize(("name", "make", "fact"), LEFT_OUT, ids=[each[0] for each in LEFT_OUT])
def test_what_is_no_file_of_the_code_is_left_out_with_a_line(
    daemon: Service, here: Path, name: str, make: Callable[[Path], object], fact: str
) -> None:
    make(here / name)
    _is_left_out(daemon, here, fact)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
def test_a_device_in_the_code_is_left_out_with_a_line(daemon: Service, here: Path) -> None:
    os.mknod(here / "null", 0o20666, os.makedev(1, 3))
    _is_left_out(daemon, here, "null is a device, and is left out")


def _is_left_out(daemon: Service, here: Path, fact: str) -> None:
    done = typed(daemon, here, "run", "--dry-run", "--", "true")
    [line] = [line for line in done.stderr.splitlines() if "left out" in line]
    assert done.returncode == 0
    assert line.startswith("warning: workload.code: ")
    assert fact in line


@pytest.mark.parametrize("words", [("run",), ("run", "-c", "1"), ("run", "--")])
def test_a_run_without_a_command_is_one_line_and_submits_nothing(
    daemon: Service, tmp_path: Path, words: tuple[str, ...]
) -> None:
    done = typed(daemon, tmp_path, *words)
    [line] = done.stderr.splitlines()
    assert done.returncode == UsageError.exit_code
    assert "there is no COMMAND; write it behind the options" in line
    assert daemon.client.jobs() == []


def test_of_many_sessions_of_one_user_those_above_the_limit_are_refused(daemon: Service) -> None:
    """The daemon answers meanwhile, and afterwards nothing of them is left."""
    file = daemon.file(
        "sleeper", workload={"kind": "program", "command": ["sleep", "1000"]}, resources={"memory": "1GiB"}
    )
    job = daemon.submit(file, end="cancelled")
    daemon.reaches(job, "running")
    sessions = [open_session(daemon.client, job, "exec", {"argv": ["sleep", "777"]}) for _ in range(MANY)]
    refused = 0
    limit = 32  # sessions_per_user, by default
    try:
        until(lambda: daemon.told(job).count("exec of sleep, begun") == limit, "as many as may have begun")
        assert daemon.job(job)["state"] == "running"
        for session in sessions[limit:]:
            refused += _is_refused(session)
    finally:
        for session in sessions:
            session.close()
    assert refused == MANY - limit
    until(lambda: daemon.told(job).count("exec of sleep of root, ended") == limit, "all have ended")
    until(lambda: not _sleepers(), "no command is left")
    daemon.runner("cancel", job)
    daemon.ends(job)


def _is_refused(session: object) -> bool:
    """Read a session to its end; return whether it was refused for the limit."""
    try:
        while True:
            for message in session.receive():  # type: ignore[attr-defined]
                finished(message.json())
    except ErrorResponse as error:
        return error.code == Refused.exit_code and "sessions already (sessions_per_user)" in str(error)
    except EOFError:
        return False


def _sleepers() -> list[str]:
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in found.splitlines() if line == "sleep 777"]
