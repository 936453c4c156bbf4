"""What ``images`` needs from a container engine, as a Protocol over frozen values.

``images.docker_engine`` satisfies it with a real engine; the unit tests with a fake that keeps
a dictionary.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from images.cancellation import CancellationToken
from images.settings import BuilderKind


@dataclass(frozen=True, slots=True)
class Image:
    """An image that the engine has."""

    id: str
    tags: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One command in a throw-away container."""

    image: str
    argv: tuple[str, ...]
    network: bool = False
    root: bool = False
    files: Mapping[str, Path] = field(default_factory=dict)  # path in the container: on the host; read-only
    commit: str | None = None  # tag for what the container leaves behind, when the command succeeds


@dataclass(frozen=True, slots=True)
class StepEnd:
    exit_code: int
    output: str
    committed: str | None = None  # image id


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """A build: everything but the context."""

    tag: str
    arguments: Mapping[str, str]
    labels: Mapping[str, str]


class Engine(Protocol):
    """A container engine.  Every call may raise ``images.errors.EngineUnavailable``."""

    def image(self, reference: str) -> Image | None:
        """Return the image for a tag or an id, or ``None`` when the engine has none; never pulls."""

    def images(self, label: str) -> tuple[Image, ...]:
        """Return the images that carry a label."""

    def tag(self, image: str, tag: str) -> None: ...

    def pull(self, reference: str) -> None:
        """Fetch an image from its registry.

        Raises:
            BuildFailed: the registry does not give it, or does not answer soon.
        """

    def load_root(self, archive: IO[bytes], tag: str) -> str:
        """Return the id of an image made of one layer, the tar of a root directory."""

    def step(self, step: Step) -> StepEnd:
        """Return how a command in a throw-away container ended.

        Raises:
            BuildFailed: it could not be started.
        """

    def builders(self) -> Iterator[BuilderKind]:
        """Yield the kinds of builder that work here, best first."""

    def platform(self) -> str:
        """Return what images are built for: ``linux/amd64``."""

    def build(
        self, kind: BuilderKind, request: BuildRequest, context: IO[bytes], interest: CancellationToken
    ) -> Iterator[str]:
        """Build and tag a context (an open file: a tar with a ``Dockerfile``); yield the log as it comes.

        When the interest is abandoned the build is broken off, and fails in one way or another.

        Raises:
            BuildFailed: a step failed.
        """

    def used(self) -> frozenset[str]:
        """Return the ids of the images that a container, running or not, was made from."""

    def remove(self, reference: str) -> None:
        """Remove a tag or an image; no error when it is gone or in use."""
