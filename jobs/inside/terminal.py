"""Holds the terminal of a program, so that people can leave it and come back.

``terminal.py DIRECTORY NAME ROWS COLUMNS [--log] -- COMMAND...`` gives COMMAND a new terminal and listens on
the socket ``DIRECTORY/NAME``.  The program belongs to the job, and so does this one: nothing of it depends on
the daemon, which may die and come back.  Whoever connects sees the end of what was written before, and then
everything; several may be connected.  With ``--log`` all output goes to standard output, too.

Messages are one byte for the kind, four for the length, and the content.  To this program: ``h`` (first:
rows, columns, whether to repeat the last output), ``d`` (input), ``s`` (rows, columns), ``n`` (a notice for
everybody who is connected).  From it: ``d`` (output) and at last ``x`` (the exit code).
"""

# Any Python from 3.7 on runs this file, and a start should take little: no pathlib.
# ruff: noqa: PTH100, PTH101, PTH103, PTH108, PTH109, PTH118

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import os
import select
import signal
import socket
import struct
import sys
import termios
import time

REPEATED_BYTES = 256 * 1024
"""So much of the last output is repeated for whoever connects."""

PENDING_BYTES = 1024 * 1024
"""So much may wait for a slow reader; then the program waits for it."""

MAX_MESSAGE_BYTES = 1024 * 1024
MAX_READERS = 8
CHUNK_BYTES = 64 * 1024
FLUSH_S = 5.0
FIRST_S = 10.0
"""Wait at the end of a program for the first who connects: whoever asked for it may be slower."""

TOUCH_S = 1.0
HEAD = struct.Struct("!cI")
SIZE = struct.Struct("!HH")
HELLO = struct.Struct("!HH?")
EXIT = struct.Struct("!I")


class TerminalReader:
    """Somebody who is connected."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.received = bytearray()
        self.pending = bytearray()
        self.greeted = False

    def messages(self) -> list[tuple[bytes, bytes]]:
        """Return the messages that are complete, removed from what was received."""
        found = []
        while len(self.received) >= HEAD.size:
            kind, size = HEAD.unpack_from(self.received)
            if size > MAX_MESSAGE_BYTES:
                raise ValueError("too long")
            if len(self.received) < HEAD.size + size:
                break
            found.append((kind, bytes(self.received[HEAD.size : HEAD.size + size])))
            del self.received[: HEAD.size + size]
        return found

    def tell(self, kind: bytes, content: bytes) -> None:
        self.pending += HEAD.pack(kind, len(content)) + content


class Terminal:
    """A program on a terminal of its own, and everybody who is connected."""

    def __init__(self, listener: socket.socket, path: str, master: int, child: int, *, log: bool) -> None:
        self.listener = listener
        self.path = path
        self.master = master
        self.child = child
        self.log = log
        self.readers: dict[int, TerminalReader] = {}
        self.last = bytearray()
        self.input = bytearray()
        self.status: int | None = None
        self.touched_s = 0.0
        self.ended = False
        self.met = log  # somebody has been connected; the log gets everything in any case
        self.ended_s: float | None = None

    def run(self, wakeup: int, attempt: int | None) -> int:
        """Move bytes until the program has ended; return its exit code."""
        while True:
            readable, writable = self.interests(wakeup, attempt)
            ready, sendable, _ = select.select(readable, writable, [], self.left_s())
            for descriptor in sendable:
                self.write_to(descriptor)
            for descriptor in ready:
                if descriptor == wakeup:
                    self.handle_signals(wakeup)
                elif descriptor == attempt:
                    self.end_program()
                    attempt = None
                elif descriptor == self.listener.fileno():
                    self.accept()
                elif descriptor == self.master:
                    self.read_output()
                elif descriptor in self.readers:
                    self.read_from(self.readers[descriptor])
            if self.status is not None and self.left_s() == 0:
                return self.finish(self.status)

    def left_s(self) -> float | None:
        """Return the time to wait for the first who connects, None while the program runs."""
        if self.ended_s is None:
            return None
        return 0 if self.met else max(0, self.ended_s + FIRST_S - time.monotonic())

    def interests(self, wakeup: int, attempt: int | None) -> tuple[list[int], list[int]]:
        """Return the descriptors to read from and to write to."""
        readable = [wakeup]
        if len(self.input) < PENDING_BYTES:
            readable += self.readers
        if attempt is not None:
            readable.append(attempt)
        if len(self.readers) < MAX_READERS:
            readable.append(self.listener.fileno())
        if not self.ended and all(len(reader.pending) < PENDING_BYTES for reader in self.readers.values()):
            readable.append(self.master)
        writable = [number for number, reader in self.readers.items() if reader.pending]
        if self.input and not self.ended:
            writable.append(self.master)
        return readable, writable

    def accept(self) -> None:
        connection, _ = self.listener.accept()
        connection.settimeout(0.0)
        self.readers[connection.fileno()] = TerminalReader(connection)

    def drop(self, reader: TerminalReader) -> None:
        self.readers.pop(reader.connection.fileno(), None)
        reader.connection.close()

    def read_from(self, reader: TerminalReader) -> None:
        try:
            chunk = reader.connection.recv(CHUNK_BYTES)
            reader.received += chunk
            for kind, content in reader.messages():
                self.handle(reader, kind, content)
            if not chunk:
                self.drop(reader)
        except BlockingIOError:
            return
        except (OSError, ValueError, struct.error):
            self.drop(reader)

    def handle(self, reader: TerminalReader, kind: bytes, content: bytes) -> None:
        if kind == b"h" and not reader.greeted:
            rows, columns, repeat = HELLO.unpack(content)
            reader.greeted = self.met = True
            if repeat and self.last:
                reader.tell(b"d", bytes(self.last))
            self.resize(rows, columns)
        elif kind == b"s":
            self.resize(*SIZE.unpack(content))
        elif kind == b"d":
            self.input += content
            self.touch()
        elif kind == b"n":
            for each in self.greeted():
                each.tell(b"d", content)

    def greeted(self) -> list[TerminalReader]:
        return [reader for reader in self.readers.values() if reader.greeted]

    def resize(self, rows: int, columns: int) -> None:
        """Set the size; the program is told also if it stays the same, so that it draws itself anew."""
        set_size(self.master, rows, columns)
        self.signal_foreground(signal.SIGWINCH)

    def signal_foreground(self, number: int) -> None:
        with contextlib.suppress(OSError):
            group = array.array("i", [0])
            fcntl.ioctl(self.master, termios.TIOCGPGRP, group)
            os.killpg(group[0] or self.child, number)

    def write_to(self, descriptor: int) -> None:
        try:
            if descriptor == self.master:
                del self.input[: os.write(self.master, self.input[:4096])]
            elif descriptor in self.readers:
                reader = self.readers[descriptor]
                del reader.pending[: reader.connection.send(reader.pending[:CHUNK_BYTES])]
        except BlockingIOError:
            return
        except OSError:
            if descriptor == self.master:
                self.input.clear()
            elif descriptor in self.readers:
                self.drop(self.readers[descriptor])

    def read_output(self) -> bool:
        """Read what the program has written; return whether there was something."""
        try:
            chunk = os.read(self.master, CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:  # EIO: no process has the terminal open
            if error.errno != errno.EIO:
                raise
            chunk = b""
        if not chunk:
            self.ended = True
            return False
        self.last += chunk
        if len(self.last) > REPEATED_BYTES + CHUNK_BYTES:
            del self.last[:-REPEATED_BYTES]
            del self.last[: self.last.find(b"\n") + 1]
        for reader in self.greeted():
            reader.tell(b"d", chunk)
        if self.log:
            write_log(chunk)
        self.touch()
        return True

    def touch(self) -> None:
        """Note at the socket that somebody has typed or the program has written."""
        now_s = time.monotonic()
        if now_s - self.touched_s >= TOUCH_S:
            self.touched_s = now_s
            with contextlib.suppress(OSError):
                os.utime(self.path)

    def handle_signals(self, wakeup: int) -> None:
        for number in os.read(wakeup, 64):
            if number == signal.SIGCHLD:
                self.reap()
            elif number == signal.SIGTERM:
                self.end_program()
            else:
                self.signal_foreground(number)

    def end_program(self) -> None:
        """Tell the program to end; a shell ignores SIGTERM, and ends when its terminal hangs up."""
        self.met = True  # nobody is waited for
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCONT):
            self.signal_foreground(number)
            with contextlib.suppress(OSError):
                os.kill(self.child, number)

    def reap(self) -> None:
        """Note how the program has ended; other children are what it has left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == self.child:
                self.status = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
                self.ended_s = time.monotonic()
            if pid == 0:
                return

    def finish(self, status: int) -> int:
        """Pass on the last output and the exit code."""
        while not self.ended and self.read_output():
            continue
        for reader in self.greeted():
            reader.tell(b"x", EXIT.pack(status))
        for reader in list(self.readers.values()):
            reader.connection.settimeout(FLUSH_S)
            with contextlib.suppress(OSError):
                reader.connection.sendall(reader.pending)
            self.drop(reader)
        return status


def write_log(chunk: bytes) -> None:
    with contextlib.suppress(OSError):  # a full disk stops no terminal
        while chunk:
            chunk = chunk[os.write(1, chunk) :]


def set_size(descriptor: int, rows: int, columns: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def listen(directory: str, name: str) -> socket.socket:
    """Return a socket that listens at a path, even if it is longer than an address can be."""
    os.makedirs(directory, 0o700, exist_ok=True)
    before = os.getcwd()
    os.chdir(directory)
    try:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(name)
        os.chmod(name, 0o600)
        listener.listen(16)
    finally:
        os.chdir(before)
    return listener


def start(command: list[str], rows: int, columns: int) -> tuple[int, int]:
    """Start a command on a new terminal; return the other end of that, and the pid."""
    master, slave = os.openpty()
    set_size(master, rows, columns)
    child = os.fork()
    if child:
        os.close(slave)
        os.set_blocking(master, False)
        return master, child
    try:
        signal.set_wakeup_fd(-1)
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        for number in range(3):
            os.dup2(slave, number)
        os.closerange(3, 256)
        for number in (signal.SIGPIPE, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.execvp(command[0], command)  # noqa: S606  (that is what it is for)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\r\n".encode())
    finally:
        os._exit(127)


def catch_signals() -> int:
    """Return a descriptor from which the numbers of signals can be read."""
    reading, writing = os.pipe()
    for descriptor in (reading, writing):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(writing)
    for name in ("CHLD", "TERM", "INT", "QUIT", "USR1", "USR2", "WINCH"):
        signal.signal(getattr(signal, "SIG" + name), lambda *_: None)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the daemon's end is no reason to end
    return reading


def open_attempt() -> int | None:
    """Return a descriptor that becomes readable when the attempt has ended.

    It is None in a container, whose end ends every process in it.
    """
    pid = os.environ.pop("RUNNER_ATTEMPT_PID", "")
    return os.pidfd_open(int(pid)) if pid and hasattr(os, "pidfd_open") else None


def main(arguments: list[str]) -> int:
    directory, name, rows, columns = arguments[:4]
    dashes = arguments.index("--")
    log, command = "--log" in arguments[4:dashes], arguments[dashes + 1 :]
    attempt = open_attempt()
    listener = listen(directory, name)
    path = os.path.join(os.path.abspath(directory), name)
    try:
        wakeup = catch_signals()
        os.environ.setdefault("TERM", "xterm-256color")
        master, child = start(command, int(rows), int(columns))
        if not log:
            os.write(1, b"ready\n")
            nowhere = os.open(os.devnull, os.O_RDWR)
            for number in range(3):
                os.dup2(nowhere, number)
        return Terminal(listener, path, master, child, log=log).run(wakeup, attempt)
    finally:
        os.unlink(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
