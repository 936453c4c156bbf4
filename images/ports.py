"""The port to a container engine, as ``images`` needs it.

``images.docker_engine`` implements it with a real engine, ``tests.fakes.engine.image_engine`` with a
dictionary.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, Protocol

from images.cancellation import CancellationToken
from images.settings import BuilderKind

MAX_OUTPUT_BYTES: Final = 4 * 1024**2
"""Of what a command says."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image that the engine has."""

    id: str
    tags: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """A command that runs in a temporary container."""

    image: str
    argv: tuple[str, ...]
    network: bool = False
    root: bool = False
    files: Mapping[str, Path] = field(default_factory=dict)  # path in the container: on the host; read-only
    writable: Mapping[str, Path] = field(default_factory=dict)  # directories, likewise
    user: tuple[int, int] | None = None  # uid and gid; None: nobody's, or root's
    memory_bytes: int | None = None
    seconds: float | None = None  # after which it is killed
    commit: str | None = None  # tag of the image that the container is committed to if the command succeeds
    result: IO[bytes] | None = None  # gets the standard output, which is then in no log
    most_bytes: int = 0  # of the result; with more the command is killed


@dataclass(frozen=True, slots=True)
class StepEnd:
    """Result of a step."""

    exit_code: int
    output: str  # its end, at most ``MAX_OUTPUT_BYTES``
    committed: str | None = None  # image id


@dataclass(frozen=True, slots=True)
class Addition:
    """An image that is another one with a layer more."""

    tag: str
    below: str  # the id of the other one
    labels: Mapping[str, str]
    """Labels beside those of the image below; an empty value takes one of them back."""
    environment: Mapping[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    """Paths of the image below that are removed."""


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """A build without its context."""

    tag: str
    arguments: Mapping[str, str]
    labels: Mapping[str, str]
    dockerfile: str = "Dockerfile"  # its path in the context
    network: bool = False  # the engine's default one; never that of the host
    cache: bool = True  # whether steps of earlier builds are used again
    memory_bytes: int | None = None  # of one step, where the builder has such a limit


class Engine(Protocol):
    """A container engine.  Every call may raise ``images.errors.EngineUnavailable``."""

    def image(self, reference: str) -> Image | None:
        """Return the image of a tag or an id, ``None`` if the engine has none; never pull it."""

    def inspect(self, reference: str) -> Mapping[str, Any]:
        """Return the description of an image in the format of the Docker API.

        Raises:
            BuildFailed: the engine has none.
        """

    def images(self, label: str) -> tuple[Image, ...]:
        """Return the images that carry a label."""

    def tag(self, image: str, tag: str) -> None: ...

    def pull(
        self, reference: str, say: Callable[[str], None] | None = None, token: CancellationToken | None = None
    ) -> None:
        """Pull an image from its registry, with what ``docker login`` has left for it.

        ``say`` is told how far it is; ``token`` ends it.

        Raises:
            BuildFailed: the registry refuses it.
            HostFault: it may be had later.
            BuildCancelled: ``token`` was cancelled.
        """

    def look_up(self, reference: str) -> str:
        """Return the digest that a reference has in its registry now; pull nothing.

        Raises:
            BuildFailed: the registry refuses it, or does not exist.
            HostFault: the registry does not answer now.
        """

    def load_root(self, archive: IO[bytes], tag: str) -> str:
        """Import the tar of a root directory as an image of one layer, and return its id."""

    def step(self, step: Step, token: CancellationToken | None = None) -> StepEnd:
        """Run a command in a temporary container, and return how it ended; ``token`` kills it.

        Raises:
            BuildFailed: it could not be started.
        """

    def add_layer(self, addition: Addition, layer: Iterable[bytes], token: CancellationToken) -> None:
        """Make and tag an image from another one and the parts of a tar, which are read once.

        Raises:
            BuildFailed: the engine refuses it.
            BuildCancelled: ``token`` was cancelled.
        """

    def builders(self) -> Iterator[BuilderKind]:
        """Yield the kinds of builder that are available, the best first."""

    def platform(self) -> str:
        """Return the platform of the images, such as ``linux/amd64``."""

    def build(
        self, kind: BuilderKind, request: BuildRequest, context: IO[bytes], token: CancellationToken
    ) -> Iterator[str]:
        """Build and tag a context, an open tar file with a ``Dockerfile``; yield the lines of the log.

        When ``token`` is cancelled, the build is aborted and fails with any of the errors.

        Raises:
            BuildFailed: a step failed.
        """

    def used(self) -> frozenset[str]:
        """Return the ids of the images of all containers, running or not."""

    def remove(self, reference: str) -> None:
        """Remove a tag or an image; no error if it does not exist or is in use."""
