"""Each connection of a relay has a program of its own, and bytes go both ways."""

import socket
import sys
import threading
from pathlib import Path

import pytest

from runner.client.relay import serve
from tests.fakes.daemon.service import until
from tests.fakes.patience import patience

UPPER = (
    "import sys\nfor line in sys.stdin.buffer:\n    sys.stdout.buffer.write(line.upper()); sys.stdout.flush()"
)


def serving(path: Path, idle_s: float) -> threading.Thread:
    command = [sys.executable, "-c", UPPER]
    thread = threading.Thread(target=serve, args=(str(path), command, idle_s), daemon=True)
    thread.start()
    return thread


@pytest.fixture
def relay(tmp_path: Path) -> Path:
    path = tmp_path / "r.sock"
    serving(path, patience())
    until(path.exists, "the relay listens")
    assert path.stat().st_mode & 0o777 == 0o600
    return path


def connected(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(patience())
    connection.connect(str(path))
    return connection


def test_bytes_go_both_ways_for_several_at_once(relay: Path) -> None:
    with connected(relay) as one, connected(relay) as other:
        for number in range(3):
            one.sendall(b"one %d\n" % number)
            other.sendall(b"other %d\n" % number)
            assert one.recv(100) == b"ONE %d\n" % number
            assert other.recv(100) == b"OTHER %d\n" % number


def test_the_end_of_one_side_ends_the_other(relay: Path) -> None:
    with connected(relay) as one:
        one.sendall(b"last\n")
        one.shutdown(socket.SHUT_WR)
        assert one.recv(100) == b"LAST\n"
        assert one.recv(100) == b""


def test_it_ends_when_nobody_has_come_for_a_while(tmp_path: Path) -> None:
    path = tmp_path / "r.sock"
    thread = serving(path, 0.1)
    thread.join(patience())
    assert not thread.is_alive()
    assert not path.exists()
