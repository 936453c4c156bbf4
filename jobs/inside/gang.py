"""Starts the processes of one attempt, and ends them together.

``gang.py DIRECTORY COUNT -- COMMAND...`` starts COMMAND COUNT times, each with the variables that PyTorch,
Lightning, Accelerate and others read: ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``,
``MASTER_ADDR`` and ``MASTER_PORT``.  Rank 0 writes to standard output, and rank R to
``DIRECTORY/rank-R.log.txt``.

Signals are passed on to all processes.  The first one that fails decides the end: its exit code is that of
the attempt.  The others are asked to leave, and killed ``LEAVE_S`` later.  ``DIRECTORY/result.json`` then
says which process it was; what that one has written as ``DIRECTORY/rank-R.result.json`` takes the place of
what the first process says, which knows only that another one is gone.

Two exit codes of a process are no failure of its own.  75: all have agreed to stop.  95: another process does
not answer; if that one is still there at the end, it is the one that is named.  And a process that dies of
the SIGTERM which asks all to stop hurries nobody: another one may be saving, and the runner has a limit.
"""

# Any Python from 3.7 on runs this file, and a start should take little: no pathlib.
# ruff: noqa: PTH105, PTH118, PTH123

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time

STOPPED, RANK_LOST = 75, 95
NOT_EXECUTABLE, NOT_FOUND = 126, 127
AGREED = frozenset({76, 78, 93, 94, 96, 97, 98, 99})
"""Exit codes that say why a process has ended; several may have ended for the same reason."""

LEAVE_S = 5.0
"""The other processes get so long after the first failure: to notice it, and to finish what they write."""

STOPPED_S = 20.0
"""The same after an agreed stop, whose checkpoint is on the disk already."""

SHOWN_BYTES = 4096
"""So much of the end of a failed process's log is repeated in the log of the attempt."""

PASSED_ON = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
AWAITED = (signal.SIGCHLD, *PASSED_ON)
PR_SET_PDEATHSIG = 1
LONG_S = 3600.0


class End:
    """How one process has ended."""

    def __init__(self, rank: int, status: int) -> None:
        self.rank = rank
        self.code = 128 - status if status < 0 else status


class Gang:
    """The processes of one attempt; all awaited signals are blocked while it runs."""

    def __init__(self, directory: str, count: int) -> None:
        self.directory = directory
        self.count = count
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self.ends: list[End] = []
        self.asked_to_stop = False

    def start(self, argv: list[str]) -> None:
        """Start all processes; may raise OSError."""
        shared = {
            "WORLD_SIZE": str(self.count),
            "LOCAL_WORLD_SIZE": str(self.count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
        }
        # An attempt without a network has an address for loopback alone, and gloo asks for that of the host.
        defaults = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
        for rank in range(self.count):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            self.running[rank] = self.spawn(rank, argv, {**defaults, **os.environ, **shared, **own})

    def spawn(self, rank: int, argv: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        launcher = os.getpid()

        def prepare() -> None:
            die_with(launcher)

        if not rank:
            return subprocess.Popen(argv, env=environment, preexec_fn=prepare)  # noqa: PLW1509  (one thread)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        log = os.open(self.log(rank), flags, 0o600)
        try:
            return subprocess.Popen(
                argv,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=prepare,  # noqa: PLW1509  (one thread)
            )
        finally:
            os.close(log)

    def log(self, rank: int) -> str:
        return os.path.join(self.directory, f"rank-{rank}.log.txt")

    def run(self) -> int:
        """Wait for the end of all processes, and return the exit code of the attempt."""
        deadline_s = None
        while self.running:
            now_s = time.monotonic()
            if deadline_s is not None and now_s >= deadline_s:
                return self.end_the_rest()
            self.heed(LONG_S if deadline_s is None else deadline_s - now_s)
            first = self.first()
            if first is None or (self.asked_to_stop and first.code == 128 + signal.SIGTERM):
                continue
            if deadline_s is None:
                deadline_s = time.monotonic() + (STOPPED_S if first.code == STOPPED else LEAVE_S)
            if first.code not in (STOPPED, RANK_LOST):
                self.signal(signal.SIGTERM)
        first = self.first()
        return 0 if first is None else self.report(first.rank, first.code)

    def heed(self, wait_s: float) -> None:
        """Wait for a signal: pass it on, or note which processes have ended."""
        got = signal.sigtimedwait(AWAITED, wait_s)
        if got is not None and got.si_signo in PASSED_ON:
            self.asked_to_stop |= got.si_signo == signal.SIGTERM
            self.signal(got.si_signo)
        ended = [(rank, process.poll()) for rank, process in self.running.items()]
        found = [End(rank, status) for rank, status in ended if status is not None]
        # Of those that ended together, one that a signal killed comes before one that left by itself.
        self.ends += sorted(found, key=lambda end: end.code <= 128)
        for end in found:
            del self.running[end.rank]

    def first(self) -> End | None:
        """Return the end that decides: the earliest failure that does not follow from another one."""
        failed = [end for end in self.ends if end.code]
        own = [end for end in failed if end.code != RANK_LOST]
        return next(iter(own or failed), None)

    def signal(self, number: int) -> None:
        for process in self.running.values():
            process.send_signal(number)

    def end_the_rest(self) -> int:
        """Kill whoever has not left in time; if the others waited for it in vain, it is the cause."""
        first, left = self.first(), min(self.running)
        self.signal(signal.SIGKILL)
        for process in self.running.values():
            process.wait()
        if first is None or first.code == RANK_LOST:
            return self.report(left, RANK_LOST)
        return self.report(first.rank, first.code)

    def report(self, rank: int, code: int) -> int:
        """Say which process decided the end, in the log and in the result; return the code."""
        if code == STOPPED:
            return code
        if rank:
            self.repeat_log(rank)
        say(f"rank {rank} of {self.count} decides the end: {in_words(code)}")
        known = self.read_result("result.json")
        agreed = code in AGREED and any(end.rank == 0 and end.code == code for end in self.ends)
        if not (agreed and known):
            self.write_result(self.result_of(rank, code, known))
        return code

    def result_of(self, rank: int, code: int, known: dict[str, object]) -> dict[str, object]:
        """Return the result of the process that decided, with what the first one knew of the training."""
        said = self.read_result(f"rank-{rank}.result.json") if rank else known
        if code == RANK_LOST:
            said = {"cause": "rank_lost", "message": "did not answer the other processes in time"}
        kept = ("step", "resumed_from", "rejected", "metrics")
        training: dict[str, object] = {name: known[name] for name in kept if name in known}
        about = {"rank": rank, "processes": self.count, "time": time.time()}
        return {"cause": "exception", "message": "", **training, **said, **about}

    def read_result(self, name: str) -> dict[str, object]:
        try:
            with open(os.path.join(self.directory, name), encoding="utf-8") as file:
                found = json.load(file)
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def write_result(self, result: dict[str, object]) -> None:
        place = os.path.join(self.directory, "result.json")
        try:
            with open(place + ".gang", "w", encoding="utf-8") as file:
                json.dump(result, file, indent=1)
            os.replace(place + ".gang", place)
        except OSError as error:
            say(f"result.json cannot be written: {error}")

    def repeat_log(self, rank: int) -> None:
        """Repeat the end of a log that people do not look at first."""
        try:
            with open(self.log(rank), "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - SHOWN_BYTES))
                content = file.read()
        except OSError:
            return
        if content:
            say(f"the log of rank {rank} ends with:")
            sys.stdout.buffer.write(content if content.endswith(b"\n") else content + b"\n")
            sys.stdout.flush()


def die_with(launcher: int) -> None:
    """Hear all signals, and make the kernel kill this process when its launcher dies."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:
        os._exit(128 + signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, AWAITED)


def free_port() -> int:
    """Return a port of loopback that nobody listens on."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        port: int = door.getsockname()[1]
    return port


def in_words(code: int) -> str:
    try:
        return signal.Signals(code - 128).name
    except ValueError:
        return f"exit code {code}"


def say(text: str) -> None:
    sys.stdout.write(f"gang: {text}\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    directory, count, _, *argv = arguments
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
    gang = Gang(directory, int(count))
    try:
        gang.start(argv)
    except OSError as error:
        gang.signal(signal.SIGKILL)
        say(f"{argv[0]}: {error.strerror}")
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
    return gang.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
