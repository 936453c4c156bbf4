"""The users of this host, and files that are opened with the rights of a user, never with the daemon's.

A daemon that runs as root asks workers, which are their users in every respect (``worker``).  A daemon that
is not root has no rights that its user lacks, and opens files itself.  A daemon that has given up root gets
the socket to what starts workers (``spawner``) from its helper.
"""

import os
import pwd
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from jobs.contract import open_directory
from runner.adapters.host.accounts import SubordinateIds, has_account
from runner.adapters.host.code_snapshot.frames import read_frames
from runner.adapters.host.code_snapshot.walk import LAST, WalkLimits
from runner.adapters.host.paths import PathRefusedError, read_opened
from runner.adapters.host.user_files import UserFiles
from runner.adapters.host.user_outputs import UserOutputs
from runner.adapters.host.workers import OneWorker, Spawner, WorkerEnded, Workers
from runner.base.errors import Unavailable, UsageError
from runner.base.readable import readable_duration
from runner.base.textfile import Position, one_line
from runner.core.ports.users import Owner, PathKind, UnknownUids, User

if TYPE_CHECKING:
    from runner.adapters.host.worker import UserWork
    from runner.adapters.rpc.calls import Calls
    from runner.files.required import Collected
    from runner.files.submission import Submission
    from runner.files.written import WrittenJobs

ANSWER_S: Final = 10.0
"""Longest wait for a file system."""

TEXT_S: Final = 60.0
"""Longest wait for a worker that is free, and for what it has read."""

READ_BYTES: Final = 1024**2

SUBORDINATE_IDS: Final = SubordinateIds()
"""Those of this host."""

CODE_CPU_S: Final = 120
"""Processor time for a code directory of the operator's own limit."""
LONG_CPU_S: Final = 3600
"""Processor time for outputs and checkpoints of a job, which may have any size."""

TOO_MUCH: Final = "takes more time or memory to read than a text of one user may (20 s of a processor, 2 GiB)"


class HostUsers:
    """Satisfies ``runner.core.ports.users.Users``; one for a daemon."""

    def __init__(
        self,
        unknown: UnknownUids = "accept",
        subordinate: SubordinateIds = SUBORDINATE_IDS,
        *,
        instead_of_root: tuple[int, int] | None = None,
        connect: Callable[[], socket.socket] | None = None,
        open_directory: Callable[[Path], AbstractContextManager[int]] = open_directory,
    ) -> None:
        """Start nothing yet.

        Args:
            unknown: what is done with uids that have no account.
            subordinate: the ranges of ids that belong to users.
            instead_of_root: uid and gid with which root's files are opened, and the groups of users are
                looked up anew; None: whoever asks is trusted.
            connect: returns a socket to what starts workers; None: one is started here.
            open_directory: opens a directory of a job.
        """
        self._unknown = unknown
        self.instead_of_root, self._connect = instead_of_root, connect
        self._open_directory = open_directory
        self._given: list[Spawner] = []  # for other processes
        self._subordinate = subordinate
        self._spawner: Spawner | None = None
        self._starting = Lock()
        self._workers = Workers(self._spawn)

    def find_user(self, uid: int, gid: int) -> User:
        """Return the user of a uid; the host's records outrank the gid of the connection.

        A uid without an account has no other groups.  It counts as the owner of the range of subordinate ids
        that it lies in, but it keeps its own rights.
        """
        try:
            entry = pwd.getpwuid(uid)
        except KeyError:
            return User(uid, gid, (gid,), self._name(uid))
        groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
        return User(uid, entry.pw_gid, groups, entry.pw_name)

    def _as_user(self, owner: Owner) -> User:
        """Return an owner with all groups, as the job has them: a mount may be open to one of these alone."""
        groups = self.find_user(owner.uid, owner.gid).groups
        return User(owner.uid, owner.gid, tuple(dict.fromkeys((owner.gid, *groups))), owner.name)

    def _name(self, uid: int) -> str:
        """Return the name under which a uid without an account is counted."""
        person = uid if self._unknown == "accept" else self._subordinate.person(uid)
        try:
            return pwd.getpwuid(person).pw_name
        except KeyError:
            return str(person)

    def account_problem(self, uid: int) -> str | None:
        if self._unknown == "accept" or uid in {0, os.geteuid()} or has_account(uid):
            return None
        person = self._subordinate.person(uid)
        if self._unknown == "owner" and person != uid:
            return None
        whose = f", and belongs to uid {person}" if person != uid else ""
        return f"uid {uid} has no account on this machine{whose}; ask the operator (unknown_uids)"

    def path_problem(self, who: User, path: Path, kind: PathKind) -> str | None:
        try:
            os.close(self._files(who).open_path(path, kind))
        except PathRefusedError as error:
            return str(error)
        return None

    def open_as_user(self, who: User, path: Path, kind: PathKind = "either") -> int:
        """Return a descriptor of a path, opened for reading as a user; the caller closes it.

        Raises:
            UsageError: the user may not read it, or it belongs to the system.
            Unavailable: the file system does not answer.
        """
        try:
            return self._files(who).open_path(path, kind)
        except PathRefusedError as error:
            raise UsageError(str(error)) from error

    def open_as_owner(self, owner: Owner, path: Path) -> int:
        """Return a descriptor of a directory, opened with the rights of an owner; see ``open_as_user``."""
        return self.open_as_user(self._as_user(owner), path, "directory")

    def read_as_user(self, who: User, path: Path) -> bytes:
        return read_opened(self.open_as_user(who, path, "secret"), path)

    def read_jobs(self, who: User, submission: "Submission") -> "WrittenJobs":
        shown = submission.shown or submission.path
        with _told_about(shown):
            return self.work(who).read_jobs(
                submission.path, submission.text, submission.name, submission.shown, submission.instead
            )

    def find_place(self, who: User, text: bytes, number: int, path: tuple[str | int, ...]) -> Position | None:
        try:
            return self.work(who).find_place(text, number, path)
        except (UsageError, Unavailable):
            return None

    def has_schedule(self, who: User, text: bytes) -> bool:
        return self.work(who).has_schedule(text)

    def read_requirements(self, who: User, base: Path, asked: str | tuple[str, ...]) -> "Collected":
        with _told_about("image.requirements" if not isinstance(asked, str) else asked):
            return self.work(who).read_requirements(base, asked)

    def check_dockerfile(
        self, who: User, base: Path, path: str, offered: frozenset[str] | None
    ) -> tuple[str, ...]:
        with _told_about(path):
            return self.work(who).check_dockerfile(base, path, offered)

    def find_links_out(self, who: User, directory: Path) -> tuple[tuple[str, str], ...]:
        try:
            return self.work(who).find_links_out(directory)
        except (UsageError, Unavailable):  # not answered: nothing is refused for it
            return ()

    def check_script(self, who: User, base: Path, path: str) -> tuple[str, ...]:
        try:
            with _told_about(path):
                return self.work(who).check_script(base, path)
        except (UsageError, Unavailable):  # too large, or not answered: nothing is refused for it
            return ()

    def stream_code_as_user(
        self,
        who: User,
        directory: Path,
        known: int,
        limits: WalkLimits,
        skip: tuple[tuple[int, int], ...],
    ) -> "CodeStream":
        """Return the content of a code directory, as frames of ``code_snapshot.walk``; the caller closes it.

        It is read with the rights of a user, by a process of its own also where these are the daemon's:
        the interpreter of the daemon has other work.  ``known`` is the descriptor of the last listing.
        """
        worker = self._workers.one(who, CODE_CPU_S, ANSWER_S)
        near = self._begin(worker, "user.send_code", path=directory, known=known, limits=limits, skip=skip)
        return CodeStream(worker, *near, one_line(str(directory)), limits.frame_bytes)

    def archive_as_owner(self, owner: Owner, directory: Path, name: str) -> "ArchiveStream":
        """Return the files at a name below a directory as a tar archive, read with the rights of an owner.

        The caller closes it.

        Raises:
            OSError: the directory is not there.
            Unavailable: the process that reads it has ended.
        """
        with open_directory(directory) as place:  # which is no user's
            worker = self._workers.one(self._as_user(owner), LONG_CPU_S, ANSWER_S)
            near = self._begin(worker, "user.archive", directory=place, name=name)
        return ArchiveStream(worker, *near, one_line(name))

    def update_as_owner(
        self, owner: Owner, directory: Path, send: Callable[[BinaryIO], None], *, read_only: bool
    ) -> tuple[str, ...]:
        """Make the changes that ``send`` writes in a working directory, with the rights of its owner.

        Returns the first paths that were left as the program has made them.

        Raises:
            OSError: the directory is not there.
            Unavailable: the file system does not answer.
        """
        with self._open_directory(directory) as place:
            worker = self._workers.one(self._as_user(owner), CODE_CPU_S, ANSWER_S)
            near, answer = self._begin(worker, "user.update", directory=place, read_only=read_only)
        with near:
            near.settimeout(ANSWER_S)
            with suppress(ConnectionError), near.makefile("wb", buffering=READ_BYTES) as stream:
                send(stream)  # type: ignore[arg-type]  # typeshed calls every file of a socket IOBase
        kept: tuple[str, ...] = answer()
        return kept

    def outputs(self, owner: Owner, check: Callable[[], None], within_s: float | None = None) -> UserOutputs:
        """Return the reader of an owner's checkpoints, with their rights.

        ``within_s`` is for what takes so long, and ``check`` ends the wait by what it raises.
        """
        who = self._as_user(owner)
        if not self._needs_other_rights(who):
            return UserOutputs(check)
        exchange = (
            partial(self._workers.exchange, who, TEXT_S)
            if within_s is None
            else partial(self._workers.exchange_alone, who, LONG_CPU_S, within_s + ANSWER_S, check)
        )
        work: UserOutputs = _calls().proxy("user", exchange)
        return work

    def open_spawner(self) -> int:
        """Start what starts workers for another process; return the socket to it.

        The process ends when the socket is closed.
        """
        made = Spawner.start(self.instead_of_root)
        with self._starting:
            self._given = [each for each in self._given if each.is_running()]
            self._given.append(made)
        return made.give()

    def close(self) -> None:
        """End the processes; the next request starts another one."""
        self._workers.close()
        with self._starting:
            made = [*self._given, *([self._spawner] if self._spawner else [])]
            self._given, self._spawner = [], None
        for each in made:
            each.end()

    def work(self, who: User) -> "UserWork":
        """Return the interface of a user's workers."""
        work: UserWork = _calls().proxy("user", partial(self._workers.exchange, who, TEXT_S))
        return work

    def _files(self, who: User) -> UserFiles:
        """Return the opener of a user's files."""
        if not self._needs_other_rights(who):
            return UserFiles()
        files: UserFiles = _calls().proxy("user", partial(self._workers.exchange, who, ANSWER_S))
        return files

    def _begin(
        self, worker: OneWorker, op: str, **named: object
    ) -> "tuple[socket.socket, Callable[[], Any]]":
        """Begin a call that has a stream; return its near end, and what waits for the answer."""
        with ExitStack() as unless_begun:
            unless_begun.callback(worker.close)
            near, far = socket.socketpair()
            unless_begun.callback(near.close)
            with far:
                answer = _calls().begin(op, worker.send, stream=far.fileno(), **named)
            unless_begun.pop_all()
        return near, answer

    def _spawn(self, who: User, cpu_s: int | None) -> socket.socket:
        try:
            return self._running().spawn(who, cpu_s)
        except OSError as error:
            self.close()
            raise Unavailable(f"the process that works as users has ended: {error.strerror}") from error

    def _running(self) -> Spawner:
        """Return the spawner of workers, which is started if it is not running."""
        with self._starting:
            if self._spawner is None:
                connect = self._connect
                self._spawner = (
                    Spawner.start(self.instead_of_root) if connect is None else Spawner(connect(), None)
                )
            return self._spawner

    def _needs_other_rights(self, who: User) -> bool:
        """Return True if a user has other rights than this process."""
        if self._connect is not None or self.instead_of_root is not None:
            return True
        return os.geteuid() == 0 and who.uid != 0


@contextmanager
def _told_about(shown: str) -> Iterator[None]:
    """Tell at a file that its worker has ended; an answer of another shape is no answer."""
    try:
        yield
    except WorkerEnded as error:
        raise UsageError(f"{one_line(shown)}: {TOO_MUCH}") from error
    except (ValueError, TypeError, LookupError) as error:
        raise Unavailable(f"{one_line(shown)}: the process that reads it gave no answer of use") from error


def _calls() -> "Calls":
    from runner.adapters.host.worker import CALLS  # noqa: PLC0415  (with the first request of a user)

    return CALLS


class ArchiveStream:
    """A tar archive while it is written; satisfies ``runner.core.ports.users.Archive``."""

    def __init__(
        self, worker: OneWorker, stream: socket.socket, answer: Callable[[], None], shown: str
    ) -> None:
        self._worker, self._answer, self._shown = worker, answer, shown
        self.stream = stream

    def problem(self) -> str | None:
        try:
            _wait(self._answer, self._shown)
        except PathRefusedError as error:
            return str(error)
        return None

    def close(self) -> None:
        self._worker.close()
        self.stream.close()


class CodeStream:
    """The answer to a request for a code directory, while it comes in."""

    def __init__(
        self,
        worker: OneWorker,
        stream: socket.socket,
        answer: Callable[[], None],
        shown: str,
        frame_bytes: int,
    ) -> None:
        self._worker, self._answer, self._stream, self._shown = worker, answer, stream, shown
        self._frame_bytes = frame_bytes
        stream.settimeout(ANSWER_S)
        self._file = stream.makefile("rb", buffering=READ_BYTES)

    def frames(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the kind and the content of each frame.

        Raises:
            PathRefusedError: the user may not have the directory.
            Unavailable: the file system does not answer, or the process has ended early.
        """
        complete = False
        try:
            for kind, content in read_frames(self._file, self._frame_bytes):
                yield kind, content
                complete = kind in LAST
        except TimeoutError as error:
            fact = f"no answer from the file system in {readable_duration(ANSWER_S)}"
            raise Unavailable(f"{self._shown}: {fact}") from error
        except (EOFError, ConnectionError) as error:
            raise Unavailable(f"{self._shown}: the process that reads it as its user has ended") from error
        if not complete:
            _wait(self._answer, self._shown)
            raise Unavailable(f"{self._shown}: the process that reads it as its user has ended")

    def close(self) -> None:
        """Close both ends; the process that writes there ends."""
        self._worker.close()
        self._file.close()
        self._stream.close()


def _wait(answer: Callable[[], None], shown: str) -> None:
    """Wait for an answer at the end of a stream; may raise PathRefusedError, Unavailable."""
    try:
        answer()
    except Unavailable as error:
        raise Unavailable(f"{shown}: {error}") from error
