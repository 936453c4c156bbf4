"""Starts the processes of one attempt, and ends them together.

``gang.py DIRECTORY COUNT -- COMMAND...`` starts COMMAND COUNT times, each with the variables that PyTorch,
Lightning, Accelerate and others read: ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``,
``MASTER_ADDR`` and ``MASTER_PORT``.  Rank 0 writes to standard output, and rank R to
``DIRECTORY/rank-R.log.txt``.

Where an attempt has several nodes, each has a launcher (``NodeGang``), and ``RUNNER_NODES``, ``RUNNER_NODE``,
``MASTER_ADDR`` and ``MASTER_PORT`` are given.  What carries words between nodes is not its business: it
writes how its processes end into ``DIRECTORY/.node-N``, and the first one reads ``DIRECTORY/.ends``, which
says so of all nodes in the time of its own.  The first one decides.

Signals are passed on to all processes.  The first one that fails decides the end: its exit code is that of
the attempt.  The others are asked to leave, and killed ``LEAVE_S`` later.  ``DIRECTORY/result.json`` then
says which process it was; what that one has written as ``DIRECTORY/rank-R.result.json`` takes the place of
what the first process says, which knows only that another one is gone.

Two exit codes of a process are no failure of its own.  75: all have agreed to stop.  95: another process does
not answer; if that one is still there at the end, it is the one that is named.  And a process that dies of
the SIGTERM which asks all to stop hurries nobody: another one may be saving, and the runner has a limit.

A process that is stopped (SIGSTOP) is named in the log, as the others wait for it, and in the result of an
attempt that ends meanwhile.  A request to stop lets it go on, so that all can agree.

A program of which nothing is known says that it has waited in vain in the words of its library (gloo, NCCL)
and with any exit code.  It is taken for what 95 says: the others may say so, too, and who does not is named.
"""

# Any Python from 3.7 on runs this file, and a start should take little: no pathlib.
# ruff: noqa: PTH105, PTH118, PTH123

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time

STOPPED, RANK_LOST = 75, 95
NOT_EXECUTABLE, NOT_FOUND = 126, 127
AGREED = frozenset({76, 78, 93, 94, 96, 97, 98, 99})
"""Exit codes that say why a process has ended; several may have ended for the same reason."""

LEAVE_S = 5.0
"""The other processes get so long after the first failure: to notice it, and to finish what they write."""

REPORT_S = 2.0
"""So much later an end on another node may be known."""

POLL_S = 0.1
"""Time between two looks of the first launcher for ends on other nodes."""

STOPPED_S = 20.0
"""The same after an agreed stop, whose checkpoint is on the disk already."""

NOTE_CHARACTERS = 1000

SHOWN_BYTES = 4096
"""So much of the end of a failed process's log is repeated in the log of the attempt."""

IN_VAIN = re.compile(
    rb"gloo/transport/[^\n]*\] (?:Timed out|Connection|Read|Write|Socket)"
    rb"|Watchdog caught collective operation timeout|failed to pass monitoredBarrier"
)
"""Messages of gloo and NCCL when another process is gone or does not answer."""

UNSAID = frozenset({1, 128 + signal.SIGABRT})
"""Exit codes that say nothing of their own: of an exception in Python, and of one in C++."""

ABORTED_WHILE_LEAVING = re.compile(
    rb"(?:Traceback \(most recent call last\):|^attach: exiting with [0-9]).*"
    rb"\nterminate called without an active exception\s*\Z",
    re.DOTALL | re.MULTILINE,
)
"""Last words of a process that had said its end already when a thread of its library made it abort.

PyTorch's process groups have threads of their own; an interpreter that ends without
``destroy_process_group`` may destroy one that still runs, and C++ then calls ``abort``.
"""

LEAVING = re.compile(rb"^attach: exiting with ([0-9]{1,3}):", re.MULTILINE)
"""Message of ``gpu_job_runner.attach`` before it leaves with an exit code of the contract."""

VISIBLE = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""Variables that list the GPUs of an attempt."""

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
SIOCGIFADDR = 0x8915
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
LONG_S = 3600.0


class End:
    """End of one process, and its time in hundredths of a second since the machine was started."""

    def __init__(self, rank: int, status: int, at: int | None = None) -> None:
        self.rank = rank
        self.code = 128 - status if status < 0 else status
        self.waited = self.code == RANK_LOST  # for another process, in vain
        self.at = int(time.clock_gettime(time.CLOCK_BOOTTIME) * 100) if at is None else at


class Gang:
    """The processes of one attempt; all awaited signals are blocked while it runs."""

    leave_s = LEAVE_S

    def __init__(self, directory: str, count: int) -> None:
        self.directory = directory
        self.count = count
        self.world = count
        self.first_rank = 0
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self.ends: list[End] = []
        self.frozen: dict[int, float] = {}  # since when, by the monotonic clock
        self.notes: list[str] = []  # what a person should know of the end beside its code
        self.asked_to_stop = False
        self.asked_to_leave = False

    def start(self, argv: list[str]) -> None:
        """Start all processes; may raise OSError."""
        shared = {
            "WORLD_SIZE": str(self.world),
            "LOCAL_WORLD_SIZE": str(self.count),
            **self.meeting_point(),
        }
        # An attempt without a network has an address for loopback alone, and gloo asks for that of the host.
        interface = self.interface()
        defaults = {} if interface is None else dict.fromkeys(INTERFACES, interface)
        for local in range(self.count):
            rank = self.first_rank + local
            own = {"RANK": str(rank), "LOCAL_RANK": str(local)}
            self.running[rank] = self.spawn(rank, argv, {**defaults, **os.environ, **shared, **own})

    def meeting_point(self) -> dict[str, str]:
        """Return the address at which the processes find each other."""
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}

    def interface(self) -> str | None:
        """Return the network interface through which they talk; None if it is not known."""
        return "lo"

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
        return os.path.join(self.directory, f"rank-{rank}.log.txt" if rank else "log.txt")

    def run(self) -> int:
        """Wait for the end of all processes, and return the exit code of the attempt."""
        deadline_s = None
        while self.goes_on():
            now_s = time.monotonic()
            if deadline_s is not None and now_s >= deadline_s:
                return self.end_the_rest()
            self.heed(LONG_S if deadline_s is None else deadline_s - now_s)
            first = self.first()
            if first is None or (self.asked_to_stop and first.code == 128 + signal.SIGTERM):
                continue
            if deadline_s is None:
                deadline_s = time.monotonic() + (STOPPED_S if first.code == STOPPED else self.leave_s)
                self.note_frozen()
            if not (first.code == STOPPED or first.waited or self.asked_to_leave):
                self.asked_to_leave = True
                self.signal(signal.SIGTERM)
        first = self.first()
        return 0 if first is None else self.report(first.rank, first.code)

    def goes_on(self) -> bool:
        """Return True if an end is still to come."""
        return bool(self.running)

    def heed(self, wait_s: float) -> None:
        """Wait for a signal: pass it on, or note which processes have ended."""
        got = signal.sigtimedwait(AWAITED, wait_s)
        if got is not None and got.si_signo in PASSED_ON:
            self.asked_to_stop |= got.si_signo == signal.SIGTERM
            self.signal(got.si_signo)
            if got.si_signo == signal.SIGTERM:
                self.note_frozen()
                self.signal(signal.SIGCONT)
        ended = [(rank, process.poll()) for rank, process in self.running.items()]
        found = [End(rank, status) for rank, status in ended if status is not None]
        for end in found:
            self.read_end(end)
        # Of those that ended together, one that a signal killed comes before one that left by itself.
        self.ends += sorted(found, key=lambda end: end.code <= 128)
        for end in found:
            del self.running[end.rank]
        self.name_frozen()

    def read_end(self, end: End) -> None:
        """Take from the log of a process what its exit code does not say."""
        if end.code not in UNSAID:
            return
        log = self.log_end(end.rank)
        end.waited |= IN_VAIN.search(log) is not None
        if ABORTED_WHILE_LEAVING.search(log):
            said = LEAVING.findall(log)
            end.code = int(said[-1]) if said else 1

    def name_frozen(self) -> None:
        """Say which processes have been stopped since the last look; SIGCHLD tells of them, too."""
        now_s = time.monotonic()
        frozen = [rank for rank, process in self.running.items() if state_of(process.pid) == "T"]
        for rank in sorted(set(frozen) - self.frozen.keys()):
            say(f"{self.words_for(rank)} is stopped (SIGSTOP); the others wait for it")
        self.frozen = {rank: self.frozen.get(rank, now_s) for rank in frozen}

    def note_frozen(self) -> None:
        """Remember for the result which processes are stopped while the end begins."""
        now_s = time.monotonic()
        for rank, since_s in sorted(self.frozen.items()):
            self.notes.append(
                f"{self.words_for(rank)} had been stopped (SIGSTOP) for {now_s - since_s:.0f} s"
            )

    def words_for(self, rank: int) -> str:
        """Return a process in words, with its node and its device where they are known."""
        node, device = self.node_of(rank), self.device_of(rank)
        where = f" on {node}" if node else ""
        return f"rank {rank} of {self.world}{where}{f' ({device})' if device else ''}"

    def node_of(self, rank: int) -> str:
        """Return the node of a process as its engine names it; empty: the engine has no nodes."""
        del rank
        return os.environ.get("SLURMD_NODENAME", "")

    def device_of(self, rank: int) -> str:
        """Return the GPU of a process; empty if there is none."""
        return device_at(visible_devices(), rank - self.first_rank)

    def first(self) -> End | None:
        """Return the end that decides: the earliest failure that does not follow from another one."""
        failed = [end for end in self.ends if end.code]
        own = [end for end in failed if not end.waited]
        return next(iter(own or failed), None)

    def signal(self, number: int) -> None:
        for process in self.running.values():
            process.send_signal(number)

    def end_the_rest(self) -> int:
        """Kill whoever has not left in time; if the others waited for it in vain, it is the cause."""
        first, left = self.first(), self.missing()
        if first is not None and not first.waited:
            late = (self.words_for(rank) for rank in sorted(self.running) if rank not in self.frozen)
            self.notes += [f"{each} did not leave when it was asked, and was killed" for each in late]
        self.signal(signal.SIGKILL)
        for process in self.running.values():
            process.wait()
        if first is None or first.waited:
            return self.report(left, RANK_LOST)
        return self.report(first.rank, first.code)

    def missing(self) -> int:
        """Return the first process that has not ended; of several, one that is stopped."""
        return min(self.frozen or self.running)

    def report(self, rank: int, code: int) -> int:
        """Say which process decided the end, in the log and in the result; return the code."""
        known = self.read_result("result.json")
        if code == STOPPED:
            if self.notes:
                self.write_result({"cause": "stopped", "time": time.time(), **known, **self.noted()})
            return code
        if rank:
            self.repeat_log(rank)
        say(f"{self.words_for(rank)} decides the end: {in_words(code)}")
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
        about = {"rank": rank, "processes": self.world, "time": time.time()}
        places = {"node": self.node_of(rank), "device": self.device_of(rank)}
        where = {name: place for name, place in places.items() if place}
        return {"cause": "exception", "message": "", **training, **said, **about, **where, **self.noted()}

    def noted(self) -> dict[str, object]:
        """Return the message about the end for a person, as the result has it."""
        return {"note": "; ".join(self.notes)[:NOTE_CHARACTERS]} if self.notes else {}

    def read_result(self, name: str) -> dict[str, object]:
        try:
            with open(os.path.join(self.directory, name), encoding="utf-8") as file:
                found = json.load(file)
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def write_result(self, result: dict[str, object]) -> None:
        self.write("result.json", result)

    def write(self, name: str, result: dict[str, object]) -> None:
        place = os.path.join(self.directory, name)
        try:
            with open(place + ".gang", "w", encoding="utf-8") as file:
                json.dump(result, file, indent=1)
            os.replace(place + ".gang", place)
        except OSError as error:
            say(f"{name} cannot be written: {error}")

    def repeat_log(self, rank: int) -> None:
        """Repeat the end of a log that people do not look at first."""
        content = self.log_end(rank)
        if content:
            say(f"the log of rank {rank} ends with:")
            sys.stdout.buffer.write(content if content.endswith(b"\n") else content + b"\n")
            sys.stdout.flush()

    def log_end(self, rank: int) -> bytes:
        """Return the end of the log of a process."""
        try:
            with open(self.log(rank), "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - SHOWN_BYTES))
                return file.read()
        except OSError:
            return b""


class NodeGang(Gang):
    """The processes of one of several nodes."""

    def __init__(self, directory: str, count: int, node: int, nodes: int) -> None:
        super().__init__(directory, count)
        self.node = node
        self.nodes = nodes
        self.world = count * nodes
        self.first_rank = count * node
        self.away = set(range(1, nodes)) if node == 0 else set()  # nodes whose launchers have not left
        self.leave_s = LEAVE_S if node else LEAVE_S + REPORT_S
        self.told = 0
        self.read_bytes = 0

    def meeting_point(self) -> dict[str, str]:
        return {"GROUP_RANK": str(self.node)}  # the rest is in the environment

    def interface(self) -> str | None:
        return interface_to(os.environ["MASTER_ADDR"])

    def start(self, argv: list[str]) -> None:
        if self.node:  # the first one names its processes when they fail
            self.write(f".place-{self.node}", self.place_of(self.first_rank))
        super().start(argv)

    def node_of(self, rank: int) -> str:
        return str(self.place_of(rank).get("name", ""))

    def device_of(self, rank: int) -> str:
        devices = self.place_of(rank).get("devices")
        return device_at(devices, rank % self.count) if isinstance(devices, list) else ""

    def place_of(self, rank: int) -> dict[str, object]:
        """Return the name and the devices of the node of a process, where its launcher has told them."""
        node = rank // self.count
        if node == self.node:
            return {"name": super().node_of(rank), "devices": visible_devices()}
        return self.read_result(f".place-{node}")

    def goes_on(self) -> bool:
        return bool(self.running or self.away)

    def heed(self, wait_s: float) -> None:
        known = len(self.ends)
        super().heed(wait_s if self.node else min(wait_s, POLL_S))
        self.tell(self.ends[known:])
        if self.node == 0:
            self.hear()
        self.ends.sort(key=lambda end: end.at)

    def tell(self, ends: list[End]) -> None:
        """Write how processes of this node have ended."""
        if ends and self.node:
            with open(os.path.join(self.directory, f".node-{self.node}"), "a", encoding="utf-8") as file:
                codes = ((end, RANK_LOST if end.waited else end.code) for end in ends)
                file.write("".join(f"{end.rank} {code} {end.at}\n" for end, code in codes))

    def hear(self) -> None:
        """Read how processes of other nodes have ended, and which launchers have left."""
        try:
            with open(os.path.join(self.directory, ".ends"), "rb") as file:
                file.seek(self.read_bytes)
                content = file.read()
        except FileNotFoundError:
            return
        whole = content[: content.rfind(b"\n") + 1]
        self.read_bytes += len(whole)
        for line in whole.decode().splitlines():
            what, *numbers = line.split()
            if what == "end":
                rank, code, at = map(int, numbers)
                self.ends.append(End(rank, code, at))
            else:
                self.away.discard(int(numbers[0]))

    def missing(self) -> int:
        """Return the first process that has not ended: here, or of a node that says nothing."""
        return super().missing() if self.running else min(self.away) * self.count

    def report(self, rank: int, code: int) -> int:
        """Say which process decided the end, if this is the first node; else tell it what is known here."""
        has_ended = {end.rank for end in self.ends}
        if self.node:
            lost = rank if code == RANK_LOST and rank not in has_ended else None
            if lost is not None or self.notes:
                self.write(f".lost-{self.node}", {"rank": lost, "notes": self.notes})
            return code
        missing = rank
        for node in range(1, self.nodes):
            told = self.read_result(f".lost-{node}")
            notes, elsewhere = told.get("notes"), told.get("rank")
            self.notes += [str(each) for each in notes] if isinstance(notes, list) else []
            if code == RANK_LOST and missing in has_ended and isinstance(elsewhere, int):
                missing = elsewhere
        return super().report(missing, code)


def interface_to(address: str) -> str | None:
    """Return the network interface of this machine through which an address is reached."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as door:
            door.connect((address, 9))  # nothing is sent
            own = socket.inet_aton(door.getsockname()[0])
            for _, name in socket.if_nameindex():
                if address_of(door, name) == own:
                    return name
    except OSError:
        return None
    return None


def address_of(door: socket.socket, interface: str) -> bytes | None:
    """Return the IPv4 address of an interface."""
    try:
        return fcntl.ioctl(door, SIOCGIFADDR, struct.pack("256s", interface.encode()))[20:24]
    except OSError:
        return None


def die_with(launcher: int) -> None:
    """Hear all signals, and make the kernel kill this process when its launcher dies."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:
        os._exit(128 + signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, AWAITED)


def state_of(pid: int) -> str:
    """Return the state of a process as the kernel names it, such as T for stopped; empty if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def visible_devices() -> list[str]:
    """Return the GPUs that this attempt was given, as its environment lists them."""
    said = next((os.environ[name] for name in VISIBLE if os.environ.get(name)), "")
    return [each.strip() for each in said.split(",") if each.strip() not in ("", "void", "none", "all")]


def device_at(devices: list[object] | list[str], local: int) -> str:
    """Return the GPU of a process of a node by its number there; empty if it has none."""
    if local >= len(devices):
        return ""
    return f"GPU {devices[local]}" if str(devices[local]).isdecimal() else f"GPU {local}"


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
    nodes = int(os.environ.get("RUNNER_NODES") or 1)
    gang = Gang(directory, int(count))
    if nodes > 1:
        gang = NodeGang(directory, int(count), int(os.environ["RUNNER_NODE"]), nodes)
    try:
        gang.start(argv)
    except OSError as error:
        gang.signal(signal.SIGKILL)
        say(f"{argv[0]}: {error.strerror}")
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
    return gang.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
