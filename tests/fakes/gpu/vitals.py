"""Devices that are as a test says, and a summary of them that nobody has to look for."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from threading import Event as Flag

from runner.base.instant import Instant
from runner.core.devices.reading import Health
from runner.core.ports.devices import Device
from runner.core.scheduler.snapshot import DeviceState, SchedulableDevice


@dataclass
class FakeHealth:
    """Satisfies ``runner.core.ports.devices.DeviceHealth``."""

    healths: dict[str, Health] = field(default_factory=dict)
    mistake: Exception | None = None
    hangs: Flag | None = None  # a look does not return before this is set
    looks: int = 0

    def read(self, devices: tuple[Device, ...]) -> Mapping[str, Health]:
        self.looks += 1
        if self.hangs is not None:
            self.hangs.wait()
        if self.mistake is not None:
            raise self.mistake
        return {d.uuid: self.healths[d.uuid] for d in devices if d.uuid in self.healths}


@dataclass
class FakeInventory:
    """Satisfies ``runner.agent.interface.Devices``."""

    known: dict[str, object] = field(default_factory=dict)
    bad: dict[str, str] = field(default_factory=dict)
    energies: dict[str, float] = field(default_factory=dict)
    devices: list[Device] = field(default_factory=list)

    def facts(self, devices: tuple[str, ...], since: datetime | None) -> Mapping[str, object]:
        del since
        return dict(self.known) if devices else {}

    def energy_j(self, uuid: str) -> float | None:
        return self.energies.get(uuid)

    def unfit(self) -> Mapping[str, str]:
        return dict(self.bad)

    def record_launch(self, devices: Iterable[str], fault: str | None, now: Instant) -> None:
        del now
        for uuid in devices:
            self.bad.pop(uuid, None)
            if fault is not None:
                self.bad[uuid] = fault

    def schedulable(self, holders: Mapping[str, str]) -> tuple[SchedulableDevice, ...]:
        """Return devices that are fit or not, as ``bad`` says."""
        return tuple(
            SchedulableDevice(
                uuid=device.uuid,
                name=f"GPU-{number}",
                vendor=device.vendor,
                model=device.name,
                memory_bytes=device.memory_bytes or 0,
                state=self._state(device.uuid, holders),
                reason=self.bad.get(device.uuid, ""),
            )
            for number, device in enumerate(self.devices)
        )

    def _state(self, uuid: str, holders: Mapping[str, str]) -> DeviceState:
        if uuid in self.bad:
            return DeviceState.QUARANTINED
        return DeviceState.ALLOCATED if uuid in holders else DeviceState.FREE
