"""The images made here: which there are, and which can go."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from images.digest import LABEL
from images.locks import if_free
from images.ports import Engine, Image


@dataclass(frozen=True, slots=True)
class Row:
    """One image, for a list."""

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


def listed(engine: Engine) -> tuple[Row, ...]:
    """Return the images made here, newest first."""
    return tuple(sorted(map(_row, engine.images(LABEL)), key=lambda row: row.created, reverse=True))


def prune(engine: Engine, cache_dir: Path) -> tuple[Row, ...]:
    """Remove the images that no new job gets and no container uses; return them.

    A job that was prepared with one of them and has no container yet is prepared again.
    """
    return tuple(row for row in _unneeded(engine) if _removed(engine, cache_dir, row))


def _unneeded(engine: Engine) -> Iterator[Row]:
    rows, used = listed(engine), engine.used()
    kept = {row.below for row in rows if row.current}
    for row in rows:
        if not row.current and row.id not in used and kept.isdisjoint(row.tags):
            yield row


def _removed(engine: Engine, cache_dir: Path, row: Row) -> bool:
    with if_free(cache_dir, row.digest) as free:  # else a build has just made it, or builds on it
        if free:
            for reference in row.tags or (row.id,):
                engine.remove(reference)
        return free and engine.image(row.id) is None


def _row(image: Image) -> Row:
    said = image.labels
    return Row(
        id=image.id,
        kind=said.get("runner.kind", "-"),
        accelerator=said.get("runner.accelerator", "-"),
        digest=said[LABEL],
        created=said.get("runner.created", "-").replace("+00:00", "Z"),  # as all other times are written
        size_bytes=image.size_bytes,
        tags=image.tags,
        below=said.get("runner.below", "-"),
    )
