"""The settings of image builds, as a frozen value.

Reading a settings file is left to the caller.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias

Accelerator: TypeAlias = Literal["cpu", "cuda", "rocm"]
BuilderKind: TypeAlias = Literal["buildx", "engine", "classic"]
PullPolicy: TypeAlias = Literal["missing", "always", "never"]

ACCELERATORS: Final[tuple[Accelerator, ...]] = ("cpu", "cuda", "rocm")
LOCAL_BASE: Final = "runner-base:bookworm"
"""The tag that ``runner images bootstrap`` gives to its result; a base is looked up here first."""

PULLED_BASE: Final = "python:3.11-slim-bookworm"
"""Has the same Debian release and Python as a bootstrapped base, so both lead to the same environment."""


def default_cache_dir() -> Path:
    """Return the directory for wheels and locks, which may be deleted at any time."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "runner"


def default_dockerfiles() -> Path:
    """Return the directory of the Dockerfiles: beside this file if installed, else the checkout's root."""
    installed = Path(__file__).with_name("dockerfiles")
    return installed if installed.is_dir() else Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class PluginCode:
    """Code that is copied into images beside that of ``jobs``, so that the trainer finds a workload in it."""

    package: Path  # a directory, or the file of a single module
    metadata: Mapping[str, str]  # texts by path, from which importlib.metadata knows its entry points


@dataclass(frozen=True, slots=True)
class ImageSettings:
    """Settings of image builds on this machine."""

    cache_dir: Path = field(default_factory=default_cache_dir)
    """Wheels, base facts and locks between builds."""
    base: str | None = None
    """The base image to use.  ``None``: the local one, else a pulled one, else a bootstrapped one."""
    pull: str | None = PULLED_BASE
    """The reference to pull if there is no local base.  ``None``: never use a registry."""
    builder: Literal["auto"] | BuilderKind = "auto"
    """``auto``: the first that works of the plugin, the engine's own BuildKit and the classic builder."""
    ca_file: Path | None = None
    """Additional certificates to trust for downloads; never copied into an image."""
    pip_options: tuple[str, ...] = ()
    """Options of ``pip download``, in addition to the host's own pip settings."""
    indexes: Mapping[str, str | None] = field(default_factory=dict)
    """The index of torch by lock or accelerator, besides those of pip.  Without an entry: PyTorch's own for a
    torch with a local version; ``None``: none."""
    locks: Mapping[Accelerator, str] = field(default_factory=dict)
    """The lock of an accelerator's image, by name.  Without an entry: whoever makes the store chooses."""
    lock_dir: Path | None = None
    """Further locks, and those that replace shipped ones.  ``None``: only the shipped ones."""
    plugins: tuple[PluginCode, ...] = ()
    """The workloads of plug-ins."""
    dockerfiles: Path = field(default_factory=default_dockerfiles)
    """The directory that holds ``Dockerfile.cpu``, ``Dockerfile.cuda`` and ``Dockerfile.rocm``."""
    engine_url: str | None = None
    """The address of the engine.  ``None``: ``DOCKER_HOST``, else the default socket."""
    registry_login: Path | None = None
    """File that ``docker login`` has left for pulls.  ``None``: in the home of the user of this process."""
