"""Packages of jobs: requirements become a lock, and a lock becomes an image or an environment."""

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from runner.core.ports.images import Accelerator
from runner.core.ports.users import User


@dataclass(frozen=True, slots=True)
class PackageRequest:
    """Packages that a job asks for, with all files read."""

    lines: tuple[str, ...]
    """Requirements, one package each."""
    constraints: tuple[str, ...] = ()
    accelerator: Accelerator = "cpu"
    base: str | None = None
    """The reference of the image that gets the packages; None: that of the accelerator."""
    system: tuple[str, ...] = ()
    """Debian packages, possibly with their versions."""
    python: str | None = None
    """The Python that the image must have; None: any."""
    offered: tuple[tuple[str, str], ...] = ()
    """Names and references of the images of the operator, one of which may have that Python."""


@dataclass(frozen=True, slots=True)
class DockerfileRequest:
    """A Dockerfile in the code of a job."""

    path: str
    """Below the code directory, with slashes."""
    image: str
    """The id of the image that ``${BASE}`` stands for."""
    accelerator: Accelerator
    uid: int


class Unresolvable(Exception):
    """Requirements have no solution; the text is the reason in one line."""

    def __init__(self, reason: str, details: str) -> None:
        super().__init__(reason)
        self.details = details  # all that the resolver has said


class Packages(Protocol):
    """Resolves and installs packages."""

    def resolve(self, request: PackageRequest, who: User, log: Path, job_id: str) -> str:
        """Return the lock of a request, in the format of PEP 751.

        Blocks, possibly for minutes: the image of the accelerator may have to be built first.  ``leave`` with
        the same ``job_id`` ends it.

        Raises:
            Unresolvable: the requirements have no solution.
            BuildFailed: the image that gets the packages cannot be had.
            Unavailable: the index or the engine does not answer, or ``leave`` was called.
        """

    def ensure(self, lock: str, image: str, accelerator: Accelerator, log: Path, job_id: str) -> str:
        """Return the id of the image with the packages of a lock on another image, and build it if necessary.

        Raises:
            BuildFailed: with the last lines of the log.
            Unavailable: the index or the engine does not answer, or all who waited have left.
        """

    def build(self, request: DockerfileRequest, context: BinaryIO, log: Path, job_id: str) -> str:
        """Return the id of the image of a Dockerfile, and build it if necessary.

        ``context`` is a tar of the code, which is read from its beginning.

        Raises:
            BuildFailed: with the last lines of the log, or because the Dockerfile says what it may not.
            Unavailable: the engine does not answer, or all who waited have left.
        """

    def environment(self, lock: str) -> Path | None:
        """Return the directory of a virtual environment of this host; None: the packages are in the image."""

    def evict(self, needed: frozenset[str]) -> None:
        """Remove images that were not used for longest, above the operator's limit.

        ``needed`` are the images of jobs that have not ended; they stay, and so do those of containers.
        """

    def leave(self, job_id: str) -> None:
        """Wait no longer; what nobody waits for is broken off.  Does not block."""

    def close(self) -> None:
        """Break off everything; does not block."""
