"""Reads Xids, the error codes of NVIDIA devices, from the kernel log.

Only the log covers the time before the daemon started.  It names a device by its PCI address.  A user's own
daemon may not read it; then the Xids are unknown, which does not mean that there are none.
"""

import errno
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from runner.core.devices.xid import RECOVERY, Xid

_RECORD: Final = re.compile(r"^\d+,\d+,(\d+),[^;]*;NVRM: Xid \(PCI:([0-9A-Fa-f:.]+)\): (\d+)(.*)$")
_ACTION: Final = re.compile(r"changed from .* to 0x([0-9a-fA-F]+)")
_ADDRESS: Final = re.compile(r"(?:[0-9a-f]{4})?([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2})(?:\.[0-9a-f])?")

_ACTIONS: Final = {
    0: "none",
    1: "gpu_reset",
    2: "node_reboot",
    3: "drain_p2p",
    4: "drain_and_reset",
    6: "gpu_reset",  # of its bus
}

_CHUNK: Final = 8192  # the longest record that the kernel hands out


def recovery_action(action: int) -> str:
    """Return the value of the fact ``device.recovery`` for a recovery action of NVML.

    An action that is unknown here, or that concerns several devices, becomes the most severe one.
    """
    return _ACTIONS.get(action, "node_reboot")


def bus_address(text: str) -> str | None:
    """Return ``0000:17:00`` from any notation of a PCI address; None if it is none."""
    match = _ADDRESS.fullmatch(text.strip().lower())
    return match[1] if match else None


@dataclass(slots=True)
class KernelLog:
    """The kernel log; each call reads what was added since the last one."""

    path: Path = Path("/dev/kmsg")
    read: Callable[[int, int], bytes] = os.read
    _descriptor: int | None = None
    _rest: bytes = b""
    _found: list[Xid] = field(default_factory=list)

    def open(self) -> None:
        """Open the log, if this process may; the log stays readable without the right to open it."""
        if self._descriptor is None:
            with suppress(OSError):
                self._descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def xids(self) -> tuple[Xid, ...] | None:
        """Return every Xid of the log so far; None if it cannot be read."""
        self.open()
        if self._descriptor is None:
            return None
        return tuple(self._found) if self._read_new(self._descriptor) else None

    def _read_new(self, descriptor: int) -> bool:
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
                self._parse(line.decode(errors="replace"))

    def _parse(self, line: str) -> None:
        match = _RECORD.match(line)
        bus = bus_address(match[2]) if match else None
        if match and bus:
            code = int(match[3])
            action = _ACTION.search(match[4]) if code == RECOVERY else None
            recovery = recovery_action(int(action[1], 16)) if action else None
            self._found.append(Xid(int(match[1]) / 1e6, bus, code, recovery))

    def close(self) -> None:
        """Close the log."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
