"""Users of the host: who owns a job, who asks, and how files are read with a user's rights."""

from dataclasses import dataclass
from pathlib import Path, PurePath
from socket import socket
from typing import Final, Literal, Protocol, TypeAlias

from runner.base.identity import check_ids

PathKind: TypeAlias = Literal["directory", "file", "secret", "either", "writable"]
"""Use for which a path is needed."""

ROOT_HOME: Final = Path("/root")

SYSTEM: Final = (
    *(Path(root) for root in ("/proc", "/sys", "/dev", "/boot", "/etc", "/run", "/var/lib")),
    ROOT_HOME,
)
"""Directories that are never shown to a job, wherever a link points from."""


def is_of_system(path: PurePath) -> bool:
    """Return True if a path is in one of the directories of the system, or holds one."""
    return any(path.is_relative_to(root) or root.is_relative_to(path) for root in SYSTEM)


UnknownUids: TypeAlias = Literal["refuse", "owner", "accept"]
"""Treatment of uids that have no account: refuse them; count those of a range in ``/etc/subuid``
as the owner of the range and refuse the others; or take each for a user of its own."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a job, and the user that it runs as: both numbers, always."""

    uid: int
    gid: int
    name: str

    def __post_init__(self) -> None:
        """Refuse ids that a change of rights or of owners would pass over."""
        check_ids(self.uid, self.gid)


@dataclass(frozen=True, slots=True)
class User:
    """A caller: uid, primary gid and supplementary groups, from the host's own records."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str

    def __post_init__(self) -> None:
        """Refuse ids that a change of rights would pass over."""
        check_ids(self.uid, self.gid, self.groups)


class Archive(Protocol):
    """A tar archive while it is written."""

    @property
    def stream(self) -> socket:
        """Return the socket that the archive comes from."""

    def problem(self) -> str | None:
        """Return the reason why the archive is not complete, None if it is; ask when the stream has ended."""

    def close(self) -> None:
        """End the work on it."""


class Users(Protocol):
    """Looks up users, and reads files with their rights, never the daemon's; may raise Unavailable."""

    def find_user(self, uid: int, gid: int) -> User:
        """Return the user of a uid; the host's records outrank the gid of the connection."""

    def account_problem(self, uid: int) -> str | None:
        """Return the reason why nobody with a uid may use the daemon, or None."""

    def path_problem(self, who: User, path: Path, kind: PathKind) -> str | None:
        """Return the reason why a user cannot use a path, or None."""

    def read_as_user(self, who: User, path: Path) -> bytes:
        """Return the content of a small file, read with the rights of a user.

        Raises:
            UsageError: the user may not read it, or it is too large for a secret.
        """


class MountPins(Protocol):
    """Mount sources that stay what they were when they were checked, even if the path is swapped."""

    def pin(self, who: User, path: Path, name: str) -> Path:
        """Return a path that leads to what ``path`` leads to now, for as long as it is pinned.

        Raises:
            UsageError: its owner may not read it, or it belongs to the system.
            Unavailable: the kernel does not attach it.
        """

    def release(self, name: str) -> None:
        """Unpin everything that was pinned below ``name``; running containers keep it."""

    def names(self) -> tuple[str, ...]:
        """Return the first parts of the names of all pins."""
