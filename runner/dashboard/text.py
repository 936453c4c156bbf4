"""Values as text for people: durations, sizes, moments; and hostile text made harmless."""

import unicodedata
from datetime import UTC, datetime
from typing import Any, Final

from markupsafe import Markup, escape

from runner.base.readable import readable_duration, readable_size

LONGEST: Final = 2000
"""Characters of one value on a page."""

KEPT: Final = frozenset("\n\t")


def clean(value: object) -> str:
    """Return text without control characters and without marks that turn the direction of writing.

    Names, reasons and logs come from users: an escape sequence or U+202E could make them look like something
    else.  HTML is escaped by the templates.
    """
    if value is None:
        return "-"
    text = str(value)
    if len(text) > LONGEST:
        text = text[:LONGEST] + " ..."
    if text.isascii() and text.isprintable():
        return text
    return "".join(_shown(character) for character in text)


def log_text(value: str) -> Markup:
    """Return a long text made harmless, of any length, as HTML."""
    return Markup(escape("".join(_shown(character) for character in value)))  # noqa: S704  escaped here


def _shown(character: str) -> str:
    if character in KEPT or unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Zl", "Zp"}:
        return character
    return f"\\x{ord(character):02x}" if ord(character) < 256 else f"\\u{ord(character):04x}"


def parse_moment(text: str | None) -> datetime | None:
    """Return a time of the daemon's answers."""
    return None if text is None else datetime.fromisoformat(text)


def duration(seconds: float | None) -> str:
    """Return a length of time in its two largest units, as the commands do: ``2h10m``."""
    return "-" if seconds is None else readable_duration(seconds)


def ago(text: str | None, now: datetime) -> str:
    """Return the age of a time."""
    at = parse_moment(text)
    return "-" if at is None else duration(round((now - at).total_seconds()))


def clock(text: str | None) -> str:
    """Return a time as date and time of day, with its zone: reasons use the clock of the site."""
    at = parse_moment(text)
    return "-" if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def size(count: float | None) -> str:
    """Return a number of bytes with a binary unit."""
    return "-" if count is None else readable_size(count)


def share(part: float | None) -> str:
    """Return a share as percent."""
    return "-" if part is None else f"{100 * part:.0f} %"


def number(value: Any) -> str:  # noqa: ANN401  a number of an answer, or none
    """Return a number with five digits."""
    if value is None:
        return "-"
    return f"{value:.5g}" if isinstance(value, float) else str(value)
