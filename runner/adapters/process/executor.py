"""Attempts as plain processes, for hosts without a container engine.

Each attempt runs under ``shim.sh``, which outlives the daemon and writes the exit status to a directory that
only the daemon's user can read.  The executor learns everything about an attempt from this record, so a new
daemon adopts the attempts of the previous one.  A shim claims its attempt by creating a file that must not
exist; of all shims that are ever started for one attempt, only one runs the program.

Isolation: if the daemon is root, the program runs with the uid and gid of its owner, and with supplementary
groups only as requested.  It never gains privileges, writes no core files, and has a clean environment.  The
shim runs as the daemon's user, so the job cannot signal it, and the log is opened with the owner's rights.

Not isolated are: the file system; the network; processes of the same user; devices, which are only named by
environment variables; memory, CPUs and the number of processes, because the limits of ``ulimit`` apply to a
uid or an address space.  There are no mounts, so paths are those of the host.  ``oom_seen`` is always
unknown.

The shim is the parent of each process of its attempt whose own parent has died, so none outlives it.
"""

import os
import select
import shutil
import signal as signals
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Final

from jobs.contract import RunPaths
from runner.adapters.host.process_status import has_handler, open_process
from runner.adapters.launch import attempt_environment, attempt_name, check_request, entry_script
from runner.adapters.process.reach import closed_directory
from runner.adapters.process.records import ProcessIdentity, ProcessRecord
from runner.base.errors import Unavailable, disk_errors
from runner.base.readable import readable_duration
from runner.base.threads import PeriodicThread
from runner.core.ports.executor import Alive, Key, LaunchRefused, LaunchRequest, LaunchResult, Observation
from runner.core.ports.users import Owner

SHIM: Final = Path(__file__).with_name("shim.sh")

RESCAN_S: Final = 1.0
"""Time between two looks of a watch for attempts that another process has launched."""

READY_DESCRIPTOR: Final = 3
"""The descriptor that a shim closes when it has started."""

REAPER: Final = """\
import ctypes, os, sys
PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""A Python program that becomes its arguments, as the parent of all processes below it whose parent dies."""

LOAD_ENVIRONMENT: Final = (
    "variables=$(cat <&4); s=$?; [ $s -le 128 ] || exit $s; [ $s -eq 0 ] || exit 125; "
    'eval "$variables"; exec 4<&-; exec "$@"'
)
"""A shell script that sets variables, read from descriptor 4, and is replaced by its arguments.

It runs with the rights of the job's owner.  Arguments and not the environment are what everybody on the host
may read of a process, so no variable is an argument.  Its status is that of a signal that ends ``cat``.
"""

_RESET: Final = signals.valid_signals() - {signals.SIGKILL, signals.SIGSTOP}


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """The directory of the records, and the environment of the programs."""

    instance: str
    directory: Path
    """On a local file system; the executor makes it, private to the daemon's user."""
    path: str = field(default_factory=lambda: os.environ.get("PATH", os.defpath))
    """``PATH`` of the programs; by default that of the daemon."""
    lang: str = field(default_factory=lambda: os.environ.get("LANG", "C.UTF-8"))
    find_problem: Callable[[LaunchRequest], str | None] | None = None
    """Says why an attempt cannot run on its devices; None: it is not asked."""
    timeout_s: float = 10.0
    """Of a launch: how long a shim may take to start."""


class ProcessExecutor:
    """Satisfies ``runner.core.ports.executor.Executor``."""

    kind: str = "process"
    in_container: Final = False
    queues: Final = False

    def __init__(self, settings: ProcessSettings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._shims: set[int] = set()  # not reaped yet
        self._wake_pipes: set[int] = set()  # the write end of each watch
        with disk_errors(str(settings.directory)):
            settings.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            for removed in settings.directory.glob(".runner-*"):  # by a daemon that was killed over it
                shutil.rmtree(removed, ignore_errors=True)

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

    def launch(self, request: LaunchRequest) -> LaunchResult:
        check_request(request)
        _check_host(request)
        self._check_devices(request)
        _check_reachable(request)
        record = self._record_of(request.key)
        with disk_errors(f"launch {record.path.name}"):
            record.create(request.key, str(request.directory or request.run_dir))
            if record.claimed():
                return LaunchResult.BEGUN
            record.write_environment(_export_statements(self._environment(request)))
            self._spawn(record, request)
            if not record.claimed():
                raise Unavailable(
                    f"launch {record.path.name}: its shim could not write its record; is the disk full?"
                )
        self._wake_watches()
        return LaunchResult.BEGUN

    def _check_devices(self, request: LaunchRequest) -> None:
        """Raise ``Unavailable`` if the attempt cannot run on its devices now; it waits, and is not blamed."""
        find = self.settings.find_problem
        if find is not None and (problem := find(request)):
            raise Unavailable(f"{attempt_name(request.key)}: not started: {problem}")

    def signal(self, key: Key, signal: int) -> None:
        """Let the shim bring ``signal`` to the program, which it does with the rights of the owner.

        What a shim cannot hear goes to the first process alone: SIGSTOP, and everything if the shim is dead
        or of an earlier version.  SIGKILL goes to its group, and the shim ends what is left.

        Raises:
            Unavailable: SIGKILL, before the shim has started the program.
        """
        record = self._record_of(key)
        child, shim = record.child, record.shim
        if signal != signals.SIGKILL and shim is not None and _send(shim, signal, only_if_caught=True):
            return
        if (
            child is None and shim is not None and shim.alive
        ):  # claimed by the launch of a daemon that was killed
            raise Unavailable(f"signal {record.path.name}: its program has not begun")
        if child is None:
            return
        if signal == signals.SIGKILL and child.alive:
            with suppress(ProcessLookupError):  # it is not the leader of its group yet
                os.killpg(child.pid, signal)
        _send(child, signal)

    def observe(self) -> tuple[Observation, ...]:
        self._reap()
        with disk_errors(str(self.settings.directory)):
            return tuple(record.observation(key) for key, record in self._records())

    def remove(self, key: Key) -> None:
        record = self._record_of(key)
        with disk_errors(f"remove {record.path.name}"):
            if not record.path.exists():
                return
            if isinstance(record.observation(key), Alive):
                raise Unavailable(f"{record.path.name}: not removed, it still runs; signal it first")
            # Renamed first: a record that is partly removed would look like an attempt that never started.
            removed = record.path.with_name(f".{record.path.name}")
            shutil.rmtree(removed, ignore_errors=True)
            record.path.replace(removed)
            shutil.rmtree(removed)

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        woken, wake_pipe = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        before: set[Key] = set()

        def watch_once() -> None:
            nonlocal before
            before = self._wait_for_change(before, wake, woken, lambda: thread.stopped)

        thread = PeriodicThread("process-ends", 0.0, watch_once, begin_at_once=True)

        def stop() -> None:
            thread.stop()
            self._wake_watches()
            thread.join(None)
            with self._lock:
                self._wake_pipes.discard(wake_pipe)
            os.close(wake_pipe)
            os.close(woken)

        with self._lock:
            self._wake_pipes.add(wake_pipe)
        thread.start()
        return stop

    def _record_of(self, key: Key) -> ProcessRecord:
        return ProcessRecord(self.settings.directory / attempt_name(key))

    def _records(self) -> Iterator[tuple[Key, ProcessRecord]]:
        for path in sorted(self.settings.directory.glob("runner-*")):
            record = ProcessRecord(path)
            key = record.key()
            if key is not None and key.instance == self.settings.instance:
                yield key, record

    def _environment(self, request: LaunchRequest) -> Mapping[str, str]:
        nvidia = [device.uuid for device in request.devices if device.vendor == "nvidia"]
        amd = [device.uuid for device in request.devices if device.vendor == "amd"]
        return {
            "PATH": self.settings.path,
            "LANG": self.settings.lang,
            **attempt_environment(request, request.run_dir, request.run_dir / "cache"),
            "CUDA_VISIBLE_DEVICES": ",".join(nvidia),  # empty: none
            "ROCR_VISIBLE_DEVICES": ",".join(amd),
        }

    def _command(self, request: LaunchRequest) -> tuple[str, ...]:
        """Return the command of the shim; no program of the job runs before the change of uid."""
        load = ("/bin/sh", "-c", LOAD_ENVIRONMENT, "runner")
        program = entry_script(request.directory or request.run_dir, request.log, request.argv)
        return (*owner_rights(request.owner, groups=request.groups), *clean_environment(), *load, *program)

    def _spawn(self, record: ProcessRecord, request: LaunchRequest) -> None:
        """Start a shim, and wait until the attempt is claimed by it or another one."""
        ready, shim_end = os.pipe2(os.O_CLOEXEC)
        try:
            try:
                self._start_shim(record, request, shim_end)
            finally:
                os.close(shim_end)
            if not _readable((ready,), self.settings.timeout_s):
                limit = readable_duration(self.settings.timeout_s)
                raise Unavailable(f"launch {record.path.name}: its shim did not start within {limit}")
        finally:
            os.close(ready)

    def _start_shim(self, record: ProcessRecord, request: LaunchRequest, shim_end: int) -> None:
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        python = (sys.executable, "-I", "-S", "-c", REAPER)
        rights, left = " ".join(owner_rights(request.owner)[1:-1]), str(request.log.with_name(RunPaths.LEFT))
        pid = os.posix_spawn(
            sys.executable,
            [*python, "/bin/sh", str(SHIM), str(record.path), rights, left, *self._command(request)],
            {"PATH": os.defpath, "LANG": "C"},  # the programs of the shim run as the daemon's user
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, str(record.stderr), append, 0o600),
                (os.POSIX_SPAWN_DUP2, shim_end, READY_DESCRIPTOR),
                *((os.POSIX_SPAWN_CLOSE, descriptor) for descriptor in descriptors_above(READY_DESCRIPTOR)),
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

    def _wake_watches(self) -> None:
        with self._lock:
            for wake_pipe in self._wake_pipes:
                with suppress(BlockingIOError):
                    os.write(wake_pipe, b"!")

    def _wait_for_change(
        self, before: set[Key], wake: Callable[[], None], woken: int, stopped: Callable[[], bool]
    ) -> set[Key]:
        """Wait until a shim ends or starts, call ``wake``, and return the keys of the running shims."""
        shims = dict(self._open_shims())
        ready = _readable((woken, *shims.values()), RESCAN_S)
        for descriptor in shims.values():
            os.close(descriptor)
        if woken in ready:
            os.read(woken, 4096)
        if (ready or before != shims.keys()) and not stopped():
            wake()
        return set(shims)

    def _open_shims(self) -> Iterator[tuple[Key, int]]:
        """Yield a pidfd for each running shim; it becomes readable when the shim ends."""
        self._reap()
        for key, record in self._records():
            shim = record.shim
            with suppress(OSError):  # it has just ended, which the next round notices
                if shim is not None and shim.alive:
                    yield key, os.pidfd_open(shim.pid)


def owner_rights(owner: Owner, *more: str, groups: tuple[int, ...] = ()) -> tuple[str, ...]:
    """Return the beginning of a command that runs the rest of it with the rights of an owner, for ever.

    ``more`` are further options of ``setpriv``, and ``groups`` the supplementary groups; a daemon that is not
    root gives its own.
    """
    if os.geteuid() != 0:
        return ("setpriv", "--no-new-privs", *more, "--")
    ids = ("--reuid", str(owner.uid), "--regid", str(owner.gid))
    supplementary = f"--groups={','.join(map(str, groups))}" if groups else "--clear-groups"
    return ("setpriv", "--no-new-privs", *more, *ids, supplementary, "--")


def clean_environment() -> tuple[str, ...]:
    """Return the beginning of a command that runs the rest of it with an empty environment."""
    # A shell starts background processes with these two ignored, and ignored signals stay ignored.
    return ("env", "--ignore-environment", "--default-signal=INT,QUIT", f"PATH={os.defpath}")


def _check_host(request: LaunchRequest) -> None:
    """Raise ``LaunchRefused`` if this daemon cannot run the attempt as requested."""
    if os.geteuid() not in {0, request.owner.uid}:
        raise LaunchRefused(f"cannot run as {request.owner.name}: this daemon is not root")
    if not request.run_dir.is_dir():
        raise LaunchRefused(f"{str(request.run_dir)!r}: no such directory")
    if request.mounts:
        raise LaunchRefused("the process executor makes no mounts; give the program the host's paths")


def _check_reachable(request: LaunchRequest) -> None:
    """Raise ``LaunchRefused`` if the owner may not enter a directory on the way to the program or its run."""
    if os.geteuid() != 0:  # the owner is the daemon's user
        return
    program = [Path(each) for each in request.argv[:1] if Path(each).is_absolute()]
    for path in (request.run_dir, *program):
        closed = closed_directory(path, request.owner)
        if closed is not None:
            raise LaunchRefused(
                f"uid {request.owner.uid}, as which it runs, may not enter {str(closed)!r}, on the way to "
                f"{str(path)!r}: keep Python and the state directory where all may reach them, or chmod o+x "
                "that directory"
            )


def _export_statements(environment: Mapping[str, str]) -> str:
    """Return shell statements that export variables; ``command``: a bad one does not end the shell."""
    return "".join(f"command export {name}={quote(value)}\n" for name, value in environment.items())


def descriptors_above(highest: int) -> Iterator[int]:
    """Yield the open descriptors above one; the daemon may have inherited some, which no job gets."""
    return (number for name in os.listdir("/proc/self/fd") if (number := int(name)) > highest)  # noqa: PTH208


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


def _send(process: ProcessIdentity, signal: int, *, only_if_caught: bool = False) -> bool:
    """Send a signal to exactly this process; return whether it was there, and had a handler if it must."""
    try:
        descriptor = open_process(process.pid)
    except ProcessLookupError:
        return False
    try:  # looked at with the descriptor open: the pid cannot be that of another process
        if not process.alive or (only_if_caught and not has_handler(process.pid, signal)):
            return False
        signals.pidfd_send_signal(descriptor, signal)
    except ProcessLookupError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)
