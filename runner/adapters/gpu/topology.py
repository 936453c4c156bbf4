"""The places of devices, for every vendor: on the PCI bus, and by their direct links (NVLink, xGMI)."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

DISPLAY_CLASSES: Final = ("0x0300", "0x0302", "0x0380", "0x1200")
"""PCI classes: VGA, 3D controller, other display, processing accelerator."""


def gpus_on_bus(sys_root: Path, vendor: str) -> int:
    """Return the number of GPUs of a vendor on the PCI bus."""
    found = 0
    with suppress(OSError):
        for each in (sys_root / "bus/pci/devices").iterdir():
            with suppress(OSError):
                if (each / "vendor").read_text().strip() == vendor:
                    found += (each / "class").read_text().startswith(DISPLAY_CLASSES)
    return found


def link_groups(kind: str, devices: Iterable[str], links: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the link group of each device that is linked to another one, directly or through others.

    An end of a link may be something else than a device, such as a switch.  A group is named after the first
    of its devices, so it has the same name after each enumeration.
    """
    parent: dict[str, str] = {}

    def root(node: str) -> str:
        while parent.get(node, node) != node:
            node = parent[node]
        return node

    for near, far in links:
        parent[root(far)] = root(near)
    groups: dict[str, list[str]] = {}
    for device in devices:
        groups.setdefault(root(device), []).append(device)
    return {each: f"{kind}-{group[0]}" for group in groups.values() if len(group) > 1 for each in group}
