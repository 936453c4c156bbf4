"""Messages of an engine that pulls an image, as lines of a build log."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

from images.errors import pull_failure
from images.log import COUNT_EVERY_S

_MIB: Final = 1024**2
_THERE: Final = frozenset({"Verifying Checksum", "Download complete", "Extracting", "Pull complete"})
"""Words of the engine about a layer that it has got."""


@dataclass(slots=True)
class PullProgress:
    """The layers of a pull, and how much of each is there."""

    reference: str
    every_s: float = COUNT_EVERY_S
    _got: dict[str, tuple[int, int]] = field(default_factory=dict)
    _told_s: float = field(default_factory=monotonic)

    def line(self, record: Mapping[str, Any]) -> str | None:
        """Return the line that a record of the engine is worth, None if it is worth none.

        Raises:
            BuildFailed: the record says that the pull has failed.
        """
        if "error" in record:
            raise pull_failure(self.reference, str(record["error"]))
        layer, status = record.get("id"), str(record.get("status", ""))
        if layer is None:
            return status or None
        total = int((record.get("progressDetail") or {}).get("total") or 0)
        if status == "Downloading" and total:
            self._got[layer] = (int(record["progressDetail"].get("current") or 0), total)
        elif status in _THERE and layer in self._got:
            self._got[layer] = (self._got[layer][1],) * 2
        if not self._got or monotonic() - self._told_s < self.every_s:
            return None
        self._told_s = monotonic()
        got, size = (sum(each) / _MIB for each in zip(*self._got.values(), strict=True))
        return f"pull {self.reference}: {got:.0f} of {size:.0f} MiB"
