"""A worker: a process that is its user in every respect, and reads what this user has written.

The spawner forks it and it serves one request after the other, until nothing was asked for a while.  What
a text costs is its author's: each request has a limit of processor time, the process one of memory, and the
kernel ends it at either.  That loses nothing: a worker has no state, and the next request starts another.
A request that takes long, or changes files, has a worker of its own, with other limits.

``UserWork`` is all that it does; requests and answers follow from the signatures.
"""

import codecs
import os
import resource
import select
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from images.errors import BuildFailed
from images.packages.answer import FoundPackage, read_answer
from jobs.contract import CheckpointInvalid, profiles_dir
from runner.adapters.host.links import find_links_out
from runner.adapters.host.paths import PathRefusedError, check_path, open_path, read_opened
from runner.adapters.host.user_files import UserFiles
from runner.adapters.host.user_outputs import UserOutputs
from runner.adapters.rpc.calls import Calls, Descriptor, Interface
from runner.adapters.rpc.errors import ErrorKinds, text_alone
from runner.adapters.rpc.frames import MAX_REQUEST_BYTES, Disconnected, close_all, receive, send
from runner.base.errors import Unavailable, UsageError
from runner.base.identity import limit
from runner.base.textfile import FileError, Position, Problem, one_line
from runner.base.threads import run_to_future
from runner.files.dockerfile import check_dockerfile
from runner.files.job.load import has_schedule
from runner.files.required import Collected, MissingFile, RequirementReader
from runner.files.requirements import RequirementLine, find_mistake, parse_lines, parse_locked
from runner.files.shell import find_script_warnings
from runner.files.submission import Submission
from runner.files.written import WrittenJobs, WrittenWrongly, find_place, read_jobs, values_of

T = TypeVar("T")

IDLE_S: Final = 30.0
"""A worker that was not asked for so long ends."""

CPU_S: Final = 20
"""Processor time of one request; a matrix of 1,000 jobs takes a few seconds."""

ALL_CPU_S: Final = 3600
"""Of all requests of one worker."""

MEMORY_BYTES: Final = 2 * 1024**3
"""Address space of a worker."""

NICENESS: Final = 10
"""The daemon goes first."""

DESCRIPTORS: Final = 64


def _arguments_of_missing(error: BaseException) -> tuple[object, ...]:
    return (str(error.path), error.fact) if isinstance(error, MissingFile) else ()


def _arguments_of_wrong(error: BaseException) -> tuple[object, ...]:
    return values_of(error) if isinstance(error, FileError) else ()


class UserWork(UserFiles, UserOutputs):
    """Operations of a worker for its user, with the rights of this process."""

    def read_jobs(
        self, path: str, text: bytes, name: str | None, shown: str | None, instead: Mapping[str, Any]
    ) -> WrittenJobs:
        """Return the jobs of a submission; may raise WrittenWrongly, UsageError, Refused."""
        if not os.access(profiles_dir(), os.R_OK | os.X_OK):
            fact = f"uid {os.geteuid()} cannot read {profiles_dir()}"
            raise Unavailable(f"{fact}; the operator installs the runner where all users can read it")
        submission = Submission(path, text, name, shown, instead=instead)
        return _as_values(lambda: read_jobs(submission, check_path, _read_policy))

    def find_place(self, text: bytes, number: int, path: tuple[str | int, ...]) -> Position | None:
        """Return the position of a job's value in the file; ``number`` counts those of a matrix, from 0."""
        return find_place(text, number, path)

    def has_schedule(self, text: bytes) -> bool:
        """Return True if a job file has a schedule, valid or not."""
        return has_schedule(text)

    def read_requirements(self, base: Path, asked: str | tuple[str, ...]) -> Collected:
        """Return the requirements of a job; may raise WrittenWrongly, MissingFile."""
        return _as_values(lambda: RequirementReader(_read_small, base).read(asked))

    def check_dockerfile(self, base: Path, path: str, offered: frozenset[str] | None) -> tuple[str, ...]:
        """Return the warnings about the Dockerfile of a job; may raise WrittenWrongly."""
        return _as_values(lambda: check_dockerfile(_read_small, base, path, offered))

    def check_script(self, base: Path, path: str) -> tuple[str, ...]:
        """Return the losses of a shell script in the code of a job; nothing of a file that cannot be read."""
        try:
            text = _read_small(base / path).decode(errors="replace")
        except UsageError:
            return ()
        shown = one_line(path)
        return tuple(f"{shown}:{number}: {fact}" for number, fact in find_script_warnings(path, text))

    def find_links_out(self, directory: Path) -> tuple[tuple[str, str], ...]:
        """Return the links that lead out of a directory, by their paths below it, with what they say."""
        return find_links_out(directory)

    def read_answer(self, directory: Descriptor) -> tuple[FoundPackage, ...]:
        """Return the packages that the resolver has found; may raise BuildFailed."""
        return read_answer(directory)


def _as_values(work: Callable[[], T]) -> T:
    """Return the result of work; the problems of a file are raised as values that an answer carries."""
    try:
        return work()
    except MissingFile:
        raise
    except FileError as error:
        raise WrittenWrongly(*values_of(error)) from error


def _read_small(path: Path) -> bytes:
    """Return the content of a small file; may raise UsageError."""
    try:
        return read_opened(open_path(path, "secret"), path)
    except PathRefusedError as error:
        raise UsageError(str(error)) from error


def _read_policy(path: Path) -> bytes:
    try:
        return _read_small(path)
    except UsageError as error:
        fact = str(error).removeprefix(f"{one_line(str(path))}: ")
        raise FileError(path, [Problem(None, "", fact)]) from error


CALLS: Final = Calls(
    {"user": Interface(UserWork)},
    ErrorKinds(
        {
            WrittenWrongly: _arguments_of_wrong,
            MissingFile: _arguments_of_missing,
            **dict.fromkeys((PathRefusedError, BuildFailed, CheckpointInvalid), text_alone),
        }
    ),
)


# --- the process

_SAMPLE: Final = b"""\
workload: {kind: program, command: [echo]}
progress: {log: 'step (?P<step>[0-9]+)'}
schedule: {cron: '0 3 * * *', timezone: Europe/Berlin}
policy: default
matrix: {values: {seed: [1, 2]}}
"""
_UTF: Final = (f"utf-{bits}{order}" for bits in (16, 32) for order in ("", "-le", "-be"))
_ENCODINGS: Final = ("unicode_escape", "idna", "utf-8-sig", *_UTF)
"""Of texts, and of JSON, which tells its own by how it begins."""

_WRONG: Final = b"workload: {kind: progam}\nseed: -1\n"


def warm_up() -> None:
    """Load all that texts need, once for all workers, which are forked from this process.

    A worker may lack the right to load a module, or an encoding, of an interpreter below /root.
    """
    CALLS.prepare()
    work, lock = UserWork(), '[[packages]]\nname = "a"\nversion = "1"\n'
    for text in (_SAMPLE, _WRONG, b"\xff", b"a: [", "\ufeff".encode("utf-16")):
        with suppress(UsageError):
            work.read_jobs("/job.yaml", text, None, None, {"priority": 1, "priority_class": "x"})
    list(parse_lines("tqdm>=4; python_version > '3'"))
    parse_locked(lock)
    for text in (b"", b"\xff"):
        with suppress(UnicodeDecodeError):
            text.decode("utf-8-sig")
    for name in _ENCODINGS:
        codecs.lookup(name)
    find_mistake(RequirementLine("tqdm>=4; python_version > '3'", 1))
    find_mistake(RequirementLine("tqdm 4", 1))


def serve(connection: socket.socket) -> None:
    """Answer the requests of a connection, until it is closed or nothing was asked for a while."""
    _limit_all()
    for kind, most in (
        (resource.RLIMIT_CPU, ALL_CPU_S),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
    ):
        limit(kind, most)
    while _is_asked(connection):
        _grant_time()
        if not _answer_next(connection):
            return


def serve_one(connection: socket.socket, cpu_s: int) -> None:
    """Answer one request of a connection, which may take so much processor time, write files and run git."""
    _limit_all()
    limit(resource.RLIMIT_CPU, min(cpu_s, ALL_CPU_S))
    _answer_next(connection)


def _limit_all() -> None:
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_AS, MEMORY_BYTES)
    limit(resource.RLIMIT_NOFILE, DESCRIPTORS)
    os.nice(NICENESS)


def _is_asked(connection: socket.socket) -> bool:
    waiting = select.poll()
    waiting.register(connection, select.POLLIN)
    return bool(waiting.poll(IDLE_S * 1000))


def _require_peer(connection: socket.socket) -> None:
    """Raise ``Unavailable`` if nobody waits for an answer any more."""
    waiting = select.poll()
    waiting.register(connection, select.POLLHUP)
    if waiting.poll(0):
        raise Unavailable("nobody waits for this any more")


def _grant_time() -> None:
    """Let the kernel end this process once the next request has taken its processor time."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    until = int(time.process_time()) + 1 + CPU_S
    resource.setrlimit(resource.RLIMIT_CPU, (min(until, hard), hard))


def _answer_next(connection: socket.socket) -> bool:
    """Answer the next request, and return whether there was one."""
    try:
        content, given = receive(connection, MAX_REQUEST_BYTES)
    except Disconnected:
        return False
    done: Future[tuple[bytes, tuple[int, ...]]] = Future()
    try:
        run_to_future(
            done, partial(CALLS.do, {"user": UserWork(partial(_require_peer, connection))}, content, given)
        )
    finally:
        close_all(given)
    error = done.exception()
    if isinstance(error, MemoryError):
        error = UsageError("takes more memory to read than a text of one user may")
    answer, opened = done.result() if error is None else (CALLS.errors.pack(error), ())
    try:
        send(connection, answer, *opened)
    except OSError:  # whoever asked has stopped waiting
        return False
    finally:
        close_all(list(opened))
    return True
