"""Reads names and versions from a lock of packages (PEP 751), for people and comparisons."""

import tomllib
from collections.abc import Mapping

from runner.base.text_cache import cached_by_text


@cached_by_text(64, 4 * 1024**2)
def locked_versions(text: str) -> Mapping[str, str]:
    """Return the versions of the packages of a lock by name; those of the image are not among them."""
    found = tomllib.loads(text).get("packages", ())
    return {each["name"]: each.get("version", "?") for each in found}


@cached_by_text(64, 4 * 1024**2)
def locked_hashes(text: str) -> Mapping[str, str]:
    """Return the sha256s of the files that a lock takes from an index, by the name of the package."""
    found = tomllib.loads(text)
    wheels = {
        each["name"]: each["wheels"][0]["hashes"]["sha256"]
        for each in found.get("packages", ())
        if each.get("wheels")
    }
    built = found.get("tool", {}).get("runner", {}).get("built", {})
    return wheels | {name: url.rpartition("#sha256=")[2] for name, url in built.items()}


@cached_by_text(64, 4 * 1024**2)
def locked_image(text: str) -> str | None:
    """Return the name of the operator's image that was chosen for a lock; None: that of the job."""
    found = tomllib.loads(text).get("tool", {}).get("runner", {}).get("below")
    return found if isinstance(found, str) else None


def locked_python(text: str) -> str | None:
    """Return the Python of a lock, such as 3.11; None if it does not say."""
    python = tomllib.loads(text).get("tool", {}).get("runner", {}).get("python")
    return python if isinstance(python, str) else None


@cached_by_text(64, 4 * 1024**2)
def locked_torch(text: str) -> str | None:
    """Return the version of torch of a lock that has one of its own; None: the image's is used, or none."""
    found = tomllib.loads(text)
    if not found.get("tool", {}).get("runner", {}).get("isolated"):
        return None
    return next((each["version"] for each in found.get("packages", ()) if each["name"] == "torch"), None)
