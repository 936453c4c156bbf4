"""Xids: the error codes of NVIDIA devices, whoever reports them."""

from dataclasses import dataclass
from typing import Final

LOST: Final = 79
"""The device has fallen off the bus."""

RECOVERY: Final = 154
"""The recovery action of a device has changed; the text has the new action."""


@dataclass(frozen=True, slots=True)
class Xid:
    """One error code of one device."""

    at: float  # seconds of the monotonic clock
    bus: str  # domain:bus:device
    code: int
    recovery: str | None = None  # for code 154: the new recovery action
