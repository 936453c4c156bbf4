"""What two ends have in common: a fingerprint of the root cause that survives numbers, addresses and paths.

A program that put a counter into its messages would otherwise look new every time.  It may still
do so with words; that buys it tries, and never an attempt beyond the ceilings.
"""

import re
from typing import Final

_SPOKEN: Final = frozenset({"exception", "no_result", "launch_failed"})
"""Causes that mean many things; of the others the word says it all."""

_PATH: Final = re.compile(r"(?:[A-Za-z]:)?[/\\](?:[^\s/\\:'\"]+[/\\])*([^\s/\\:'\"]*)")
_NUMBER: Final = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-fA-F]{12,}\b|[0-9]+(?:\.[0-9]+)?")
_LONGEST: Final = 120


def fingerprint(cause: str, message: str = "") -> str:
    """Return what to count by: the cause, and where that says little its message without what varies."""
    if cause not in _SPOKEN or not message.strip():
        return cause
    first = message.strip().splitlines()[0]
    same = _NUMBER.sub("N", _PATH.sub(r"\1", first))
    return f"{cause}: {' '.join(same.split())}"[:_LONGEST]
