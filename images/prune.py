"""Lists the images of the runner, and removes those that are not needed any more."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from images.digest import LABEL
from images.file_lock import try_locked
from images.ports import Engine, Image


@dataclass(frozen=True, slots=True)
class ImageRow:
    """One image of the list."""

    id: str
    kind: str
    accelerator: str
    digest: str
    created: str
    size_bytes: int
    tags: tuple[str, ...]
    below: str

    @property
    def current(self) -> bool:
        """Return whether new jobs get this image."""
        return any(tag.endswith(":current") for tag in self.tags)


def list_images(engine: Engine) -> tuple[ImageRow, ...]:
    """Return the images of the runner, the newest first."""
    return tuple(sorted(map(_row, engine.images(LABEL)), key=lambda row: row.created, reverse=True))


def prune(engine: Engine, cache_dir: Path) -> tuple[ImageRow, ...]:
    """Remove the images that no new job gets and no container uses, and return them.

    A job that was prepared with one of them and has no container yet is prepared again.
    """
    return tuple(row for row in _unused(engine) if _remove(engine, cache_dir, row))


def _unused(engine: Engine) -> Iterator[ImageRow]:
    rows, used = list_images(engine), engine.used()
    kept = {row.below for row in rows if row.current}
    for row in rows:
        if not row.current and row.id not in used and kept.isdisjoint(row.tags):
            yield row


def _remove(engine: Engine, cache_dir: Path, row: ImageRow) -> bool:
    with try_locked(cache_dir, row.digest) as free:  # a lock that is held means that a build uses the image
        if free:
            for reference in row.tags or (row.id,):
                engine.remove(reference)
        return free and engine.image(row.id) is None


def _row(image: Image) -> ImageRow:
    labels = image.labels
    return ImageRow(
        id=image.id,
        kind=labels.get("runner.kind", "-"),
        accelerator=labels.get("runner.accelerator", "-"),
        digest=labels[LABEL],
        created=labels.get("runner.created", "-").replace("+00:00", "Z"),  # the format of all other times
        size_bytes=image.size_bytes,
        tags=image.tags,
        below=labels.get("runner.below", "-"),
    )
