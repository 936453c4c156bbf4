"""What goes into an image, as frozen values.

Two recipes make one image: the *environment* (base and locked packages; minutes, rarely
changes) and the *job* image on top of it (the jobs code; a second, changes often).  Both
are stages of one Dockerfile, so that the whole can also be built by hand.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from images.settings import Accelerator, BuilderKind

Kind: TypeAlias = Literal["environment", "job"]

_FROM: Final = re.compile(r"^FROM\s", re.MULTILINE | re.IGNORECASE)
_ARG: Final = re.compile(r"^ARG\s.*$", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a build context."""

    path: str  # in the context, with slashes
    source: Path | bytes  # bytes for what is addressed: what was hashed is what is sent
    executable: bool = False


@dataclass(frozen=True, slots=True)
class Base:
    """An image to build on, with the facts about it that decide which wheels fit."""

    id: str
    tag: str  # made from the id: builders cannot build FROM an id, and other tags move
    python: str  # "3.11"
    machine: str  # "x86_64"
    glibc: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides what an image holds; ``images.digest`` is its address."""

    kind: Kind
    accelerator: Accelerator
    below: str  # environment: the base image's id; job: the environment's digest
    dockerfile: str
    arguments: tuple[tuple[str, str], ...]
    platform: str
    builder: BuilderKind
    entries: tuple[Entry, ...]


def last_stage(dockerfile: str) -> str:
    """Return a Dockerfile's last stage as a Dockerfile of its own, with the global arguments it may use.

    Raises:
        ValueError: the text has no FROM line.
    """
    stages = [match.start() for match in _FROM.finditer(dockerfile)]
    if not stages:
        raise ValueError("Dockerfile: no FROM line; write one")
    arguments = _ARG.findall(dockerfile[: stages[0]])
    return "\n".join([*arguments, dockerfile[stages[-1] :]])


def without_last_stage(dockerfile: str) -> str:
    """Return a Dockerfile without its last stage: all that the environment depends on."""
    stages = [match.start() for match in _FROM.finditer(dockerfile)]
    return dockerfile[: stages[-1]]
