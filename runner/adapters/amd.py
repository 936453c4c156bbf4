"""AMD devices through sysfs, what there is and how it is: no library is needed, and none can be missing.

A device is a DRM render node whose driver is ``amdgpu`` and that the compute driver (KFD)
knows too; the node is what a container is given.  Files differ between generations, so each
may be absent and costs only its own field.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from runner.ports import Device, Health

VENDOR: Final = "0x1002"
_NODE: Final = re.compile(r"renderD\d+")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AmdProbe:
    """Satisfies ``runner.ports.DeviceProbe``."""

    sys_root: Path = Path("/sys")
    dev_root: Path = Path("/dev")

    def devices(self) -> tuple[Device, ...]:
        """Return every AMD GPU that can compute; none where there is no driver."""
        try:
            nodes = sorted(
                path for path in (self.sys_root / "class/drm").iterdir() if _NODE.fullmatch(path.name)
            )
        except OSError:
            return ()
        return tuple(device for path in nodes for device in self._device(path))

    def _device(self, path: Path) -> Iterator[Device]:
        about = path / "device"
        if _read(about / "vendor") != VENDOR:
            return
        compute = self._compute(path.name.removeprefix("renderD"))
        if compute is None:
            log.warning("amd.no_compute", node=path.name)
            return
        uuid = _read(about / "unique_id") or compute.get("unique_id_hex")
        yield Device(
            # The name that ROCm gives it; boards without a serial number are named by their bus address.
            uuid=f"GPU-{uuid}" if uuid else f"PCI-{about.resolve().name}",
            vendor="amd",
            name=_read(about / "product_name") or _name(compute),
            memory_bytes=_memory(about),
            render_node=self.dev_root / "dri" / path.name,
        )

    def _compute(self, minor: str) -> dict[str, str] | None:
        """Return the properties of the KFD node with this render minor."""
        for path in sorted((self.sys_root / "class/kfd/kfd/topology/nodes").glob("*/properties")):
            words = [line.split() for line in (_read(path) or "").splitlines()]
            properties = {word[0]: word[1] for word in words if len(word) == 2}
            if properties.get("drm_render_minor") == minor:
                serial = int(properties.get("unique_id", "0"))
                return {**properties, "unique_id_hex": f"{serial:016x}"} if serial else properties
        return None


@dataclass(frozen=True, slots=True)
class AmdHealth:
    """Satisfies ``runner.ports.DeviceHealth``.

    A device that has left the bus has no directory any more.  The driver resets a device by itself and
    does not say that one is needed, so there is no recovery action.
    """

    sys_root: Path = Path("/sys")

    def look(self, devices: tuple[Device, ...]) -> Mapping[str, Health]:
        """Return how each device is that has a render node; nothing where there is no driver."""
        nodes = self.sys_root / "class/drm"
        if not nodes.is_dir():
            return {}
        return {d.uuid: _health(nodes / d.render_node.name) for d in devices if d.render_node is not None}


def _health(node: Path) -> Health:
    if not node.is_dir():
        return Health(lost=True)
    about = node / "device"
    if _read(about / "vendor") is None:
        return Health()
    busy = _read(about / "gpu_busy_percent")
    return Health(
        lost=False,
        util=float(busy) if busy and busy.isdigit() else None,
        memory=_used(about),
        bus=about.resolve().name,
    )


def _used(about: Path) -> float | None:
    """Return the share of its memory that is in use."""
    total = _memory(about)
    for kind in ("vram", "gtt"):
        size, used = (_read(about / f"mem_info_{kind}_{word}") for word in ("total", "used"))
        if total and size == str(total) and used and used.isdigit():
            return min(int(used) / total, 1.0)
    return None


def _name(compute: dict[str, str]) -> str:
    """Return ``AMD gfx942`` from the version 90402 that KFD gives."""
    version = int(compute.get("gfx_target_version", "0"))
    major, minor, step = version // 10000, version // 100 % 100, version % 100
    return f"AMD gfx{major}{minor}{step:x}" if version else "AMD GPU"


def _memory(about: Path) -> int | None:
    """Return the memory for compute: its own, or on an APU the larger share of the host's."""
    sizes = [_read(about / f"mem_info_{kind}_total") for kind in ("vram", "gtt")]
    vram, gtt = (int(size) if size and size.isdigit() else None for size in sizes)
    is_apu = vram is not None and gtt is not None and vram < 2 * 1024**3 < gtt
    return gtt if is_apu else vram


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip() or None
    except OSError:
        return None
