"""``runner forward``, typed, with a server inside of a job."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from runner.base.errors import Refused, UsageError
from tests.fakes.daemon.ports import SERVER, fetch, forwarding, free_port, sockets
from tests.fakes.daemon.service import Service, service, until
from tests.fakes.patience import patience

PORT, CLOSED = free_port(), free_port()

FETCH_AS_ANOTHER = """
import os, socket, sys
os.setgid(65532); os.setuid(65532)
connection = socket.socket()
connection.settimeout(300)
connection.connect(("127.0.0.1", int(sys.argv[1])))
try:
    connection.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
    sys.exit(len(connection.recv(100)))
except (ConnectionResetError, BrokenPipeError):
    sys.exit(0)
"""


@pytest.fixture(scope="module")
def daemon() -> Iterator[Service]:
    with service(executor="process", sessions_per_user=20) as made:
        yield made.start()


@pytest.fixture(scope="module")
def job(daemon: Service) -> Iterator[str]:
    """A job in which a server listens."""
    file = daemon.file(
        "server",
        workload={"kind": "program", "command": ["python3", "-c", SERVER, str(PORT)]},
        resources={"memory": "1GiB"},
    )
    job_id = daemon.submit(file, end="cancelled")
    daemon.runs(job_id, "ready")
    yield job_id
    daemon.runner("cancel", job_id)
    daemon.ends(job_id)


def test_a_server_inside_answers_on_the_loopback(daemon: Service, job: str) -> None:
    with forwarding(daemon, job, f"0:{PORT}") as (_, port):
        for number in range(5):
            assert fetch(port, f"/{number}") == f"inside /{number}".encode() + b"x" * 300000
    until(lambda: not sockets(daemon.paths(job).terminals), "the relay has ended")
    assert f"port {PORT} forwarded, begun by root" in daemon.told(job)


def test_the_end_of_what_forwards_is_waited_for_once(daemon: Service, job: str) -> None:
    """Twice, the second wait could be for another process that has got its pid."""
    with forwarding(daemon, job, f"0:{PORT}"):
        pass
    until(lambda: not sockets(daemon.paths(job).terminals), "the relay has ended")
    until(lambda: not ended_children(daemon.pid()), "the relay has been waited for")
    assert "never retrieved" not in daemon.daemon_log()


def ended_children(parent: int | None) -> list[str]:
    """Return the processes of a daemon that have ended, and that it has not waited for."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, above = path.read_text().rpartition(")")[2].split()[:2]
            found += [path.parent.name] if (state, above) == ("Z", str(parent)) else []
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_process_of_another_user_is_turned_away(daemon: Service, job: str) -> None:
    with forwarding(daemon, job, f"0:{PORT}") as (command, port):
        other = subprocess.run(
            [sys.executable, "-c", FETCH_AS_ANOTHER, str(port)], check=False, timeout=patience()
        )
        assert other.returncode == 0
        assert command.stderr is not None
        assert command.stderr.readline() == "a process of another user was turned away\n"
        assert fetch(port, "/").startswith(b"inside")


def test_a_closed_port_is_one_line_and_a_closed_connection(daemon: Service, job: str) -> None:
    with forwarding(daemon, job, f"0:{CLOSED}") as (command, port):
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", port), 60) as connection:
                assert connection.recv(100) == b""
        command.send_signal(signal.SIGINT)
        assert command.stderr is not None
        line, last = command.stderr.read().splitlines()
        assert line == "nothing answers at this port of the job (Connection refused)"
        assert last == "interrupted"


def test_it_goes_on_after_the_daemon_was_killed(daemon: Service, job: str) -> None:
    with forwarding(daemon, job, f"0:{PORT}") as (command, port):
        daemon.kill()
        assert command.stderr is not None
        assert command.stderr.readline() == "the daemon has stopped; waiting for it\n"
        until(lambda: _answers(port), "the port leads into the job again")


def _answers(port: int) -> bool:
    try:
        return fetch(port, "/").startswith(b"inside")
    except OSError:
        return False


def test_it_ends_with_its_job(daemon: Service) -> None:
    file = daemon.file(
        "brief", workload={"kind": "program", "command": ["sleep", "1000"]}, resources={"memory": "1GiB"}
    )
    job_id = daemon.submit(file, end="cancelled")
    daemon.reaches(job_id, "running")
    with forwarding(daemon, job_id, "0:6006") as (command, _):
        daemon.runner("cancel", job_id)
        assert command.wait(patience()) == 11
        assert command.stderr is not None
        assert command.stderr.read() == "job brief ended (cancelled by root); the forwarding ended with it\n"


def test_a_port_of_this_machine_that_is_taken_is_refused(daemon: Service, job: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = daemon.runner("forward", job, f"{port}:6006", code=UsageError.exit_code)
    assert said == f"port {port} of this machine: address already in use; name another one: LOCAL:REMOTE\n"


@pytest.mark.parametrize("ports", ["0", "65536", "6006:65536", "http", "1:2:3"])
def test_what_is_no_port_is_refused(daemon: Service, job: str, ports: str) -> None:
    assert "is not REMOTE or LOCAL:REMOTE" in daemon.runner("forward", job, ports, code=UsageError.exit_code)


def test_a_job_that_does_not_run_forwards_nothing(daemon: Service) -> None:
    file = daemon.file(
        "over", workload={"kind": "program", "command": ["true"]}, resources={"memory": "1GiB"}
    )
    job_id = daemon.submit(file)
    daemon.ends(job_id)
    assert "a session needs a running job" in daemon.runner(
        "forward", job_id, "0:6006", code=Refused.exit_code
    )
