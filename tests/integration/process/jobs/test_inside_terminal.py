"""The program that holds a terminal inside of a job, and what it tells whoever connects."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import jobs.inside.terminal as module
from jobs.inside.terminal import HEAD, HELLO
from tests.fakes.daemon.service import until
from tests.fakes.patience import patience

HOLDER: Final = str(module.__file__)


@contextmanager
def holding(directory: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Hold a terminal whose program has begun."""
    arguments = [sys.executable, HOLDER, str(directory), "t", "24", "80", "--", *command]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        try:
            yield holder
        finally:
            holder.kill()


def has_ended(holder: subprocess.Popen[bytes]) -> bool:
    """Return True if the program has ended, and its holder knows."""
    return not Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text()


def shown(directory: Path) -> tuple[bytes, int]:
    """Return what a terminal shows to somebody who connects now, and the exit code of its program."""
    output = b""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(patience())
        connection.connect(str(directory / "t"))
        hello = HELLO.pack(24, 80, True)  # noqa: FBT003  (its field)
        connection.sendall(HEAD.pack(b"h", len(hello)) + hello)
        stream = connection.makefile("rb")
        while head := stream.read(HEAD.size):
            kind, size = HEAD.unpack(head)
            content = stream.read(size)
            if kind == b"x":
                return output, int.from_bytes(content, "big")
            output += content
    raise AssertionError(output)


def test_the_first_who_connects_is_told_how_a_program_ended_before(
    tmp_path: Path,
) -> None:
    with holding(tmp_path, "no-such-command") as holder:
        until(lambda: has_ended(holder), "the program has ended")
        assert shown(tmp_path) == (b"no-such-command: No such file or directory\r\r\n", 127)
        assert holder.wait(patience()) == 127


def test_nobody_is_waited_for_once_the_holder_is_told_to_end(tmp_path: Path) -> None:
    with holding(tmp_path, "true") as holder:
        until(lambda: has_ended(holder), "the program has ended")
        holder.send_signal(signal.SIGTERM)
        assert holder.wait(module.FIRST_S / 2) == 0
