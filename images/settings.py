"""What an operator may say about images.

A plain frozen value: whoever reads the operator's file makes one.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias

Accelerator: TypeAlias = Literal["cpu", "cuda", "rocm"]
BuilderKind: TypeAlias = Literal["buildx", "engine", "classic"]

ACCELERATORS: Final[tuple[Accelerator, ...]] = ("cpu", "cuda", "rocm")
LOCAL_BASE: Final = "runner-base:bookworm"
"""Where ``runner images bootstrap`` puts its result, and the first place to look."""

PULLED_BASE: Final = "python:3.11-slim-bookworm"
"""The same suite and Python as the bootstrap makes, so that both give the same environment."""


def default_cache_dir() -> Path:
    """Return the directory for wheels and locks: a cache, which may be deleted at any time."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "runner"


def default_dockerfiles() -> Path:
    """Return where the three Dockerfiles are: beside this file when installed, else the checkout's root."""
    installed = Path(__file__).with_name("dockerfiles")
    return installed if installed.is_dir() else Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class ImageSettings:
    """How images are made on this machine."""

    cache_dir: Path = field(default_factory=default_cache_dir)
    """Wheels, base facts and locks between builds."""
    base: str | None = None
    """A base image that must be used; ``None``: the local one, else a pull, else a bootstrap."""
    pull: str | None = PULLED_BASE
    """What to pull when no base is there; ``None``: never ask a registry."""
    builder: Literal["auto"] | BuilderKind = "auto"
    """``auto`` takes the first that works: the plugin, the engine's own BuildKit, the classic builder."""
    ca_file: Path | None = None
    """Certificates to trust besides the system's, for downloads; never copied into an image."""
    pip_options: tuple[str, ...] = ()
    """Appended to ``pip download``, after the host's own pip settings."""
    dockerfiles: Path = field(default_factory=default_dockerfiles)
    """The directory that holds ``Dockerfile.cpu``, ``Dockerfile.cuda`` and ``Dockerfile.rocm``."""
    engine_url: str | None = None
    """The engine's address; ``None``: ``DOCKER_HOST``, else the default socket."""
