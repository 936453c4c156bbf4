"""Inputs of the live inventory, and the views that it gives: protocols and values alone.

So the inventory can be read and tested without a driver.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Protocol, overload

from runner.core.devices.defects import DeviceRun
from runner.core.devices.reading import Health, ProcessOnDevice
from runner.core.devices.state import AdminMark, CleanupRules, DeviceStatus, Remembered
from runner.core.job.states import Allocated
from runner.core.ports.devices import Device
from runner.core.ports.store import JobRow
from runner.core.scheduler import snapshot


class AdminMarks(Protocol):
    """Marks and memories of devices that outlive the daemon; called in the exclusive section."""

    def all(self) -> Mapping[str, AdminMark]: ...

    def say(self, uuid: str, word: AdminMark) -> None: ...

    def take_back(self, uuid: str, at: datetime) -> None: ...

    def runs(self, now: datetime) -> Sequence[DeviceRun]: ...

    def kept(self) -> Mapping[str, Remembered]: ...

    def keep(self, kept: Mapping[str, Remembered]) -> None: ...

    def note(self, job_id: str, at: datetime, kind: str, text: str) -> None: ...


class ProcessOwners(Protocol):
    """Finds out the owners of processes; it may block."""

    def of(self, processes: Iterable[ProcessOnDevice]) -> Mapping[int, ProcessOnDevice]: ...


@dataclass(frozen=True, slots=True)
class InventoryRules:
    """The settings of an operator about devices."""

    care: CleanupRules = field(default_factory=CleanupRules)
    shared: tuple[str, ...] = ()  # UUIDs, names, or parts of models
    host_programs: tuple[str, ...] = ()  # allowed on a device that is allocated

    def as_allocated(self, device: Device) -> Device:
        """Return a device as the kind that it is allocated as."""
        named = {device.uuid, device.label} & set(self.shared)
        shared = named or any(each in device.name for each in self.shared)
        return replace(device, kind="shared") if shared else device


@dataclass(frozen=True, slots=True)
class DeviceView:
    """All that is known of one device now."""

    device: Device
    standing: DeviceStatus
    health: Health
    occupants: tuple[ProcessOnDevice, ...] | None


class PresentDevices(Sequence[Device]):
    """The devices present at the moment of each access: they come and go."""

    def __init__(self, now: Callable[[], tuple[Device, ...]]) -> None:
        self._now = now

    @overload
    def __getitem__(self, index: int) -> Device: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Device, ...]: ...

    def __getitem__(self, index: int | slice) -> Device | tuple[Device, ...]:
        return self._now()[index]

    def __len__(self) -> int:
        return len(self._now())


def device_labels(devices: Collection[Device]) -> Iterator[tuple[str, str]]:
    """Yield UUID and label of each device; where there are two vendors, each has its own numbers."""
    several = len({device.vendor for device in devices}) > 1
    for device in devices:
        label = device.label or "GPU-0"
        amd = several and device.vendor == "amd"
        yield device.uuid, label.replace("GPU-", "AMD-", 1) if amd else label


def holders_of(rows: Iterable[JobRow]) -> dict[str, str]:
    """Return the ids of the jobs that hold each device, by UUID; with commas between them."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if isinstance(row.job.state, Allocated):
            for uuid in row.job.state.allocation.devices:
                found.setdefault(uuid, []).append(row.job.id)
    return {uuid: ",".join(jobs) for uuid, jobs in found.items()}


def device_views(device: Device, standing: DeviceStatus) -> snapshot.SchedulableDevice:
    """Return a device as the scheduler sees it."""
    memory = device.memory_bytes or 0
    return snapshot.SchedulableDevice(
        uuid=device.uuid,
        name=device.label or device.uuid,
        vendor=device.vendor,
        model=device.name,
        memory_bytes=memory,
        capability=device.capability or (0, 0),
        link_group=device.link_group,
        numa=device.numa or 0,
        kind=snapshot.DeviceKind(device.kind),
        state=standing.state,
        reason=standing.reason,
        shareable_bytes=max(memory - (standing.baseline_bytes or 0), 0) if device.kind == "shared" else 0,
    )
