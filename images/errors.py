"""The errors of ``images``; callers translate them to their own.

Messages are one line for people, and name the next step where there is one.
"""

import re
from typing import Final

_FULL: Final = r"(?:no space left on device|disk quota exceeded)"
_SAYS_FULL: Final = re.compile(_FULL, re.IGNORECASE)
_ENDS_FULL: Final = re.compile(rf"{_FULL}(?: \(os error [0-9]+\))?\W*$", re.IGNORECASE)
_REFUSED: Final = re.compile(
    r"not found|manifest unknown|name unknown|(?<!permission )denied|forbidden|unauthorized"
    r"|(?<!proxy )authentication required|authorization failed|no basic auth|no matching manifest"
    r"|does not exist|invalid reference|must be lowercase|unsupported|no longer supported|does not support"
    r"|schema 1 support|cannot be used on this platform|does not provide the specified platform"
    r"|encountered unknown type",
    re.IGNORECASE,
)
"""Words of registries for what another try does not change."""

_OF_STORE: Final = re.compile(r"content store|snapshot\b|failed to extract|register layer", re.IGNORECASE)
"""Words of an engine about its own store, which may have lost a layer."""


class EngineUnavailable(Exception):
    """The container engine does not answer, so nothing is known about the image."""


class EngineForbidden(EngineUnavailable):
    """The caller may not use the container engine."""


class BuildFailed(Exception):
    """The image cannot be built as asked; the text is the last lines of the build's log."""


class HostFault(BuildFailed):
    """The machine or a registry cannot do it now, so another try may succeed."""


class ImageRefused(BuildFailed):
    """No container may be made of an image; the text says why."""


class BuildCancelled(Exception):
    """The build was cancelled because no job waits for the image any more."""


def failure(text: str) -> BuildFailed:
    """Return the error of words of the engine or a tool; they end with the reason, after what is a user's."""
    return HostFault(text) if _ENDS_FULL.search(text) else BuildFailed(text)


def pull_failure(reference: str, text: str) -> BuildFailed:
    """Return the error of a pull of an image that its registry has had."""
    kind = BuildFailed if _REFUSED.search(_without_names(reference, text)) else HostFault
    return kind(f"pull {reference}: {text}")


def look_up_failure(reference: str, text: str) -> BuildFailed:
    """Return the error of a question to a registry that may have been mistyped."""
    host = _registry(reference).partition(":")[0]
    unknown = host and re.search(rf"lookup {re.escape(host)}(?![\w.-])[^,;]*: no such host", text)
    refused = unknown or _REFUSED.search(_without_names(reference, text))
    return (BuildFailed if refused else HostFault)(f"image {reference}: {text}")


def _without_names(reference: str, text: str) -> str:
    """Return words that may be a registry's, without addresses and the image, whose names may be any."""
    host = _registry(reference) or reference
    words = " ".join(
        each for each in text.split() if "/" not in each and host not in each and reference not in each
    )
    return "" if _OF_STORE.search(words) else words


def _registry(reference: str) -> str:
    """Return the host and port of the registry that a reference names; empty: it names none."""
    first, slash, _ = reference.partition("/")
    return first if slash and (set(first) & set(".:") or first == "localhost") else ""


def find_full_disk(lines: str) -> str | None:
    """Return the last of some lines that says that a disk is full; none of them may be a user's."""
    return next((line for line in reversed(lines.splitlines()) if _SAYS_FULL.search(line)), None)
