"""Rights of this process: it may act for root, as root or as the part of root's daemon without them."""

import os

_given_up = False


def acts_for_root() -> bool:
    """Return True if what this process decides is done with root's rights."""
    return _given_up or os.geteuid() == 0


def note_given_up() -> None:
    """Say that this process was root and has a helper that still is."""
    global _given_up  # noqa: PLW0603  a fact about the process
    _given_up = True
