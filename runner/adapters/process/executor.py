"""Attempts as plain processes, for machines without a container engine.

Each attempt runs under ``shim.sh``, which outlives the daemon and keeps the exit status
in a bookkeeping directory of the daemon's user; everything that is known about an attempt
is read from there, so a new daemon adopts what the old one started.  A file that the shim
makes if it does not exist is the claim: of all shims ever started for one attempt, one
runs the program.

Isolation: as root, the program runs as its owner's uid and gid without supplementary
groups; always without new privileges, without core files, and in a clean environment.
The shim itself keeps the daemon's user, out of the job's reach, and the log is opened
after the switch.  **Not** isolated: the file system, the network, processes of the same
user, devices (environment variables name them, nothing enforces it), memory, cpus and
process counts (what ``ulimit`` offers is per uid or per address space, and means something
else), and processes that leave the program's session.  Mounts are not made: paths are the
host's.  ``oom_seen`` is never known here.
"""

import os
import select
import shutil
import signal as signals
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from runner.adapters.launch import attempt_environment, attempt_name, check_request, entry_script
from runner.adapters.process.records import ProcessRecords
from runner.base.errors import Unavailable
from runner.base.threads import PeriodicThread
from runner.core.ports.executor import Alive, Key, LaunchRefused, LaunchRequest, Observation

SHIM: Final = Path(__file__).with_name("shim.sh")

RESCAN_S: Final = 1.0
"""How often a watch looks for attempts that it was not told of."""

TOLD: Final = 3
"""The descriptor by which a shim says that it has begun."""

_RESET: Final = signals.valid_signals() - {signals.SIGKILL, signals.SIGSTOP}


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """Where the bookkeeping lies, and what programs find."""

    instance: str
    directory: Path
    """On a local file system; made here, and private to the daemon's user."""
    path: str = field(default_factory=lambda: os.environ.get("PATH", os.defpath))
    """``PATH`` of the programs; the daemon's own unless told otherwise."""
    lang: str = field(default_factory=lambda: os.environ.get("LANG", "C.UTF-8"))
    timeout_s: float = 10.0
    """Of a launch: how long a shim may take to say that it has begun."""


class ProcessExecutor:
    """Satisfies ``runner.core.ports.executor.Executor``."""

    kind: Final = "process"

    def __init__(self, settings: ProcessSettings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._shims: set[int] = set()  # to be reaped
        self._bells: set[int] = set()  # one descriptor per watch
        with _disk(str(settings.directory)):
            settings.directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def plan(self, request: LaunchRequest) -> Mapping[str, object]:
        check_request(request)
        return {
            "argv": list(request.argv),
            "command": list(self._command(request)),
            "environment": dict(self._environment(request)),
            "uid": request.owner.uid,
            "gid": request.owner.gid,
            "cwd": str(request.run_dir),
        }

    def launch(self, request: LaunchRequest) -> None:
        check_request(request)
        _check(request)
        books = self._books(request.key)
        with _disk(f"launch {books.path.name}"):
            books.open(request.key)
            if books.claimed():
                return
            self._spawn(books, self._command(request))
            if not books.claimed():
                raise Unavailable(f"launch {books.path.name}: its shim could not write; is the disk full?")
        self._ring()

    def signal(self, key: Key, signal: int) -> None:
        """Send ``signal`` to the program; SIGKILL to all of its group, but never to the shim.

        As in a container, where init passes a signal to the program alone: a trainer that
        saves on SIGTERM still needs its data loading processes while it does.
        """
        child = self._books(key).child
        if child is None:
            return
        with suppress(ProcessLookupError), _pidfd(child.pid) as process:
            if not child.alive:  # asked after the descriptor was opened: it cannot be another's
                return
            if signal == signals.SIGKILL:
                with suppress(ProcessLookupError):  # not yet the leader of its group
                    os.killpg(child.pid, signal)
            signals.pidfd_send_signal(process, signal)

    def observe(self) -> tuple[Observation, ...]:
        self._reap()
        with _disk(str(self.settings.directory)):
            return tuple(books.observation(key) for key, books in self._ours())

    def remove(self, key: Key) -> None:
        """Throw the books of an ended attempt away.

        Raises:
            Unavailable: it still runs; it is left alone, and ``signal`` has to come first.
        """
        books = self._books(key)
        with _disk(f"remove {books.path.name}"):
            if not books.path.exists():
                return
            if isinstance(books.observation(key), Alive):
                raise Unavailable(f"{books.path.name}: not removed, it still runs; signal it first")
            # Renamed first: half-removed books would read as an attempt that never started.
            rubbish = books.path.with_name(f".{books.path.name}")
            shutil.rmtree(rubbish, ignore_errors=True)
            books.path.replace(rubbish)
            shutil.rmtree(rubbish)

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Wait for the end of every shim on a thread of its own."""
        heard, bell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        before: set[Key] = set()

        def wait_once() -> None:
            nonlocal before
            before = self._wait_for_change(before, wake, heard, lambda: thread.stopped)

        thread = PeriodicThread("process-ends", 0.0, wait_once, begin_at_once=True)

        def stop() -> None:
            thread.stop()
            self._ring()
            thread.join(None)
            with self._lock:
                self._bells.discard(bell)
            os.close(bell)
            os.close(heard)

        with self._lock:
            self._bells.add(bell)
        thread.start()
        return stop

    def _books(self, key: Key) -> ProcessRecords:
        return ProcessRecords(self.settings.directory / attempt_name(key))

    def _ours(self) -> Iterator[tuple[Key, ProcessRecords]]:
        for path in sorted(self.settings.directory.glob("runner-*")):
            books = ProcessRecords(path)
            key = books.key()
            if key is not None and key.instance == self.settings.instance:
                yield key, books

    def _environment(self, request: LaunchRequest) -> Mapping[str, str]:
        home = request.run_dir / "home"
        nvidia = [device.uuid for device in request.devices if device.vendor == "nvidia"]
        amd = [device.uuid for device in request.devices if device.vendor == "amd"]
        return {
            "PATH": self.settings.path,
            "LANG": self.settings.lang,
            **attempt_environment(request, home, home / ".cache"),
            "CUDA_VISIBLE_DEVICES": ",".join(nvidia),  # empty: none
            "ROCR_VISIBLE_DEVICES": ",".join(amd),
        }

    def _command(self, request: LaunchRequest) -> tuple[str, ...]:
        """Return what the shim runs: nothing of the job's before its uid is in force."""
        drop = ["--no-new-privs"]
        if os.geteuid() == 0:
            owner = request.owner
            drop += ["--reuid", str(owner.uid), "--regid", str(owner.gid), "--clear-groups"]
        # Shells ignore these two in the background, and what is ignored stays so.
        clean = ["env", "--ignore-environment", "--default-signal=INT,QUIT"]
        variables = [f"{name}={value}" for name, value in self._environment(request).items()]
        program = entry_script(request.directory or request.run_dir, request.log, request.argv)
        return ("setpriv", *drop, "--", *clean, *variables, *program)

    def _spawn(self, books: ProcessRecords, command: tuple[str, ...]) -> None:
        """Start a shim and wait until it has claimed the attempt or found it claimed."""
        heard, told = os.pipe2(os.O_CLOEXEC)
        try:
            try:
                self._start_shim(books, command, told)
            finally:
                os.close(told)
            if not _readable((heard,), self.settings.timeout_s):
                raise Unavailable(
                    f"launch {books.path.name}: no word from its shim in {self.settings.timeout_s:g} s"
                )
        finally:
            os.close(heard)

    def _start_shim(self, books: ProcessRecords, command: tuple[str, ...], told: int) -> None:
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        pid = os.posix_spawn(
            "/bin/sh",
            ["sh", str(SHIM), str(books.path), *command],
            {"PATH": os.defpath, "LANG": "C"},  # programs found here run as the daemon's user
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, str(books.stderr), append, 0o600),
                (os.POSIX_SPAWN_DUP2, told, TOLD),
            ],
            setsid=True,
            setsigdef=_RESET,
            setsigmask=(),
        )
        with self._lock:
            self._shims.add(pid)

    def _reap(self) -> None:
        with self._lock:
            self._shims = {pid for pid in self._shims if not _reaped(pid)}

    def _ring(self) -> None:
        with self._lock:
            for bell in self._bells:
                with suppress(BlockingIOError):
                    os.write(bell, b"!")

    def _wait_for_change(
        self, before: set[Key], wake: Callable[[], None], heard: int, stopped: Callable[[], bool]
    ) -> set[Key]:
        """Wait until a shim ends or begins, say so, and return whose shims were alive."""
        shims = dict(self._open_shims())
        ready = _readable((heard, *shims.values()), RESCAN_S)
        for descriptor in shims.values():
            os.close(descriptor)
        if heard in ready:
            os.read(heard, 4096)
        if (ready or before != shims.keys()) and not stopped():
            wake()
        return set(shims)

    def _open_shims(self) -> Iterator[tuple[Key, int]]:
        """Yield a descriptor for each living shim of ours; it becomes readable when the shim ends."""
        self._reap()
        for key, books in self._ours():
            shim = books.shim
            with suppress(OSError):  # it ended just now, which shows in the next round
                if shim is not None and shim.alive:
                    yield key, os.pidfd_open(shim.pid)


def _check(request: LaunchRequest) -> None:
    if os.geteuid() not in {0, request.owner.uid}:
        raise LaunchRefused(f"cannot run as {request.owner.name}: this daemon is not root")
    if not request.run_dir.is_dir():
        raise LaunchRefused(f"{str(request.run_dir)!r}: no such directory")
    if request.mounts:
        raise LaunchRefused("the process executor makes no mounts; give the program the host's paths")


def _readable(descriptors: tuple[int, ...], timeout_s: float) -> set[int]:
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(timeout_s * 1000)}


def _reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


@contextmanager
def _pidfd(pid: int) -> Iterator[int]:
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _disk(doing: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable(f"{doing}: {error.strerror or error}") from error
