"""The ports to devices: inventory, health and recent measurements."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU or slice of one, as something that can be allocated."""

    uuid: str
    vendor: str  # "nvidia" or "amd"
    name: str
    memory_bytes: int | None = None
    render_node: Path | None = None  # AMD: /dev/dri/renderD*
    label: str = ""  # for people: GPU-3, and GPU-3:1 for a slice of it
    capability: tuple[int, int] | None = None  # CUDA's compute capability
    link_group: str | None = None  # equal for devices that NVLink or xGMI connects
    numa: int | None = None
    kind: Literal["whole", "slice", "shared"] = "whole"
    parent: str | None = None  # UUID of the GPU that a slice is part of
    unified: bool = False  # its memory is the host's own, which others use too


class DeviceProbe(Protocol):
    def devices(self) -> tuple[Device, ...]: ...


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """A process that uses a device, as the driver reports it."""

    pid: int
    used_bytes: int | None = None
    draws: bool = False  # and does not compute, as a desktop and its windows do


@dataclass(frozen=True, slots=True)
class Health:
    """One reading of a device; None: not known."""

    lost: bool | None = None  # it no longer answers, and only a person or a reset brings it back
    unusable: str | None = None  # why nothing can compute on it, though it answers
    recovery: str | None = None  # what the driver wants done first, in the words of the fact device.recovery
    util: float | None = None  # percent of the last moment in which some kernel was running
    memory: float | None = None  # share of its memory that is in use
    bus: str | None = None  # where the kernel's log says it is, as domain:bus:device
    xids: tuple[int, ...] | None = None  # error codes since the previous reading
    used_bytes: int | None = None
    processes: tuple[DeviceProcess, ...] | None = None  # (): none, which is not the same as not known
    power_w: float | None = None
    temperature_c: float | None = None
    ecc_uncorrectable: int | None = None  # memory errors since the driver was loaded
    throttled: tuple[str, ...] | None = None  # what holds its clocks down


class DeviceHealth(Protocol):
    """Reads the health of the devices of one vendor."""

    def read(self, devices: tuple[Device, ...]) -> Mapping[str, Health]:
        """Return the present health of each device by UUID; of a device that is left out, nothing is known.

        It may block for as long as a driver that has lost its device does, so it is called on a thread for
        which nothing waits.  It raises no error of a driver.
        """


class Vitals(Protocol):
    """The recent health of the devices.  No method blocks; a reading that is too old is unknown."""

    def facts(self, devices: tuple[str, ...], since: datetime | None) -> Mapping[str, object]:
        """Return the ``device.*`` facts of some devices since a moment; what is not known is left out."""

    def unfit(self) -> Mapping[str, str]:
        """Return the devices that must not be allocated, each with the reason."""
