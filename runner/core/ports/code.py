"""Snapshots of code: what a directory held at a submission, kept by content for each user."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, Protocol

from runner.base.errors import UsageError
from runner.core.ports.users import Owner, User


class CodeRefused(UsageError):
    """A code directory cannot be kept as it is."""

    def __init__(self, facts: Sequence[str]) -> None:
        self.facts = tuple(facts)  # one line each, which begins with a path below the directory
        super().__init__("\n".join(self.facts))


@dataclass(frozen=True, slots=True)
class GitState:
    """State of the git repository that a code directory was in, as git says."""

    commit: str | None = None
    branch: str | None = None  # None: no branch is checked out
    remote: str | None = None  # the name of the remote that the branch follows
    dirty: bool | None = None  # whether something differed from the commit; None: git did not say


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something that lies in a code directory, and not in its snapshot."""

    path: str  # below the directory; of several files of one suffix, such as data/*.npy
    kind: Literal["file", "directory", "link", "special", "pointer"]  # the first two: ignored
    files: int = 1
    bytes: int = 0
    target: str = ""  # of a link that leads out of the code; of something special what it is
    is_more: bool = False  # than what was measured


@dataclass(frozen=True, slots=True)
class CodeSnapshot:
    """A snapshot in the store."""

    id: str  # the digest of its manifest
    files: int
    bytes: int
    git: GitState | None = None  # None: the directory was in no repository
    left_out: tuple[LeftOut, ...] = ()  # links first, then what is largest


@dataclass(frozen=True, slots=True)
class CodeEntry:
    """A file, a link or a directory of a snapshot."""

    kind: Literal["file", "link", "directory"]
    target: str = ""  # of a link
    digest: str = ""  # of a file: SHA-256 of its content
    size: int = 0
    executable: bool = False


@dataclass(frozen=True, slots=True)
class WorkingDirectory:
    """Code that an attempt is given as its working directory."""

    snapshot: str
    read_only: bool = False


class CodeSnapshots(Protocol):
    """The snapshots of all users, each user's apart from those of the others."""

    def take(self, who: User, directory: Path) -> CodeSnapshot:
        """Return the snapshot of a directory as it is now, read with the rights of ``who``.

        Raises:
            CodeRefused: the directory cannot be kept, with every reason on a line of its own.
            Refused: the user's snapshots are too large together.
            Unavailable: the file system does not answer.
        """

    def entries(self, uid: int, snapshot: str) -> Mapping[str, CodeEntry] | None:
        """Return the entries of a snapshot by path, None if there is no such snapshot of this user."""

    def missing(self, uid: int, digests: Iterable[str]) -> frozenset[str]:
        """Return the digests of files that are not in the store of a user."""

    def read(self, uid: int, digest: str, limit: int) -> bytes:
        """Return the first ``limit`` bytes of a file."""

    def pack(self, uid: int, snapshot: str, out: BinaryIO) -> None:
        """Write a snapshot as a tar that depends on its content alone.

        Raises:
            Refused: there is no such snapshot, or it is damaged.
            OSError: the file system refuses it.
        """

    def sweep(self) -> int:
        """Remove the snapshots that no job needs, and the files of no other; return the bytes freed."""

    def fill(self, uid: int, wanted: WorkingDirectory, target: Path, owner: Owner) -> None:
        """Write a snapshot into an empty directory that only the daemon can reach, and give it to its owner.

        Raises:
            Refused: there is no such snapshot, or it is damaged.
            OSError: the file system refuses it.
        """

    def update(
        self, uid: int, before: str, wanted: WorkingDirectory, place: Path, owner: Owner
    ) -> tuple[str, ...]:
        """Bring a working directory from one snapshot to another; return the first paths that it keeps.

        What the program has changed stays as it is.

        Raises:
            Refused: there is no such snapshot, or it is damaged.
            Unavailable: the file system does not answer.
            OSError: the file system refuses it.
        """
