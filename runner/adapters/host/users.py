"""The users of this host, and files that are opened with the rights of a user, never with the daemon's.

A daemon that runs as root asks a process of its own (``file_broker_process``), which forks a child for each
request.  The child becomes the user entirely, opens the path and hands the descriptor back.  A daemon that is
not root has no rights that its user lacks, and opens files itself.  A daemon that has given up root gets the
socket to such a process from its helper.
"""

import json
import os
import pwd
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, BinaryIO, Final
from weakref import finalize

from jobs.contract import open_directory
from runner.adapters.host.accounts import SubordinateIds, has_account
from runner.adapters.host.code_snapshot.frames import read_frames
from runner.adapters.host.code_snapshot.walk import LAST
from runner.adapters.host.file_formats import find_first_damage
from runner.adapters.host.paths import MAX_SECRET_BYTES, PathRefusedError, open_beneath, open_path
from runner.adapters.host.workers import TOO_MUCH, Workers
from runner.base.errors import Unavailable, UsageError
from runner.base.textfile import Position, one_line
from runner.core.ports.users import Owner, PathKind, UnknownUids, User

if TYPE_CHECKING:
    from runner.adapters.host.worker import UserWork
    from runner.files.required import Collected
    from runner.files.submission import Submission
    from runner.files.written import WrittenJobs

ANSWER_S: Final = 10.0
"""Longest wait for a file system."""

DAMAGE_S: Final = 120.0
"""Longest wait for what a look at the files of a checkpoint finds."""

READ_BYTES: Final = 1024**2

SUBORDINATE_IDS: Final = SubordinateIds()
"""Those of this host."""
_MAX_ANSWER_BYTES: Final = 16 * 1024
_PATHS_BYTES: Final = 32 * 1024
"""Of the paths in one request; a packet may have twice as much."""


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
            connect: returns a socket to a process that opens files; None: one is started here.
            open_directory: opens a directory of a job.
        """
        self._unknown = unknown
        self.instead_of_root, self._connect = instead_of_root, connect
        self._open_directory = open_directory
        self._given: list[subprocess.Popen[bytes]] = []  # for other processes
        self._subordinate = subordinate
        self._broker: _Broker | None = None
        self._starting = Lock()
        self._workers = Workers(self._start_worker)

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

    def _name(self, uid: int) -> str:
        """Return the name under which a uid without an account is counted."""
        person = uid if self._unknown == "accept" else self._subordinate.person(uid)
        try:
            return pwd.getpwuid(person).pw_name
        except KeyError:
            return str(person)

    def account_problem(self, uid: int) -> str | None:
        """Return why nobody with a uid may use the daemon, or None; the user database may take its time."""
        if self._unknown == "accept" or uid in {0, os.geteuid()} or has_account(uid):
            return None
        person = self._subordinate.person(uid)
        if self._unknown == "owner" and person != uid:
            return None
        whose = f", and belongs to uid {person}" if person != uid else ""
        return f"uid {uid} has no account on this machine{whose}; ask the operator (unknown_uids)"

    def path_problem(self, who: User, path: Path, kind: PathKind) -> str | None:
        """Return why a user cannot use a path as ``kind``, or None.

        Raises:
            Unavailable: the file system does not answer.
        """
        try:
            os.close(self._open(who, path, kind))
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
            return self._open(who, path, kind)
        except PathRefusedError as error:
            raise UsageError(str(error)) from error

    def open_as_owner(self, owner: Owner, path: Path) -> int:
        """Return a descriptor of a directory, opened with the rights of an owner; see ``open_as_user``."""
        return self.open_as_user(User(owner.uid, owner.gid, (owner.gid,), owner.name), path, "directory")

    def open_beneath_as_user(self, who: User, directory: int, name: str) -> int:
        """Return a descriptor of a file or directory below an open directory, opened for reading as a user.

        No link is followed on the way.  The caller closes the descriptor.

        Raises:
            UsageError: it is not there, or the user may not read it.
            Unavailable: the file system does not answer.
        """
        try:
            if not self._needs_other_rights(who):
                return open_beneath(directory, name)
            return self._ask(who, name, "beneath", directory)
        except PathRefusedError as error:
            raise UsageError(str(error)) from error

    def read_as_user(self, who: User, path: Path) -> bytes:
        """Return the content of a small file, read with the rights of a user.

        Raises:
            UsageError: the user may not read it, it is no regular file, or too large for a secret.
            Unavailable: the file system does not answer.
        """
        with os.fdopen(self.open_as_user(who, path, "secret"), "rb") as file:
            content = file.read(MAX_SECRET_BYTES + 1)
        if len(content) > MAX_SECRET_BYTES:  # it has grown since it was opened
            raise UsageError(f"{one_line(str(path))}: is larger than {MAX_SECRET_BYTES} bytes")
        return content

    def read_jobs(self, who: User, submission: "Submission") -> "WrittenJobs":
        """Return the jobs of a submission; they are read by a worker of their submitter's.

        Raises:
            FileError: the file is wrong; all its errors at once.
            UsageError: an option is wrong, or the file takes too much time or memory to read.
            Refused: its jobs are too large together.
            Unavailable: the file systems of the submitter do not answer.
        """
        shown = submission.shown or submission.path
        with _told_about(shown):
            found: WrittenJobs = self._work(who).read_jobs(
                submission.path, submission.text, submission.name, submission.shown, submission.instead
            )
        return found

    def find_place(self, who: User, text: bytes, number: int, path: tuple[str | int, ...]) -> Position | None:
        """Return where a value stands in a job file; none if its worker has no answer."""
        try:
            found: Position | None = self._work(who).find_place(text, number, path)
        except (UsageError, Unavailable):
            return None
        return found

    def has_schedule(self, who: User, text: bytes) -> bool:
        """Return whether a job file has a schedule, valid or not."""
        return bool(self._work(who).has_schedule(text))

    def read_requirements(self, who: User, base: Path, asked: str | tuple[str, ...]) -> "Collected":
        """Return the requirements of a job; they are read by a worker of its submitter's.

        Raises:
            FileError: a file of them cannot be read; ``MissingFile``: the first one.
            UsageError: they take too much time or memory to read.
            Unavailable: the file systems of the submitter do not answer.
        """
        with _told_about("image.requirements" if not isinstance(asked, str) else asked):
            found: Collected = self._work(who).read_requirements(base, asked)
        return found

    def check_dockerfile(self, who: User, base: Path, path: str, offered: frozenset[str] | None) -> None:
        """Check the Dockerfile of a job; it is read by a worker of its submitter's.

        Raises:
            FileError: at the lines that say what it may not.
            UsageError: it takes too much time or memory to read.
            Unavailable: the file systems of the submitter do not answer.
        """
        with _told_about(path):
            self._work(who).check_dockerfile(base, path, offered)

    def _work(self, who: User) -> "UserWork":
        """Return what the workers of a user do."""
        from runner.adapters.host.worker import CALLS  # noqa: PLC0415  (with the first text of a user)

        work: UserWork = CALLS.proxy("user", partial(self._workers.exchange, who))
        return work

    def _start_worker(self, who: User) -> socket.socket:
        mine, theirs = socket.socketpair()
        with theirs:
            self._send(json.dumps(_request(who, "", "worker")).encode(), theirs.fileno())
        return mine

    def stream_code_as_user(
        self, who: User, directory: Path, options: Mapping[str, object], *known: int
    ) -> "CodeStream":
        """Return what a code directory holds, as frames of ``code_snapshot.walk``; the caller closes it.

        It is read with the rights of a user, by a process of its own also where these are the daemon's:
        the interpreter of the daemon has other work.  ``known`` is the descriptor of the last listing.
        """
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stream, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        request = {**_request(who, str(directory), "code"), **options}
        with theirs, far:
            self._send(json.dumps(request).encode(), theirs.fileno(), far.fileno(), *known)
        return CodeStream(mine, stream, one_line(str(directory)))

    def archive_as_owner(self, owner: Owner, directory: Path, name: str) -> "ArchiveStream":
        """Return what lies at a name below a directory as a tar archive, read with the rights of an owner.

        The caller closes it.

        Raises:
            OSError: the directory is not there.
            Unavailable: the process that reads it has ended.
        """
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stream, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        who = User(owner.uid, owner.gid, (owner.gid,), owner.name)
        with theirs, far:
            place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                packet = json.dumps(_request(who, name, "archive")).encode()
                self._send(packet, theirs.fileno(), far.fileno(), place)
            finally:
                os.close(place)
        return ArchiveStream(mine, stream, one_line(name))

    def update_as_owner(
        self, owner: Owner, directory: Path, send: Callable[[BinaryIO], None], *, read_only: bool
    ) -> list[str]:
        """Make the changes that ``send`` writes in a working directory, with the rights of its owner.

        Returns the first paths that were left as the program has made them.

        Raises:
            OSError: the directory is not there.
            Unavailable: the file system does not answer.
        """
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        who = User(owner.uid, owner.gid, (owner.gid,), owner.name)
        request = {**_request(who, "", "update"), "read_only": read_only}
        shown = one_line(str(directory))
        with mine, near:
            with theirs, far, self._open_directory(directory) as place:
                self._send(json.dumps(request).encode(), theirs.fileno(), far.fileno(), place)
            near.settimeout(ANSWER_S)
            with suppress(ConnectionError), near.makefile("wb", buffering=READ_BYTES) as stream:
                send(stream)  # type: ignore[arg-type]  # typeshed calls every file of a socket IOBase
            near.close()
            kept: list[str] = _answer(mine, shown)[0]["kept"]
            return kept

    def damage_as_owner(self, owner: Owner, directory: int, paths: Sequence[str]) -> tuple[int, str] | None:
        """Return the index of the first file that is not whole, and what shows it; see ``find_first_damage``.

        The files lie below an open directory.  They are opened and read with the rights of their owner.

        Raises:
            Unavailable: the file system does not answer.
        """
        who = User(owner.uid, owner.gid, (owner.gid,), owner.name)
        if not self._needs_other_rights(who):
            return find_first_damage(directory, paths)
        first = 0
        for part in _in_packets(paths):
            found = self._damage_of(who, directory, part)
            if found is not None:
                return first + found[0], found[1]
            first += len(part)
        return None

    def _damage_of(self, who: User, directory: int, paths: list[str]) -> tuple[int, str] | None:
        request = {**_request(who, "", "damage"), "paths": paths}
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with mine:
            with theirs:
                self._send(json.dumps(request).encode(), theirs.fileno(), directory)
            answer, _ = _answer(mine, one_line(paths[0]), DAMAGE_S)
        damage = answer["damage"]
        return None if damage is None else (int(damage[0]), str(damage[1]))

    def open_broker(self) -> int:
        """Start a process that opens files for another process; return the socket to it.

        The process ends when the socket is closed.
        """
        requests, process = _start_with(self.instead_of_root)
        with self._starting:
            self._given = [each for each in self._given if each.poll() is None]
            self._given.append(process)
        return requests.detach()

    def close(self) -> None:
        """End the processes; the next request starts another one."""
        self._workers.close()
        with self._starting:
            broker, self._broker = self._broker, None
            given, self._given = self._given, []
        for process in given:
            process.kill()
            process.wait()
        if broker is not None:
            broker.end()

    def _open(self, who: User, path: Path, kind: PathKind) -> int:
        if self._needs_other_rights(who):
            return self._ask(who, str(path), kind)
        opened = open_path(path, kind)
        try:
            return opened.reopen()
        finally:
            opened.close()

    def _ask(self, who: User, path: str, kind: str, *directory: int) -> int:
        request = _request(who, path, kind)
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with mine:
            with theirs:
                self._send(json.dumps(request).encode(), theirs.fileno(), *directory)
            return _answer(mine, one_line(path))[1][0]

    def _send(self, packet: bytes, *descriptors: int) -> None:
        broker = self._running()
        try:
            socket.send_fds(broker.requests, [packet], descriptors)
        except OSError as error:
            self.close()
            raise Unavailable(f"the process that opens files as users has ended: {error.strerror}") from error

    def _running(self) -> "_Broker":
        """Return the process, which is started if it is not running."""
        with self._starting:
            if self._broker is None:
                connect = self._connect
                self._broker = _Broker(
                    (connect(), None) if connect is not None else _start_with(self.instead_of_root)
                )
            return self._broker

    def _needs_other_rights(self, who: User) -> bool:
        """Return whether a user has other rights than this process."""
        if self._connect is not None or self.instead_of_root is not None:
            return True
        return os.geteuid() == 0 and who.uid != 0


@contextmanager
def _told_about(shown: str) -> Iterator[None]:
    """Tell at a file that its worker has ended; an answer of another shape is no answer."""
    try:
        yield
    except UsageError as error:
        if str(error) == TOO_MUCH:
            raise UsageError(f"{one_line(shown)}: {TOO_MUCH}") from error
        raise
    except (ValueError, TypeError, LookupError) as error:
        raise Unavailable(f"{one_line(shown)}: the process that reads it gave no answer of use") from error


def _in_packets(paths: Sequence[str]) -> Iterator[list[str]]:
    """Yield the paths in parts that fit into one request each."""
    part: list[str] = []
    left = _PATHS_BYTES
    for path in paths:
        size = len(json.dumps(path)) + 2
        if part and size > left:
            yield part
            part, left = [], _PATHS_BYTES
        part.append(path)
        left -= size
    if part:
        yield part


def _request(who: User, path: str, kind: str) -> dict[str, object]:
    return {"uid": who.uid, "gid": who.gid, "groups": who.groups, "path": path, "kind": kind}


class ArchiveStream:
    """A tar archive while it is written; satisfies ``runner.core.ports.users.Archive``."""

    def __init__(self, answers: socket.socket, stream: socket.socket, shown: str) -> None:
        self._answers, self._shown = answers, shown
        self.stream = stream

    def problem(self) -> str | None:
        """Return why the archive is not complete, None if it is; ask when the stream has ended.

        Raises:
            Unavailable: the process that writes it has ended early.
        """
        try:
            _answer(self._answers, self._shown)
        except PathRefusedError as error:
            return str(error)
        return None

    def close(self) -> None:
        """Close both ends; the process that writes there ends."""
        self._answers.close()
        self.stream.close()


class CodeStream:
    """The answer to a request for a code directory, while it comes in."""

    def __init__(self, answers: socket.socket, stream: socket.socket, shown: str) -> None:
        self._answers, self._stream, self._shown = answers, stream, shown
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
            for kind, content in read_frames(self._file):
                yield kind, content
                complete = kind in LAST
        except TimeoutError as error:
            fact = f"no answer from the file system in {ANSWER_S:g} s"
            raise Unavailable(f"{self._shown}: {fact}") from error
        except (EOFError, ConnectionError) as error:
            raise Unavailable(f"{self._shown}: the process that reads it as its user has ended") from error
        if not complete:
            _answer(self._answers, self._shown)
            raise Unavailable(f"{self._shown}: the process that reads it as its user has ended")

    def close(self) -> None:
        """Close both ends; the process that writes there ends."""
        self._answers.close()
        self._file.close()
        self._stream.close()


class _Broker:
    """The socket to a process, and the process if it was started here; both end with this object."""

    def __init__(self, made: "tuple[socket.socket, subprocess.Popen[bytes] | None]") -> None:
        self.requests, self.process = made
        self.end = finalize(self, _end, self.requests, self.process)


def _start_with(
    instead_of_root: tuple[int, int] | None,
) -> "tuple[socket.socket, subprocess.Popen[bytes]]":
    requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        return requests, _start(theirs, instead_of_root)


def _end(requests: socket.socket, process: subprocess.Popen[bytes] | None) -> None:
    requests.close()  # which is what the process ends at
    if process is None:
        return
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _start(requests: socket.socket, instead_of_root: tuple[int, int] | None) -> subprocess.Popen[bytes]:
    """Start the process with an environment of its own, in a directory that nobody else writes to."""
    rights = [] if instead_of_root is None else ["{}:{}".format(*instead_of_root)]
    return subprocess.Popen(
        [
            sys.executable,
            "-I",
            "-m",
            "runner.adapters.host.file_broker_process",
            str(requests.fileno()),
            *rights,
        ],
        pass_fds=[requests.fileno()],
        cwd="/",
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )


def _answer(
    answers: socket.socket, shown: str, within_s: float = ANSWER_S
) -> tuple[dict[str, Any], list[int]]:
    """Return an answer and its descriptors.

    Raises:
        PathRefusedError: the user may not have it.
        Unavailable: there is no answer.
    """
    answers.settimeout(within_s)
    try:
        packet, received, _, _ = socket.recv_fds(answers, _MAX_ANSWER_BYTES, 1)
    except TimeoutError as error:
        raise Unavailable(f"{shown}: no answer from the file system in {within_s:g} s") from error
    if not packet:
        raise Unavailable(f"{shown}: the process that opens it as its user has ended")
    message: dict[str, Any] = json.loads(packet)
    if message.get("busy"):
        raise Unavailable(f"{shown}: too many files of this user are being opened; try again")
    if message["problem"] is not None:
        raise PathRefusedError(message["problem"])
    return message, received
