"""The digest of a recipe, and the tags that are derived from it.

Two recipes have different digests if they differ in anything that can change the image; times, owners and the
order of directories are left out.  The lock file is included and the wheels are not: a machine without a
network finds its images without downloading the wheels again.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Final

from images.recipe import Entry, Kind, Recipe
from images.settings import Accelerator

SCHEMA: Final = 1
"""Increment it when the same recipe gives a different image, as after a change of ``docker_engine``."""

LABEL: Final = "runner.digest"
"""The label with the whole digest, which every image has; its tag has the first 16 digits."""

VERSION_LABELS: Final = ("runner.cuda", "runner.rocm")
"""Labels with the versions that launches compare with the driver; an empty one says nothing."""


def digest(recipe: Recipe) -> str:
    """Return the sha256 of a recipe, in hex."""
    return digest_of(
        {
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
    )


def digest_of(content: Mapping[str, object]) -> str:
    """Return the sha256 of JSON, in hex."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _entry(entry: Entry) -> tuple[str, bool, str]:
    body = entry.source if isinstance(entry.source, bytes) else entry.source.read_bytes()
    return entry.path, entry.executable, hashlib.sha256(body).hexdigest()


def repository(kind: Kind, accelerator: Accelerator) -> str:
    """Return the repository of the tags of a kind of image."""
    return f"runner-{accelerator}" if kind == "job" else f"runner-{accelerator}-{kind}"


def tag(kind: Kind, accelerator: Accelerator, address: str) -> str:
    """Return the tag for a digest."""
    return f"{repository(kind, accelerator)}:h-{address[:16]}"
