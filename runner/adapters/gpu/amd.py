"""Enumerates AMD devices and reads their health through sysfs, without a library.

A device is a DRM render node of the driver ``amdgpu`` that the compute driver (KFD) also has; a container
gets the node.  The files differ between generations.  Each may be missing, and then only its own field is
unknown.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import structlog

from runner.adapters.gpu.amd_metrics import Counters, throttle_reasons
from runner.adapters.gpu.topology import link_groups
from runner.core.devices.reading import Health, ProcessOnDevice
from runner.core.ports.devices import Device

VENDOR: Final = "0x1002"
KFD: Final = "class/kfd/kfd"
XGMI: Final = "11"
"""The type of an xGMI link in KFD (HSA_IOLINK_TYPE); that of PCIe is 2."""

_NODE: Final = re.compile(r"renderD\d+")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AmdProbe:
    """Satisfies ``runner.core.ports.devices.DeviceProbe``."""

    sys_root: Path = Path("/sys")
    dev_root: Path = Path("/dev")

    def devices(self) -> tuple[Device, ...]:
        """Return every AMD GPU that can compute; none if there is no driver."""
        try:
            nodes = sorted(
                (path for path in (self.sys_root / "class/drm").iterdir() if _NODE.fullmatch(path.name)),
                key=lambda path: int(path.name.removeprefix("renderD")),
            )
        except OSError:
            return ()
        compute = {each["drm_render_minor"]: each for each in _compute_nodes(self.sys_root)}
        groups = _xgmi_groups(self.sys_root, compute.values())
        cards: dict[str, list[Device]] = {}
        for path in nodes:
            node = compute.get(path.name.removeprefix("renderD"))
            if node is not None:
                cards.setdefault(_card(node), []).append(self._device(path, node, groups))
            elif _read(path / "device/vendor") == VENDOR:
                log.warning("amd.no_compute", node=path.name)
        return tuple(
            device
            for index, parts in enumerate(cards.values())
            for device in _labelled(f"GPU-{index}", parts)
        )

    def _device(self, path: Path, compute: Mapping[str, str], groups: Mapping[str, str]) -> Device:
        about = path / "device"
        serial = int(compute.get("unique_id", "0"))
        uuid = _read(about / "unique_id") or (f"{serial:016x}" if serial else None)
        numa = _number(about / "numa_node")
        return Device(
            # The UUID of ROCm; boards without a serial number are identified by their PCI address.
            uuid=f"GPU-{uuid}" if uuid else f"PCI-{about.resolve().name}",
            vendor="amd",
            name=_read(about / "product_name") or _name(compute),
            memory_bytes=_banks(self.sys_root, compute) or _memory(about),
            render_node=self.dev_root / "dri" / path.name,
            link_group=groups.get(compute["node"]),
            numa=None if numa is None else max(numa, 0),
            unified=_memory_kind(about) == "gtt",
        )


def _card(compute: Mapping[str, str]) -> str:
    """Return the part that the partitions of one card have in common: its place on the bus.

    The uppermost four bits of ``location_id`` are the number of the partition.
    """
    if "location_id" not in compute:
        return compute["node"]
    return f"{compute.get('domain', '0')}:{int(compute['location_id']) & 0x0FFFFFFF}"


def _labelled(label: str, parts: list[Device]) -> Iterator[Device]:
    """Yield the devices of one card with their names: itself, or its partitions (DPX, QPX, CPX)."""
    if len(parts) == 1:
        yield replace(parts[0], label=label)
        return
    card = parts[0]
    shared = len({each.uuid for each in parts}) < len(parts)  # older drivers know one serial number
    for number, part in enumerate(parts):
        yield replace(
            part,
            uuid=f"{card.uuid}-{number}" if shared or part.uuid.startswith("PCI-") else part.uuid,
            name=card.name,
            label=f"{label}:{number}",
            numa=card.numa,
            kind="slice",
            parent=card.uuid,
        )


def _banks(sys_root: Path, compute: Mapping[str, str]) -> int | None:
    """Return the memory of a partition; None: it is a whole card, which the driver tells better."""
    place = sys_root / KFD / "topology/nodes"
    card = _card(compute)
    if sum(_card(each) == card for each in _compute_nodes(sys_root)) < 2:
        return None
    banks = (_properties(path) for path in (place / compute["node"] / "mem_banks").glob("*/properties"))
    return sum(int(each.get("size_in_bytes", "0")) for each in banks) or None


def _compute_nodes(sys_root: Path) -> Iterator[dict[str, str]]:
    """Yield the properties of each KFD node that is a GPU, with its number."""
    for path in sorted((sys_root / KFD / "topology/nodes").glob("*/properties")):
        properties = _properties(path)
        if properties.get("drm_render_minor", "0") != "0":
            yield {**properties, "node": path.parent.name}


def _xgmi_groups(sys_root: Path, compute: Iterable[dict[str, str]]) -> dict[str, str]:
    """Return the link group of each KFD node that xGMI connects to another GPU."""
    nodes = [each["node"] for each in compute]
    links = [
        (link.get("node_from", ""), link.get("node_to", ""))
        for node in nodes
        for path in (sys_root / KFD / "topology/nodes" / node / "io_links").glob("*/properties")
        if (link := _properties(path)).get("type") == XGMI
    ]
    return link_groups("xgmi", nodes, [(near, far) for near, far in links if near in nodes and far in nodes])


def _properties(path: Path) -> dict[str, str]:
    words = [line.split() for line in (_read(path) or "").splitlines()]
    return {word[0]: word[1] for word in words if len(word) == 2}


@dataclass(slots=True)
class AmdHealth:
    """Satisfies ``runner.core.ports.devices.DeviceHealth``.

    A device that has left the bus has no directory any more.  There is no recovery action: the driver resets
    devices by itself, and does not report that a reset is needed.
    """

    sys_root: Path = Path("/sys")
    _counters: dict[str, Counters | None] = field(default_factory=dict)  # of the previous reading, by UUID

    def read(self, devices: tuple[Device, ...]) -> Mapping[str, Health]:
        """Return the health of each device with a render node; nothing if there is no driver."""
        nodes = self.sys_root / "class/drm"
        if not nodes.is_dir():
            return {}
        by_gpu = _processes(self.sys_root)
        compute = {each["drm_render_minor"]: each for each in _compute_nodes(self.sys_root)}
        found = {}
        for device in devices:
            if device.render_node is not None:
                minor = device.render_node.name.removeprefix("renderD")
                gpu_id = _gpu_id(self.sys_root, compute.get(minor))
                processes = None if by_gpu is None or gpu_id is None else tuple(by_gpu.get(gpu_id, ()))
                node = nodes / device.render_node.name
                if device.kind == "slice" and node.is_dir():
                    health = _part(_health(_whole(nodes, minor, compute), processes))
                else:
                    health = _health(node, processes)
                found[device.uuid] = replace(health, throttled=self._throttled(device.uuid, node))
        return found

    def _throttled(self, uuid: str, node: Path) -> tuple[str, ...] | None:
        """Return the reasons for throttled clocks of a device; None if its driver does not report it."""
        try:
            raw = (node / "device/gpu_metrics").read_bytes()
        except OSError:  # an older driver; or a device that is suspended, and must not be woken
            raw = b""
        found, self._counters[uuid] = throttle_reasons(raw, self._counters.get(uuid))
        return found


def _whole(nodes: Path, minor: str, compute: Mapping[str, dict[str, str]]) -> Path:
    """Return the node of the whole card that a partition is part of: sensors are only there."""
    card = _card(compute[minor]) if minor in compute else None
    parts = sorted((each for each in compute if _card(compute[each]) == card), key=int)
    return nodes / f"renderD{next(iter(parts), minor)}"


def _part(card: Health) -> Health:
    """Return the health of a partition: that of its card, with what its own processes use."""
    used = None if card.processes is None else sum(each.used_bytes or 0 for each in card.processes)
    return replace(card, util=None, memory=None, used_bytes=used)


def _health(node: Path, processes: tuple[ProcessOnDevice, ...] | None) -> Health:
    if not node.is_dir():
        return Health(lost=True)
    about = node / "device"
    if _read(about / "vendor") is None:
        return Health()
    busy, used, total = _number(about / "gpu_busy_percent"), _used_bytes(about), _memory(about)
    used = min(used, total) if used is not None and total else used  # the two are read one after the other
    power = _sensor(about, "power1_average") or _sensor(about, "power1_input")
    heat, energy_uj = _sensor(about, "temp1_input"), _sensor(about, "energy1_input")
    errors = re.search(r"ue:\s*(\d+)", _read(about / "ras/umc_err_count") or "")
    return Health(
        lost=False,
        util=None if busy is None else float(busy),
        memory=used / total if used is not None and total else None,
        bus=about.resolve().name,
        used_bytes=used,
        processes=processes,
        power_w=None if power is None else power / 1e6,
        energy_j=None if energy_uj is None else energy_uj / 1e6,
        temperature_c=None if heat is None else heat / 1e3,
        ecc_uncorrectable=int(errors[1]) if errors else None,
    )


def _processes(sys_root: Path) -> dict[str, list[ProcessOnDevice]] | None:
    """Return the processes with memory or queues on each device by its KFD id; None if they are unknown.

    KFD lists a process that has only opened ``/dev/kfd`` for every device; it uses none of them.
    """
    try:
        processes = sorted(path for path in (sys_root / KFD / "proc").iterdir() if path.name.isdigit())
    except OSError:
        return None
    found: dict[str, list[ProcessOnDevice]] = {}
    for path in processes:
        queues = {_read(queue / "gpuid") or "" for queue in path.glob("queues/*")} - {""}
        amounts = {file.name.removeprefix("vram_"): _number(file) or 0 for file in path.glob("vram_*")}
        for gpu_id in sorted(queues | {each for each, amount in amounts.items() if amount}):
            used = ProcessOnDevice(int(path.name), used_bytes=amounts.get(gpu_id))
            found.setdefault(gpu_id, []).append(used)
    return found


def _gpu_id(sys_root: Path, compute: dict[str, str] | None) -> str | None:
    return None if compute is None else _read(sys_root / KFD / "topology/nodes" / compute["node"] / "gpu_id")


def _sensor(about: Path, name: str) -> int | None:
    """Return the value of a sensor; the number of its directory differs between hosts."""
    return next((each for path in about.glob(f"hwmon/*/{name}") if (each := _number(path)) is not None), None)


def _used_bytes(about: Path) -> int | None:
    """Return the used bytes of the compute memory."""
    kind = _memory_kind(about)
    return None if kind is None else _number(about / f"mem_info_{kind}_used")


def _name(compute: Mapping[str, str]) -> str:
    """Return a name such as ``AMD gfx942``, which KFD encodes as 90402."""
    version = int(compute.get("gfx_target_version", "0"))
    major, minor, step = version // 10000, version // 100 % 100, version % 100
    return f"AMD gfx{major}{minor}{step:x}" if version else "AMD GPU"


def _memory_kind(about: Path) -> str | None:
    """Return the kind of the compute memory: its own, or on an APU the larger share of the host's memory."""
    vram, gtt = (_number(about / f"mem_info_{kind}_total") for kind in ("vram", "gtt"))
    is_apu = vram is not None and gtt is not None and vram < 2 * 1024**3 < gtt
    return "gtt" if is_apu else None if vram is None else "vram"


def _memory(about: Path) -> int | None:
    kind = _memory_kind(about)
    return None if kind is None else _number(about / f"mem_info_{kind}_total")


def _number(path: Path) -> int | None:
    text = _read(path)
    return int(text) if text and re.fullmatch(r"-?\d+", text) else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip() or None
    except OSError:
        return None
