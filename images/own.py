"""Images that users build from a Dockerfile in their code.

The context is the code as it was submitted, and nothing else of the host.  The Dockerfile is read first
(``images.dockerfile``), and the builder gets what was understood, not the user's text.  The id of the
image depends on the context, the image below and the user, so the same code is built once.
"""

import hashlib
import io
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Final, Literal

from images.addressed import AddressedImage
from images.cancellation import CancellationToken, deadline
from images.digest import digest_of
from images.dockerfile import BASE, MAX_BYTES, Reading, read_dockerfile
from images.errors import BuildCancelled, BuildFailed, EngineUnavailable
from images.log import BuildLog
from images.packages.values import Limits
from images.ports import BuildRequest, Engine
from images.settings import Accelerator, BuilderKind

SCHEMA: Final = 2
"""Increment it when the same context gives a different image."""

MOST_SAID_BYTES: Final = 64 * 1024**2
"""Most output of the commands of a build: all of it is kept in the log.  BuildKit keeps less of it itself."""

MOST_TOLD: Final = 10
"""Mistakes of a Dockerfile that was changed after its check."""

CANONICAL: Final = ".runner.Dockerfile"
"""The name of the Dockerfile that is built, beside the files of the user."""


@dataclass(frozen=True, slots=True)
class DockerfileRules:
    """Rules of the operator for Dockerfiles of users."""

    offered: Collection[str] | None = None
    """Images that a Dockerfile may begin with besides ``${BASE}``, also as patterns; None: any."""
    network: bool = False
    cache: bool = True
    """True if the steps of earlier builds are used again, also of other users."""
    builder: Literal["auto"] | BuilderKind = "auto"


@dataclass(frozen=True, slots=True)
class DockerfileImages:
    """Finds and builds the images of Dockerfiles."""

    cache_dir: Path
    engine: Callable[[], Engine]
    rules: DockerfileRules
    limits: Limits

    def ensure(  # noqa: PLR0913, PLR0917  (one value per part of the image)
        self, context: IO[bytes], path: str, below: str, accelerator: Accelerator, uid: int, log: BuildLog
    ) -> str:
        """Return the id of the image of a Dockerfile; ``context`` is a tar, ``path`` the Dockerfile in it.

        Raises:
            BuildFailed: a step fails or takes too long, or the Dockerfile says what it may not.
            HostFault: a registry does not answer now, or a disk is full.
            EngineUnavailable: the engine does not answer.
            BuildCancelled: the token of the log was cancelled.
        """
        with tempfile.TemporaryFile(dir=self.cache_dir) as own:  # nobody changes it behind the check
            shutil.copyfileobj(context, own)
            image = AddressedImage("dockerfile", accelerator, self._address(own, path, below, uid))

            def build() -> None:
                labels = image.labels(below) | {"runner.owner": str(uid)}
                self._build(own, path, self._request(image.tag, below, labels), log)

            return image.ensure(self.engine(), self.cache_dir, log, build)

    def _request(self, name: str, below: str, labels: Mapping[str, str]) -> BuildRequest:
        return BuildRequest(
            name,
            {BASE: tag_of(self.engine(), below)},
            labels,
            dockerfile=CANONICAL,
            network=self.rules.network,
            cache=self.rules.cache,
            memory_bytes=self.limits.memory_bytes,
        )

    def _address(self, context: IO[bytes], path: str, below: str, uid: int) -> str:
        context.seek(0)
        digest = hashlib.file_digest(context, "sha256").hexdigest()  # type: ignore[arg-type]
        return digest_of(
            {
                "schema": SCHEMA,
                "context": digest,
                "path": path,
                "below": below,
                "uid": uid,
                "network": self.rules.network,
            }
        )

    def _build(self, context: IO[bytes], path: str, request: BuildRequest, log: BuildLog) -> None:
        reading = self._write_canonical(context, path)
        for each in reading.warnings:
            log.line(f"{path}:{each.line}: {each.text}: {each.fact}")
        engine = self.engine()
        for image, line in reading.images.items():  # a builder would pull it without the login
            if engine.image(image) is None:
                _pull(engine, image, f"{path}:{line}", log)
        kind = next(engine.builders()) if self.rules.builder == "auto" else self.rules.builder
        log.line(f"dockerfile: building {path} with {kind}")
        context.seek(0)
        with _limited(log, self.limits.seconds) as token:
            left = MOST_SAID_BYTES
            for said in engine.build(kind, request, context, token):
                left -= len(said) + 1
                if left < 0:
                    token.cancel()
                    fact = f"its commands print more than {MOST_SAID_BYTES // 1024**2} MiB and were ended"
                    raise BuildFailed(f"dockerfile: {fact}; let them write to /dev/null")
                log.line(said)

    def _write_canonical(self, context: IO[bytes], path: str) -> Reading:
        """Add the Dockerfile to its context as it was understood; return that.

        Raises:
            BuildFailed: it is not there, or says what it may not.
        """
        context.seek(0)
        with tarfile.open(fileobj=context) as tar:
            reading = read_dockerfile(_read(tar, path), self.rules.offered)
        if reading.mistakes:
            told = reading.mistakes[:MOST_TOLD]  # all were told when it was submitted
            facts = (f"{path}:{each.line}: {each.text}: {each.fact}" for each in told)
            raise BuildFailed("\n".join(facts))
        context.seek(0)
        with tarfile.open(fileobj=context, mode="a", format=tarfile.GNU_FORMAT) as tar:
            body = reading.text.encode()
            member = tarfile.TarInfo(CANONICAL)
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
        return reading


def _pull(engine: Engine, image: str, where: str, log: BuildLog) -> None:
    """Pull an image that a Dockerfile begins with, after a look whether the registry knows it."""
    try:
        engine.look_up(image)
        log.line(f"pull {image}")
        engine.pull(image, log.line, log.token)
    except BuildFailed as error:
        raise type(error)(f"{where}: {error}") from error


def _read(tar: tarfile.TarFile, path: str) -> str:
    try:
        file = tar.extractfile(path)
        body = b"" if file is None else file.read(MAX_BYTES + 1)
        text = body.decode()
    except (KeyError, RecursionError) as error:  # not there; a link to itself
        raise BuildFailed(f"{path}: is not in the code of the job; does .gitignore leave it out?") from error
    except UnicodeDecodeError as error:
        raise BuildFailed(f"{path}: is not UTF-8 text") from error
    if len(body) > MAX_BYTES:
        raise BuildFailed(f"{path}: is larger than {MAX_BYTES // 1024} KiB")
    return text


@contextmanager
def _limited(log: BuildLog, seconds: float) -> Iterator[CancellationToken]:
    """Yield a token that is cancelled with that of the log, or after a time.

    Raises:
        BuildFailed: the time is over.
    """
    token = CancellationToken()
    with deadline(seconds, partial(token.cancel, "it takes too long")) as late:
        try:
            with log.token.on_cancel(token.cancel):
                yield token
        except (BuildFailed, BuildCancelled, EngineUnavailable) as error:
            log.token.check()
            if late.is_set():
                raise BuildFailed(f"dockerfile: took longer than {seconds:g} s and was ended") from error
            raise


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
