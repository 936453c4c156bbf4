"""The content of images, as frozen values.

An image is built in two steps.  The *environment* holds the base and the locked packages; it takes minutes
and rarely changes.  The *job* image adds the code of ``jobs``; it takes a second and changes often.  Both are
stages of one Dockerfile, so the whole image can also be built without the runner.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from images.settings import Accelerator, BuilderKind

Kind: TypeAlias = Literal["environment", "job", "packages", "system", "dockerfile"]

_FROM: Final = re.compile(r"^FROM\s", re.MULTILINE | re.IGNORECASE)
_ARG: Final = re.compile(r"^ARG\s.*$", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a build context."""

    path: str  # in the context, with slashes
    source: Path | bytes  # bytes for everything in the digest, so that what is hashed is what is sent
    executable: bool = False


@dataclass(frozen=True, slots=True)
class Base:
    """A base image, with the properties that decide which wheels fit."""

    id: str
    tag: str  # derived from the id: builders cannot build FROM an id, and other tags can move
    python: str  # "3.11"
    machine: str  # "x86_64"
    glibc: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that determines the content of an image; ``images.digest`` computes its digest."""

    kind: Kind
    accelerator: Accelerator
    below: str  # environment: the base image's id; job: the environment's digest
    dockerfile: str
    arguments: tuple[tuple[str, str], ...]
    platform: str
    builder: BuilderKind
    entries: tuple[Entry, ...]


def last_stage(dockerfile: str) -> str:
    """Return the last stage of a Dockerfile as a Dockerfile, with the global arguments.

    Raises:
        ValueError: the text has no FROM line.
    """
    stages = [match.start() for match in _FROM.finditer(dockerfile)]
    if not stages:
        raise ValueError("Dockerfile: no FROM line; write one")
    arguments = _ARG.findall(dockerfile[: stages[0]])
    return "\n".join([*arguments, dockerfile[stages[-1] :]])


def without_last_stage(dockerfile: str) -> str:
    """Return a Dockerfile without its last stage, which the environment does not depend on."""
    stages = [match.start() for match in _FROM.finditer(dockerfile)]
    return dockerfile[: stages[-1]]
