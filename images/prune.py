"""Lists the images of the runner, and removes those that are not needed any more.

Ours are the images that ``images.records`` names.  An image of somebody else may have our labels, because
it was built ``FROM`` one of ours, and one of ours may have a tag of somebody else.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, get_args

from images.digest import LABEL, repository
from images.file_lock import try_locked
from images.ports import Engine, Image
from images.recipe import Kind
from images.records import forget, last_used_s, recorded
from images.settings import ACCELERATORS

OF_JOBS: Final = frozenset({"packages", "system", "dockerfile"})
"""The kinds of images that are made for jobs, and that the operator limits."""


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
    used_s: float = 0.0  # when a job was prepared with it last, as a Unix time
    owner: str = "-"  # the uid of the one user who may have it; "-": everybody

    @property
    def current(self) -> bool:
        """Return True if new jobs get this image."""
        return any(tag.endswith(":current") and _is_our_tag(tag) for tag in self.tags)


def list_images(engine: Engine, cache_dir: Path) -> tuple[ImageRow, ...]:
    """Return the images of the runner, the newest first."""
    ours = recorded(cache_dir)
    rows = [_row(image, cache_dir) for image in engine.images(LABEL) if image.id in ours]
    return tuple(sorted(rows, key=lambda row: row.created, reverse=True))


def find_unused(engine: Engine, cache_dir: Path, allowed: Collection[str] = ()) -> tuple[ImageRow, ...]:
    """Return the images that no new job gets, no container uses, and nobody else has named.

    ``allowed`` are the references by which the operator lets jobs use images.
    """
    return tuple(_unused(engine, cache_dir, allowed))


def prune(engine: Engine, cache_dir: Path, allowed: Collection[str] = ()) -> tuple[ImageRow, ...]:
    """Remove the images that ``find_unused`` returns, and return them.

    A job that was prepared with one of them and has no container yet is prepared again.
    """
    return tuple(row for row in find_unused(engine, cache_dir, allowed) if _remove(engine, cache_dir, row))


def evict(engine: Engine, cache_dir: Path, keep_bytes: int, needed: Collection[str]) -> tuple[ImageRow, ...]:
    """Remove images that were made for jobs, the least recently used first, until the others fit.

    Images of containers stay, and ``needed``: those of jobs that wait.  The size of an image is that of its
    own layer.
    """
    rows = list_images(engine, cache_dir)
    sizes = {row.id: row.size_bytes for row in rows}
    packages = sorted((row for row in rows if row.kind in OF_JOBS), key=lambda row: row.used_s)
    own = {row.id: max(row.size_bytes - sizes.get(row.below, 0), 0) for row in packages}
    over, kept, removed = sum(own.values()) - keep_bytes, engine.used() | set(needed), []
    for row in packages:
        if over <= 0:
            break
        if row.id not in kept and all(map(_is_our_tag, row.tags)) and _remove(engine, cache_dir, row):
            over -= own[row.id]
            removed.append(row)
    return tuple(removed)


def _unused(engine: Engine, cache_dir: Path, allowed: Collection[str]) -> Iterator[ImageRow]:
    rows, used = list_images(engine, cache_dir), engine.used()
    named = {image.id for image in map(engine.image, allowed) if image is not None}
    kept = {row.below for row in rows if row.current}
    for row in rows:
        wanted = row.current or row.id in used | named or not kept.isdisjoint(row.tags)
        if not wanted and all(map(_is_our_tag, row.tags)):
            yield row


def _remove(engine: Engine, cache_dir: Path, row: ImageRow) -> bool:
    with try_locked(cache_dir, row.digest) as free:  # a lock that is held means that a build uses the image
        if free:
            for reference in row.tags or (row.id,):
                engine.remove(reference)
        gone = free and engine.image(row.id) is None
        if gone:
            forget(cache_dir, row.id)
        return gone


def _is_our_tag(tag: str) -> bool:
    """Return True if the runner gives such a tag; an operator's tag keeps an image."""
    name, _, version = tag.rpartition(":")
    ours = {repository(kind, accelerator) for kind in get_args(Kind) for accelerator in ACCELERATORS}
    return name in ours and (version == "current" or version.startswith("h-"))


def _row(image: Image, cache_dir: Path) -> ImageRow:
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
        used_s=last_used_s(cache_dir, image.id),
        owner=labels.get("runner.owner", "-"),
    )
