"""Reads names and versions from a lock of packages (PEP 751), for people and comparisons."""

import tomllib
from collections.abc import Mapping

from runner.base.text_cache import cached_by_text


@cached_by_text(64, 4 * 1024**2)
def locked_versions(text: str) -> Mapping[str, str]:
    """Return the versions of the packages of a lock by name; those of the image are not among them."""
    found = tomllib.loads(text).get("packages", ())
    return {each["name"]: each.get("version", "?") for each in found}
