"""What the NVIDIA driver tells the kernel's log: Xids, the error codes of its devices.

The log is the one source that covers what happened before the daemon started, and it names the
device by its place on the bus.  Reading it takes rights that a user's own daemon lacks; then no
Xid is known, which is not the same as none.
"""

import errno
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

LOST: Final = 79
"""The device has fallen off the bus."""

RECOVERY: Final = 154
"""The recovery action of a device has changed; the text says to what."""

_RECORD: Final = re.compile(r"^\d+,\d+,(\d+),[^;]*;NVRM: Xid \(PCI:([0-9A-Fa-f:.]+)\): (\d+)(.*)$")
_ACTION: Final = re.compile(r"changed from .* to 0x([0-9a-fA-F]+)")
_ADDRESS: Final = re.compile(r"(?:[0-9a-f]{4})?([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2})(?:\.[0-9a-f])?")

_WORDS: Final = {
    0: "none",
    1: "gpu_reset",
    2: "node_reboot",
    3: "drain_p2p",
    4: "drain_and_reset",
    6: "gpu_reset",  # of its bus
}

_CHUNK: Final = 8192  # the longest record that the kernel hands out


@dataclass(frozen=True, slots=True)
class Xid:
    """One error code of one device."""

    at: float  # seconds of the monotonic clock
    bus: str  # domain:bus:device
    code: int
    recovery: str | None = None  # for code 154: what must be done now


def recovery_word(action: int) -> str:
    """Return NVML's recovery action in the words of the fact ``device.recovery``.

    An action that is newer than this list, or that means more than one device, is the most careful one.
    """
    return _WORDS.get(action, "node_reboot")


def bus_address(text: str) -> str | None:
    """Return ``0000:17:00`` from any of the ways in which a place on the bus is written."""
    match = _ADDRESS.fullmatch(text.strip().lower())
    return match[1] if match else None


@dataclass(slots=True)
class KernelLog:
    """The kernel's log, read from where the last look ended."""

    path: Path = Path("/dev/kmsg")
    read: Callable[[int, int], bytes] = os.read
    _descriptor: int | None = None
    _rest: bytes = b""
    _found: list[Xid] = field(default_factory=list)

    def xids(self) -> tuple[Xid, ...] | None:
        """Return every Xid that the log has shown so far; None where it cannot be read."""
        if self._descriptor is None:
            try:
                self._descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:
                return None
        return tuple(self._found) if self._caught_up(self._descriptor) else None

    def _caught_up(self, descriptor: int) -> bool:
        while True:
            try:
                chunk = self.read(descriptor, _CHUNK)
            except OSError as error:
                if error.errno == errno.EPIPE:  # records were overwritten before they were read
                    continue
                return error.errno == errno.EAGAIN
            if not chunk:
                return True
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in lines:
                self._take(line.decode(errors="replace"))

    def _take(self, line: str) -> None:
        match = _RECORD.match(line)
        bus = bus_address(match[2]) if match else None
        if match and bus:
            code = int(match[3])
            action = _ACTION.search(match[4]) if code == RECOVERY else None
            word = recovery_word(int(action[1], 16)) if action else None
            self._found.append(Xid(int(match[1]) / 1e6, bus, code, word))

    def close(self) -> None:
        """Give the descriptor back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
