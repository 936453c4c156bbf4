"""Images, unpacked on the shared file system: nodes read them without a container engine.

An image is unpacked once, by the daemon, from the engine of its own machine.  Nodes show it read-only.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from images.file_lock import locked
from runner.adapters.docker.export import export_image
from runner.adapters.slurm.oci import MOUNT_POINTS
from runner.core.ports.executor import LaunchRefused

SCHEMA: Final = 3
"""Increment it when an image is unpacked to something else: what is there is then left."""


@dataclass(frozen=True, slots=True)
class UnpackedImage:
    """An image as nodes read it."""

    rootfs: Path
    environment: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UnpackedImages:
    """The unpacked images of one daemon."""

    directory: Path
    engine: str | None = None

    def find(self, image: str) -> UnpackedImage:
        """Return an image, which is unpacked now if it is not there yet.

        Raises:
            ImageGone: the engine does not have it.
            LaunchRefused: it has a link or a file where something is mounted.
            Unavailable: the engine does not answer, or the disk is full.
        """
        place = self.directory / f"{image.removeprefix('sha256:')[:16]}-{SCHEMA}"
        if not (place / "environment.json").exists():
            with locked(self.directory, "unpack", lambda: None):  # of several launches, one unpacks
                if not (place / "environment.json").exists():
                    self._unpack(image, place)
        variables = json.loads((place / "environment.json").read_text())
        return UnpackedImage(place / "rootfs", tuple(variables))

    def _unpack(self, image: str, place: Path) -> None:
        part = place.with_name(f".{place.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        (part / "rootfs").mkdir(parents=True)
        variables = export_image(self.engine, image, part / "rootfs")
        for name in MOUNT_POINTS:
            _make_mount_point(part / "rootfs", name)
        (part / "environment.json").write_text(json.dumps(variables))
        part.chmod(0o755)
        part.replace(place)


def _make_mount_point(rootfs: Path, name: str) -> None:
    """Make a directory of an unpacked image; a link of the image could lead out of it."""
    place = rootfs
    for part in name.split("/"):
        place /= part
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            fact = f"/{place.relative_to(rootfs)} is a link or a file, where a directory must be"
            raise LaunchRefused(f"the image cannot be used on nodes: {fact}")
        place.mkdir(mode=0o755, exist_ok=True)
