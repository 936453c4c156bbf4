"""The lock files of the images: which there are, for what, and where their torch comes from.

``cpu.txt``, ``cuda.txt`` and ``rocm.txt`` are shipped.  A site may have further ones for another CUDA or
ROCm, such as ``cuda-12.6.txt``; ``images.make_lock`` makes them.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from images.errors import BuildFailed
from images.settings import ACCELERATORS, Accelerator, ImageSettings

SHIPPED: Final = Path(__file__).parent / "locks"

PYTORCH_INDEX: Final = "https://download.pytorch.org/whl"
"""PyTorch's own indexes, one for each build of torch: ``cpu``, ``cu126``, ``rocm7.2``."""

NAME: Final = re.compile(rf"({'|'.join(ACCELERATORS)})(-\d+\.\d+)?")
"""The name of a lock: an accelerator, and for a further lock the version of CUDA or ROCm."""

_RUNTIME: Final = re.compile(r"^nvidia-cuda-runtime(?:-cu\d+)?==(\d+)\.(\d+)", re.MULTILINE)
_TORCH: Final = re.compile(r"^torch==[^\s,;+]+\+([a-z]+[\d.]*)", re.MULTILINE)
_ROCM: Final = re.compile(r"rocm(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class LockFile:
    """One lock: its name, without the suffix, and its text."""

    name: str
    text: bytes

    @property
    def accelerator(self) -> str:
        """Return the accelerator that the lock is for."""
        return self.name.partition("-")[0]

    @property
    def build(self) -> str | None:
        """Return the build of torch by its local version, such as cu126; None if the lock names none."""
        found = _TORCH.search(self.text.decode())
        return found[1] if found else None

    @property
    def version(self) -> tuple[int, int] | None:
        """Return the version of CUDA or ROCm that the lock installs; None for CPUs, or if it is not known."""
        found = _RUNTIME.search(self.text.decode()) or _ROCM.fullmatch(self.build or "")
        return (int(found[1]), int(found[2])) if found else None


def available(accelerator: Accelerator, settings: ImageSettings) -> tuple[LockFile, ...]:
    """Return the locks for an accelerator, the newest version first; one of the site hides a shipped one."""
    found = {lock.name: lock for place in (SHIPPED, settings.lock_dir) for lock in _in(place, accelerator)}
    return tuple(sorted(found.values(), key=lambda lock: (lock.version or (0, 0), lock.name), reverse=True))


def named(accelerator: Accelerator, settings: ImageSettings) -> LockFile | None:
    """Return the lock that the settings name for an accelerator, None if they name none.

    Raises:
        BuildFailed: there is no such lock.
    """
    name = settings.locks.get(accelerator)
    if name is None:
        return None
    for lock in available(accelerator, settings):
        if lock.name == name:
            return lock
    place = settings.lock_dir or SHIPPED
    raise BuildFailed(f"lock {name}: {place}/{name}.txt does not exist; runner images lock {name} makes it")


def index_of(lock: LockFile, settings: ImageSettings) -> str | None:
    """Return the index from which the torch of a lock comes, besides those of pip's own settings.

    The settings name it by lock or by accelerator.  Else it is PyTorch's own for a torch with a local
    version, which no other index has, and none for a torch without.
    """
    for name in (lock.name, lock.accelerator):
        if name in settings.indexes:
            return settings.indexes[name]
    return f"{PYTORCH_INDEX}/{lock.build}" if lock.build else None


def _in(directory: Path | None, accelerator: Accelerator) -> Iterator[LockFile]:
    if directory is None or not directory.is_dir():
        return
    for path in sorted(directory.glob(f"{accelerator}*.txt")):
        if NAME.fullmatch(path.stem):
            yield LockFile(path.stem, path.read_bytes())
