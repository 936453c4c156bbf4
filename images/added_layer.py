"""Images of one layer on an image that the engine holds, made by a build.

A build is what all engines and image stores have in common.  An archive of ``docker save`` that names the
layers below without holding them is accepted by Docker's graph drivers alone: the containerd store, which a
fresh Docker 29 has, and Podman refuse it.

The classic builder is the default.  It takes as long as BuildKit for adding an archive, works on every store,
and leaves no copy of the archive in a build cache.
"""

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tarfile import BLOCKSIZE, GNU_FORMAT, TarInfo
from typing import IO, Final, Literal, Protocol

from images.errors import BuildFailed
from images.log import BuildLog
from images.ports import BuildRequest, Engine
from images.settings import BuilderKind

_LAYER: Final = "layer.tar"
_BASE: Final = "BASE"
PART_BYTES: Final = 512 * 1024
"""The size in which the content of a layer is read and written."""


class Layer(Protocol):
    """A tar whose size is known before it is read."""

    @property
    def size(self) -> int: ...

    def parts(self) -> Iterator[bytes]:
        """Yield the content.

        Raises:
            BuildFailed: it has changed since.
        """


@dataclass(frozen=True, slots=True)
class LayerFile:
    """A layer that is a file already."""

    file: IO[bytes]
    size: int

    def parts(self) -> Iterator[bytes]:
        """Yield the content."""
        while part := self.file.read(PART_BYTES):
            yield part


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
class LayerBuilder:
    """Makes images by adding layers."""

    engine: Engine
    scratch: Path
    """A directory for the context, which is as large as the layer."""
    kind: Literal["auto"] | BuilderKind = "auto"

    def build(self, addition: Addition, layer: Layer, log: BuildLog, told: str) -> None:
        """Make and tag an image; the lines about its progress begin with ``told``.

        Raises:
            BuildFailed: the engine refuses it, or the layer has changed while it was read.
            EngineUnavailable: the engine does not answer.
            BuildCancelled: the token of the log was cancelled.
        """
        found = self.engine.inspect(addition.below)
        text = _dockerfile(addition, str(found["Config"].get("User") or "0:0"))
        request = BuildRequest(addition.tag, {_BASE: tag_of(self.engine, addition.below)}, {})
        kind: BuilderKind = "classic" if self.kind == "auto" else self.kind
        with tempfile.TemporaryFile(dir=self.scratch) as context:
            for part in log.counted(_context(text, layer), layer.size, told):
                log.token.check()
                context.write(part)
            context.seek(0)
            log.lines(self.engine.build(kind, request, context, log.token))


def tag_of(engine: Engine, image: str) -> str:
    """Return a tag of an image, which is made if there is none: builders cannot build from an id.

    Raises:
        BuildFailed: the engine has no such image.
    """
    found = engine.image(image)
    if found is None:
        raise BuildFailed(f"image {image}: is not in the engine")
    if found.tags:
        return min(found.tags, key=lambda each: (":h-" not in each, each))  # those of digests do not move
    made = f"runner-base:id-{found.id.removeprefix('sha256:')[:16]}"
    engine.tag(image, made)
    return made


def _dockerfile(addition: Addition, user: str) -> str:
    lines = [f"ARG {_BASE}", f"FROM ${{{_BASE}}}"]
    if addition.removed:
        lines += ["USER 0:0", f"RUN {json.dumps(['rm', '-rf', '--', *addition.removed])}", f"USER {user}"]
    for instruction, values in (("LABEL", addition.labels), ("ENV", addition.environment)):
        if values:  # in one line: the classic builder makes an image of each
            lines.append(" ".join((instruction, *(f"{name}={_quoted(values[name])}" for name in values))))
    lines.append(f"ADD {_LAYER} /")
    return "".join(f"{line}\n" for line in lines)


def _quoted(value: str) -> str:
    """Return a value as a word of a Dockerfile, with nothing in it that is replaced."""
    return '"' + re.sub(r'([\\"$])', r"\\\1", value) + '"'


def _context(dockerfile: str, layer: Layer) -> Iterator[bytes]:
    body = dockerfile.encode()
    yield _header("Dockerfile", len(body)) + body + _padding(len(body))
    yield _header(_LAYER, layer.size)
    yield from layer.parts()
    yield _padding(layer.size) + bytes(2 * BLOCKSIZE)


def _header(name: str, size: int) -> bytes:
    """Return a header in the GNU format: builders take the extended one of Python for a Dockerfile."""
    member = TarInfo(name)
    member.size = size
    return member.tobuf(GNU_FORMAT)


def _padding(size: int) -> bytes:
    return bytes(-size % BLOCKSIZE)
