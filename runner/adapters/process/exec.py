"""Commands beside an attempt that runs as plain processes.

A command gets what the executor gave to the attempt: the user without supplementary groups,
no-new-privileges, the environment, the umask and the directory.  Of the attempt as it runs now it takes the
resource limits, the control group, the processors and the nice value, and it waits until they are set.  What
the executor does not isolate for an attempt, it does not isolate here.
"""

import asyncio
import os
import resource
import signal as signals
from collections.abc import AsyncGenerator, Awaitable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeAlias

from runner.adapters.host.process_status import groups_of, open_process
from runner.adapters.launch import attempt_name, inside_script
from runner.adapters.process.executor import (
    LOAD_ENVIRONMENT,
    clean_environment,
    descriptors_above,
    owner_rights,
)
from runner.adapters.process.records import ProcessIdentity, ProcessRecord
from runner.base.errors import Refused, disk_errors
from runner.core.ports.exec import STDERR, STDOUT, ExecProcess, ExecRequest, TerminalSize
from runner.core.ports.executor import Key
from runner.core.ports.users import Owner

CHUNK_BYTES: Final = 64 * 1024

ATTEMPT_PID: Final = "RUNNER_ATTEMPT_PID"
"""The variable that tells a command that outlives the daemon with whose end it ends."""

AWAIT_PLACE: Final = 'read -r _ <&5 || exit 125; exec 5<&-; exec "$@"'
"""A shell script that waits for a line on descriptor 5: the daemon has put this process in its place."""

LIMITS: Final = {
    "cpu time": resource.RLIMIT_CPU,
    "file size": resource.RLIMIT_FSIZE,
    "data size": resource.RLIMIT_DATA,
    "stack size": resource.RLIMIT_STACK,
    "core file size": resource.RLIMIT_CORE,
    "resident set": resource.RLIMIT_RSS,
    "processes": resource.RLIMIT_NPROC,
    "open files": resource.RLIMIT_NOFILE,
    "locked memory": resource.RLIMIT_MEMLOCK,
    "address space": resource.RLIMIT_AS,
    "pending signals": resource.RLIMIT_SIGPENDING,
    "msgqueue size": resource.RLIMIT_MSGQUEUE,
    "nice priority": resource.RLIMIT_NICE,
    "realtime priority": resource.RLIMIT_RTPRIO,
}
"""Resource limits by their names in ``/proc/PID/limits``; everybody may read those of any process."""

_Pieces: TypeAlias = asyncio.Queue[tuple[int, bytes]]

_RESET: Final = signals.valid_signals() - {signals.SIGKILL, signals.SIGSTOP}


@dataclass(frozen=True, slots=True)
class ProcessExec:
    """Satisfies ``runner.core.ports.exec.ExecPort``."""

    directory: Path
    """That of the executor's records."""

    async def start(
        self, key: Key, request: ExecRequest, recorded: Awaitable[None] | None = None
    ) -> ExecProcess:
        if recorded is not None:
            await recorded
        if request.terminal is not None:
            raise Refused("plain processes get their terminals otherwise")
        record = ProcessRecord(self.directory / attempt_name(key))
        attempt = record.child
        if attempt is None or not attempt.alive:
            raise Refused(f"job {key.job_id}: attempt {key.attempt} does not run (any more)")
        with disk_errors(f"exec in {record.path.name}"):
            return await _start(record, attempt, request)


@dataclass(slots=True)
class HostExecProcess:
    """Satisfies ``runner.core.ports.exec.ExecProcess``."""

    pid: int
    input: asyncio.StreamWriter | None
    streams: tuple[tuple[int, asyncio.StreamReader], ...]
    transports: tuple[asyncio.BaseTransport, ...]
    outlives: bool = False
    watch: asyncio.Task[None] | None = None  # kills it when the attempt ends
    _code: int | None = field(default=None, init=False)

    async def outputs(self) -> AsyncGenerator[tuple[int, bytes], None]:
        pieces: _Pieces = asyncio.Queue(4)
        pumps = [asyncio.create_task(_pump(number, stream, pieces)) for number, stream in self.streams]
        try:
            left = len(pumps)
            while left:
                number, chunk = await pieces.get()
                if chunk:
                    yield number, chunk
                else:
                    left -= 1
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def write(self, content: bytes) -> None:
        if self.input is not None:
            with suppress(OSError):
                self.input.write(content)
                await self.input.drain()

    async def end_input(self) -> None:
        if self.input is not None:
            self.input.close()

    async def resize(self, size: TerminalSize) -> None:
        """Do nothing: there is no terminal."""

    async def signal(self, number: int) -> None:
        if self._code is None:
            os.kill(self.pid, number)  # not reaped yet, so the pid is still that of the command

    async def exit_code(self) -> int:
        if self._code is None:
            descriptor = os.pidfd_open(self.pid)
            try:
                await _readable(descriptor)
            finally:
                os.close(descriptor)
            if self.watch is not None:
                self.watch.cancel()
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, os.WNOHANG)[1])  # noqa: ASYNC222  (it does not wait)
        return self._code if self._code >= 0 else 128 - self._code

    async def close(self) -> None:
        if self.input is not None:
            self.input.close()
        for transport in self.transports:
            transport.close()
        if self._code is None:
            if not self.outlives:
                await self.signal(signals.SIGHUP)
            _reap(self)


_reaping: Final[set[asyncio.Task[int]]] = set()


def _reap(process: HostExecProcess) -> None:
    """Wait for the end of a process that nobody waits for."""
    task = asyncio.get_running_loop().create_task(process.exit_code())
    _reaping.add(task)
    task.add_done_callback(_reaping.discard)


def _kill_and_reap(pid: int) -> None:
    os.kill(pid, signals.SIGKILL)
    _reap(HostExecProcess(pid, None, (), ()))


async def _start(record: ProcessRecord, attempt: ProcessIdentity, request: ExecRequest) -> HostExecProcess:
    with _pipes() as (mine, theirs):
        begin, own_input, own_output, own_error = mine
        more = {ATTEMPT_PID: str(attempt.pid)} if request.outlives else {}
        request = replace(request, environment={**request.environment, **more})
        groups = groups_of(attempt.pid, request.owner.uid)
        pid = _spawn(record, _directory(record, attempt), request, groups, theirs)
        with ExitStack() as unless_begun:
            unless_begun.callback(_kill_and_reap, pid)
            _put_in_place(pid, attempt.pid, request.owner)
            os.write(begin, b"\n")
            unless_begun.pop_all()
        writer = await _writer(os.dup(own_input)) if request.has_input else None
        readers = [await _reader(os.dup(descriptor)) for descriptor in (own_output, own_error)]
    streams = tuple(zip((STDOUT, STDERR), (reader for reader, _ in readers), strict=True))
    watch = asyncio.create_task(_kill_with(attempt, pid))
    transports = tuple(transport for _, transport in readers)
    return HostExecProcess(pid, writer, streams, transports, request.outlives, watch)


async def _kill_with(attempt: ProcessIdentity, pid: int) -> None:
    """Kill a command and its process group when its attempt has ended, unless it ends before."""
    with suppress(ProcessLookupError):
        descriptor = open_process(attempt.pid)
        try:
            if attempt.alive:
                await _readable(descriptor)
        finally:
            os.close(descriptor)
    with suppress(ProcessLookupError):
        os.killpg(pid, signals.SIGKILL)


@contextmanager
def _pipes() -> Iterator[tuple[tuple[int, int, int, int], tuple[int, int, int, int]]]:
    """Yield the daemon's and the command's ends of four pipes: begin, input, output, error."""
    begin, source, output, error = (os.pipe2(os.O_CLOEXEC) for _ in range(4))
    mine, theirs = (begin[1], source[1], output[0], error[0]), (begin[0], source[0], output[1], error[1])
    try:
        yield mine, theirs
    finally:
        for descriptor in (*mine, *theirs):
            os.close(descriptor)


def _spawn(
    record: ProcessRecord,
    directory: str,
    request: ExecRequest,
    groups: tuple[int, ...],
    theirs: tuple[int, int, int, int],
) -> int:
    """Start the shell that becomes the command: it waits, and gives up the rights of the daemon."""
    begin, source, output, error = theirs
    extra = [f"{name}={value}" for name, value in request.environment.items()]
    command = (
        *("/bin/sh", "-c", AWAIT_PLACE, "runner"),
        *owner_rights(request.owner, *(() if request.outlives else ("--pdeathsig", "HUP")), groups=groups),
        *clean_environment(),
        *("/bin/sh", "-c", LOAD_ENVIRONMENT, "runner"),
        *(("env", *extra) if extra else ()),
        *inside_script(directory, request.argv),
    )
    environment = os.open(record.path / "environment", os.O_RDONLY | os.O_CLOEXEC)
    others = set(descriptors_above(2)) - {4, 5}
    try:
        return os.posix_spawnp(
            command[0],
            command,
            {"PATH": os.defpath, "LANG": "C"},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, source, 0),
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, error, 2),
                (os.POSIX_SPAWN_DUP2, environment, 4),
                (os.POSIX_SPAWN_DUP2, begin, 5),
                *((os.POSIX_SPAWN_CLOSE, descriptor) for descriptor in others),
            ],
            setsid=True,
            setsigdef=_RESET,
            setsigmask=(),
        )
    finally:
        os.close(environment)


def _directory(record: ProcessRecord, attempt: ProcessIdentity) -> str:
    """Return the directory of the program of an attempt."""
    return record.directory() or str(Path(f"/proc/{attempt.pid}/cwd").readlink())


def _put_in_place(pid: int, attempt: int, owner: Owner) -> None:
    """Give a process that waits the limits, control group, processors and nice value of an attempt.

    Raises:
        Refused: the attempt is not yet, or no more, a process of its owner.
        OSError: the kernel refuses it.
    """
    status = Path(f"/proc/{attempt}/status").read_text()
    uids = next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1:]
    if set(uids) != {str(owner.uid)}:
        raise Refused(
            f"the attempt is just beginning or ending, and not yet a process of {owner.name}; try again"
        )
    for number, limits in _limits(Path(f"/proc/{attempt}/limits").read_text()):
        if resource.prlimit(pid, number) != limits:
            resource.prlimit(pid, number, limits)
    os.sched_setaffinity(pid, os.sched_getaffinity(attempt))
    nice = os.getpriority(os.PRIO_PROCESS, attempt)
    if nice != os.getpriority(os.PRIO_PROCESS, pid):
        os.setpriority(os.PRIO_PROCESS, pid, nice)
    _join_control_group(pid, attempt)


def _limits(text: str) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield each resource limit of ``/proc/PID/limits`` with its soft and hard value."""
    for line in text.splitlines()[1:]:
        name = line[4:26].strip()
        if name in LIMITS:
            soft, hard = (-1 if word == "unlimited" else int(word) for word in line[26:].split()[:2])
            yield LIMITS[name], (soft, hard)


def _join_control_group(pid: int, attempt: int) -> None:
    """Put a process into the control group of an attempt, where the kernel has the second hierarchy."""
    mine, theirs = (Path(f"/proc/{each}/cgroup").read_text() for each in (pid, attempt))
    if mine == theirs:
        return
    for line in theirs.splitlines():
        if line.startswith("0::"):
            Path(f"/sys/fs/cgroup{line[3:]}/cgroup.procs").write_text(str(pid))


async def _pump(number: int, stream: asyncio.StreamReader, pieces: _Pieces) -> None:
    """Put what comes from a stream into a queue, at last nothing."""
    while chunk := await stream.read(CHUNK_BYTES):
        await pieces.put((number, chunk))
    await pieces.put((number, b""))


async def _reader(descriptor: int) -> tuple[asyncio.StreamReader, asyncio.BaseTransport]:
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0)
    )
    return reader, transport


async def _writer(descriptor: int) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.streams.FlowControlMixin(loop=loop), os.fdopen(descriptor, "wb", 0)
    )
    return asyncio.StreamWriter(transport, protocol, None, loop)


async def _readable(descriptor: int) -> None:
    """Wait until a descriptor is readable."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(descriptor, ready.set_result, None)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)
