"""Sizes and durations as people write them: ``20GiB``, ``1.5GB``, ``90m``, ``2h30m``.

A single letter is binary (``2G`` is 2 GiB), as in Docker and Slurm; ``GB`` is decimal. A size without a
unit is in bytes. A duration without a unit is refused, because some tools take it for seconds and others
for minutes.
"""

import re
from datetime import timedelta
from fractions import Fraction
from typing import Final

from runner.base.textfile import quoted, shown

_LONGEST: Final = 40  # limits the cost of matching

_POWER: Final = {"k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_SIZE: Final = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,9})?) ?(?:([kmgtp])?(i?b)?)?", re.IGNORECASE)
_BITS: Final = re.compile(r"[0-9.]+ ?([KMGTP])b")
_PART: Final = r"(?:([0-9]{1,7}(?:\.[0-9]{1,6})?)\s*%s)?"
_DURATION: Final = re.compile(r"\s*".join(_PART % unit for unit in ("d", "h", "m(?!s)", "s", "ms")))
_DIGITS: Final = re.compile(r"[0-9]{8,}")
_CLOCK: Final = re.compile(r"([0-9]{1,3}):([0-9]{2})(?::([0-9]{2}))?")
_UNITS_MS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_MS: Final = timedelta(milliseconds=1)

SIZE_HELP: Final = "a size such as 512MiB or 20GiB"
DURATION_HELP: Final = "a duration such as 45s, 90m or 2h30m"


def parse_size(value: object) -> int:
    """Return a size in bytes; a whole number is in bytes already.

    Raises:
        ValueError: with the message for the user.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return _not_negative(value)
    if not isinstance(value, str):
        raise ValueError(f"must be {SIZE_HELP}, not {shown(value)}")
    if len(value) > _LONGEST:
        raise ValueError(f"must be {SIZE_HELP}, not {quoted(value)}")
    if _BITS.fullmatch(value):
        raise ValueError(f"{quoted(value)} means bits; did you mean {quoted(value[:-1] + 'iB')}?")
    match = _SIZE.fullmatch(value.strip())
    if not match:
        raise ValueError(f"must be {SIZE_HELP}, not {quoted(value)}{_negative(value)}")
    number, letter, ending = match.groups()
    if "." in number and not letter:
        raise ValueError(f"must be {SIZE_HELP}, not {quoted(value)}; did you mean {quoted(f'{number}GiB')}?")
    base = 1000 if (ending or "").lower() == "b" else 1024
    return int(Fraction(number) * base ** _POWER.get((letter or "").lower(), 0))


def written_size(value: object) -> object:
    """Return a size that is written with a unit in bytes, and anything else as it is.

    Raises:
        ValueError: so few bytes are meant to have a unit, or it is no size.
    """
    size = parse_size(value) if isinstance(value, str) else value
    if isinstance(size, int) and 1 < size < 1024 and str(value).strip() == str(size):
        raise ValueError(f"{size} would be so many bytes; did you mean {quoted(f'{size}GiB')}?")
    return size


def parse_duration(value: object) -> timedelta:
    """Return a duration in whole milliseconds.

    Raises:
        ValueError: with the message for the user.
    """
    if isinstance(value, timedelta):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(_ambiguous(str(value)))
    if not isinstance(value, str):
        raise ValueError(f"must be {DURATION_HELP}, not {shown(value)}")
    if len(value) > _LONGEST:
        raise ValueError(f"must be {DURATION_HELP}, not {quoted(value)}")
    match = _DURATION.fullmatch(value.strip())
    if not match or not any(match.groups()):
        raise ValueError(_no_duration(value))
    parts = zip(match.groups(), _UNITS_MS.values(), strict=True)
    return int(sum(Fraction(number) * unit for number, unit in parts if number)) * _MS


def format_size(size: int) -> str:
    """Return a size as a user would write it: the shortest whole number of a unit, binary before decimal."""
    found = [(size, "B")]
    for ending, base in (("iB", 1024), ("B", 1000)):
        for letter, power in _POWER.items():
            if size and size % base**power == 0:
                found.append((size // base**power, letter.upper() + ending))
    number, unit = min(found, key=lambda each: each[0])
    return f"{number}{unit}"


def format_duration(duration: timedelta) -> str:
    """Return a duration as a user would write it; ``parse_duration`` parses it."""
    left, text = duration // _MS, ""
    for unit, size in _UNITS_MS.items():
        count, left = divmod(left, size)
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def _not_negative(value: int) -> int:
    if value < 0:
        raise ValueError(f"must not be negative, but is {value}")
    return value


def _negative(value: str) -> str:
    return "; it cannot be negative" if value.strip().startswith("-") else ""


def _no_duration(value: str) -> str:
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", value.strip()):
        return _ambiguous(value.strip())
    if clock := _CLOCK.fullmatch(value.strip()):
        units = ("h", "m", "s") if clock[3] else ("m", "s")
        written = "".join(f"{int(n)}{u}" for n, u in zip(clock.groups(), units, strict=False) if n and int(n))
        return f"must be {DURATION_HELP}, not {quoted(value)}; did you mean {quoted(written or '0s')}?"
    if value != value.lower() and _DURATION.fullmatch(value.strip().lower()):
        return f"must be {DURATION_HELP}, not {quoted(value)}; did you mean {quoted(value.lower())}?"
    if _DIGITS.search(value) and _DURATION.fullmatch(_DIGITS.sub("1", value).strip()):
        return f"{quoted(value)} is too large; a number in it can have at most 7 digits"
    return f"must be {DURATION_HELP}, not {quoted(value)}{_negative(value)}"


def _ambiguous(number: str) -> str:
    if number.startswith("-"):
        return f"must be {DURATION_HELP}, not {number}; it cannot be negative"
    return f'needs a unit: did you mean "{number}s" or "{number}m"?'
