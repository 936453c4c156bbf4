"""How fast the bodies of one person's requests are read.

The event loop, which answers everybody, parses every body.  So a person's connections are not read for a
while once the person has sent more than a burst.
"""

import time
from dataclasses import dataclass, field
from typing import Final

from uvicorn.protocols.http.flow_control import FlowControl

BODIES_BYTES_PER_S: Final = 2 * 1024**2
"""Bodies of one person that are read in a second, for long."""

BURST_BYTES: Final = 4 * 1024**2
"""Bodies of one person that are read at once."""


@dataclass(slots=True)
class BodyPace:
    """What may still be read of the bodies of one person: a bucket that fills again."""

    left: float = BURST_BYTES
    at_s: float = field(default_factory=time.monotonic)

    def wait_s(self, size: int, now_s: float) -> float:
        """Take bytes that were read, and return for how long no more should be read."""
        self.left = min(self.left + (now_s - self.at_s) * BODIES_BYTES_PER_S, BURST_BYTES) - size
        self.at_s = now_s
        return max(-self.left / BODIES_BYTES_PER_S, 0.0)


class PacedFlow(FlowControl):
    """Flow control that also stops reading for a while when its person sends too much."""

    held = False

    def hold(self) -> None:
        """Read nothing until ``release``."""
        self.held = True
        self._transport.pause_reading()

    def release(self) -> None:
        """Read again, unless the application still has to take what was read."""
        self.held = False
        if not self.read_paused and not self._transport.is_closing():
            self._transport.resume_reading()

    def resume_reading(self) -> None:
        if self.held:
            self.read_paused = False
        else:
            super().resume_reading()
