"""Remembers which images this state directory has built or uses: only those may be removed.

A label does not tell: an image that an operator builds ``FROM`` one of ours inherits its labels.
"""

from pathlib import Path
from typing import Final

FOLDER: Final = "made"


def record(cache_dir: Path, image: str) -> bool:
    """Record that an image is used, by its id; return whether the record is new.

    Raises:
        OSError: the file system refuses it.
    """
    path = _path(cache_dir, image)
    if path.exists():
        path.touch()  # which is when it was last used
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return True


def last_used_s(cache_dir: Path, image: str) -> float:
    """Return the last use of an image, as a Unix time; 0 if it has no record."""
    try:
        return _path(cache_dir, image).stat().st_mtime
    except FileNotFoundError:
        return 0.0


def forget(cache_dir: Path, image: str) -> None:
    """Remove the record of an image that does not exist any more."""
    _path(cache_dir, image).unlink(missing_ok=True)


def recorded(cache_dir: Path) -> frozenset[str]:
    """Return the ids of the recorded images."""
    try:
        names = [path.name for path in (cache_dir / FOLDER).iterdir()]
    except FileNotFoundError:
        return frozenset()
    return frozenset(name.replace("-", ":", 1) for name in names)


def _path(cache_dir: Path, image: str) -> Path:
    return cache_dir / FOLDER / image.replace(":", "-", 1)
