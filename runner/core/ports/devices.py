"""The ports to devices: inventory and health."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from runner.core.devices.reading import Health


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


class DeviceHealth(Protocol):
    """Reads the health of the devices of one vendor."""

    def read(self, devices: tuple[Device, ...]) -> Mapping[str, Health]:
        """Return the present health of each device by UUID; of a device that is left out, nothing is known.

        It may block for as long as a driver that has lost its device does, so it is called on a thread for
        which nothing waits.  It raises no error of a driver.
        """
