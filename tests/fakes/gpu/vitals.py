"""Devices that are as a test says, and a summary of them that nobody has to look for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from threading import Event as Flag

from runner.core.ports.devices import Device, Health


@dataclass
class FakeHealth:
    """Satisfies ``runner.core.ports.devices.DeviceHealth``."""

    healths: dict[str, Health] = field(default_factory=dict)
    mistake: Exception | None = None
    hangs: Flag | None = None  # a look does not return before this is set
    looks: int = 0

    def look(self, devices: tuple[Device, ...]) -> Mapping[str, Health]:
        self.looks += 1
        if self.hangs is not None:
            self.hangs.wait()
        if self.mistake is not None:
            raise self.mistake
        return {d.uuid: self.healths[d.uuid] for d in devices if d.uuid in self.healths}


@dataclass
class FakeVitals:
    """Satisfies ``runner.core.ports.devices.Vitals``."""

    known: dict[str, object] = field(default_factory=dict)
    bad: dict[str, str] = field(default_factory=dict)

    def facts(self, devices: tuple[str, ...], since: datetime | None) -> Mapping[str, object]:
        del since
        return dict(self.known) if devices else {}

    def unfit(self) -> Mapping[str, str]:
        return dict(self.bad)
