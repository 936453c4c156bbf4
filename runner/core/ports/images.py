"""Images, as the control loop needs them."""

from pathlib import Path
from typing import Literal, Protocol, TypeAlias

Accelerator: TypeAlias = Literal["cuda", "rocm", "cpu"]
PullPolicy: TypeAlias = Literal["missing", "always", "never"]


class BuildFailed(Exception):
    """An image build ended in an error; the text is the last lines of its log."""


class ImageRefused(BuildFailed):
    """No container may be made of an image; the text says why."""


class Images(Protocol):
    """The source of images."""

    def ensure(self, accelerator: Accelerator, log: Path, job_id: str) -> str:
        """Return the image id for an accelerator, building it if nothing in the store has its digest.

        Blocks, possibly for minutes; the build's output is appended to ``log`` as it comes.

        Raises:
            BuildFailed: with the last lines of the log.
            Unavailable: the engine does not answer, or all who waited have left.
        """

    def leave(self, job_id: str) -> None:
        """Wait no longer for an image; a build that no job waits for is broken off.  Does not block."""

    def close(self) -> None:
        """Break off every build; does not block."""

    def resolve(self, reference: str) -> str:
        """Return the id of an image that is there under a tag or an id; a tag may move, an id cannot.

        Raises:
            BuildFailed: there is none.
            ImageRefused: no container may be made of it.
            Unavailable: the engine does not answer.
        """

    def pin(self, reference: str, pull: PullPolicy) -> str:
        """Return the pinned name of an image, its digest in a registry or its id; pull nothing.

        ``pull``: whether the registry is asked where a tag points if the engine has none, always or never.

        Raises:
            BuildFailed: there is none, or the registry refuses it.
            ImageRefused: no container may be made of it.
            Unavailable: the engine or the registry does not answer.
        """

    def fetch(self, reference: str, log: Path, job_id: str) -> str:
        """Return the id of an image of the engine, which pulls it from its registry if it is not there.

        Blocks, possibly for minutes; what the engine says of it is appended to ``log``.

        Raises:
            BuildFailed: the registry does not have it, or refuses it.
            Unavailable: the engine does not answer, or ``leave`` was called by all who waited.
        """

    def digest(self, accelerator: Accelerator) -> str:
        """Return the content address of what ``ensure`` would give."""
