"""Recipe to content address, and the tags made from it.

Two recipes that differ in anything that could change the image have different digests;
what cannot (times, owners, the order of a directory listing) is not in them.
The wheels themselves are not counted, only the lock that names them: a machine without a
network must find its images without downloading again.
"""

import hashlib
import json
from typing import Final

from images.recipe import Entry, Kind, Recipe
from images.settings import Accelerator

SCHEMA: Final = 1
"""Raise it when the same recipe would give another image, say after a change of ``docker_engine``."""

LABEL: Final = "runner.digest"
"""Every image made here carries it, with the whole digest; its tag has the first 16 digits."""


def digest(recipe: Recipe) -> str:
    """Return the sha256 over everything in the recipe that matters, in hex."""
    said = {
        "schema": SCHEMA,
        "kind": recipe.kind,
        "accelerator": recipe.accelerator,
        "below": recipe.below,
        "dockerfile": recipe.dockerfile,
        "arguments": sorted(recipe.arguments),
        "platform": recipe.platform,
        "builder": recipe.builder,
        "entries": sorted(_entry(entry) for entry in recipe.entries),
    }
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _entry(entry: Entry) -> tuple[str, bool, str]:
    body = entry.source if isinstance(entry.source, bytes) else entry.source.read_bytes()
    return entry.path, entry.executable, hashlib.sha256(body).hexdigest()


def repository(kind: Kind, accelerator: Accelerator) -> str:
    """Return the repository that images of this kind are tagged in."""
    return f"runner-{accelerator}" if kind == "job" else f"runner-{accelerator}-environment"


def tag(kind: Kind, accelerator: Accelerator, address: str) -> str:
    """Return the tag for a digest."""
    return f"{repository(kind, accelerator)}:h-{address[:16]}"
