"""Enumerates NVIDIA devices and reads their health through NVML; the only import of ``pynvml``.

Drivers differ in what they support.  Each call may fail, with an error of NVML or because the library is
older than its Python binding, and then only its own field is unknown.  A GPU without a UUID is left out.  A
GPU in MIG mode is not allocated itself; its instances are.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import pynvml
import structlog

from runner.adapters.gpu.topology import gpus_on_bus, link_groups
from runner.adapters.gpu.xid import bus_address, recovery_action
from runner.core.devices.reading import Health, ProcessOnDevice
from runner.core.doctor import NvidiaFacts, NvidiaGpu
from runner.core.ports.devices import Device

T = TypeVar("T")

VENDOR: Final = "0x10de"
"""NVIDIA on the PCI bus."""

UNSUPPORTED: Final = (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError, UnicodeDecodeError)
"""Errors of a call that this driver, device or mode does not support."""

LOST_CODES: Final = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_NOT_FOUND})
"""Errors of a working driver about a device that it has lost."""

UNLOADED_CODES: Final = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)
"""Errors that mean that the driver was unloaded or replaced; NVML must be initialised again."""

NO_INSTANCES: Final = "it is in MIG mode and has no instances"
"""Reason for which a GPU in MIG mode is unusable; its instances, if any, are allocated in its place."""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class NvidiaProbe:
    """Satisfies ``runner.core.ports.devices.DeviceProbe``."""

    sys_root: Path = Path("/sys")
    problem: str | None = None
    """NVML's reason that there was no device at the last look, on a machine that has a GPU or the driver."""

    def devices(self) -> tuple[Device, ...]:
        """Return every GPU or MIG instance that has a UUID; none if there is no driver."""
        try:
            pynvml.nvmlInit()
        except UNSUPPORTED as error:
            log.debug("nvidia.none", why=str(error))
            there = (self.sys_root / "module/nvidia").exists() or gpus_on_bus(self.sys_root, VENDOR)
            self.problem = str(error).rstrip(".") if there else None
            return ()
        self.problem = None
        try:
            return tuple(self._devices())
        finally:
            with suppress(*UNSUPPORTED):
                pynvml.nvmlShutdown()

    def _devices(self) -> Iterator[Device]:
        found = []
        for index in range(_query(pynvml.nvmlDeviceGetCount) or 0):
            handle = _query(pynvml.nvmlDeviceGetHandleByIndex, index)
            if handle is None:
                log.warning("nvidia.device_lost", index=index)
            else:
                found.append((index, handle, _pci_address(handle)))
        groups = _nvlink_groups([(handle, bus) for _, handle, bus in found if bus is not None])
        for index, handle, bus in found:
            numa, label = _numa(self.sys_root, bus), f"GPU-{index}"
            if _in_mig_mode(handle):
                yield from _instances(handle, numa, label)
            else:
                yield from _device(handle, label=label, numa=numa, link_group=groups.get(bus or ""))


def driver_version(sys_root: Path = Path("/sys")) -> str | None:
    """Return the version of the driver, None if there is none; a driver that hangs is not asked."""
    try:
        return (sys_root / "module/nvidia/version").read_text().strip()
    except OSError:
        return describe_driver().driver


def describe_driver() -> NvidiaFacts:
    """Return the facts of NVML about the driver and each GPU; ``nvml_error`` says why it does not answer."""
    try:
        pynvml.nvmlInit()
    except UNSUPPORTED as error:
        return NvidiaFacts(nvml_error=str(error))
    try:
        driver = _query(pynvml.nvmlSystemGetDriverVersion)
        cuda = _query(pynvml.nvmlSystemGetCudaDriverVersion_v2)
        return NvidiaFacts(
            driver=None if driver is None else _text(driver),
            cuda=None if not cuda else (int(cuda) // 1000, int(cuda) % 1000 // 10),
            gpus=tuple(_described(index) for index in range(_query(pynvml.nvmlDeviceGetCount) or 0)),
            given=tuple((each.label, each.uuid) for each in NvidiaProbe().devices()),
        )
    finally:
        with suppress(*UNSUPPORTED):
            pynvml.nvmlShutdown()


def _described(index: int) -> NvidiaGpu:
    handle, name = _query(pynvml.nvmlDeviceGetHandleByIndex, index), f"GPU-{index}"
    if handle is None:
        return NvidiaGpu(name, "NVIDIA GPU", unusable="the driver has lost it")
    mode = _query(pynvml.nvmlDeviceGetPersistenceMode, handle)
    remapped = _query(pynvml.nvmlDeviceGetRemappedRows, handle)
    return NvidiaGpu(
        name,
        _text(_query(pynvml.nvmlDeviceGetName, handle) or "NVIDIA GPU"),
        _capability(handle),
        None if mode is None else mode == pynvml.NVML_FEATURE_ENABLED,
        _uncorrectable(handle),
        None if remapped is None else int(remapped[0]) + int(remapped[1]),
    )


def _instances(handle: Any, numa: int | None, label: str) -> Iterator[Device]:
    """Yield the MIG instances of a GPU; they have its capability, and no links."""
    parent = _query(pynvml.nvmlDeviceGetUUID, handle)
    capability = _capability(handle)
    for index in range(_query(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        instance = _query(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        if instance is not None:
            for device in _device(instance, label=f"{label}:{index}", numa=numa):
                parent_uuid = None if parent is None else _text(parent)
                yield replace(device, kind="slice", parent=parent_uuid, capability=capability)


def _device(
    handle: Any,
    *,
    label: str,
    numa: int | None,
    link_group: str | None = None,
) -> Iterator[Device]:
    uuid = _query(pynvml.nvmlDeviceGetUUID, handle)
    if uuid is None:
        log.warning("nvidia.device_without_uuid")
        return
    memory, unified = _memory_of(handle)
    yield Device(
        uuid=_text(uuid),
        vendor="nvidia",
        name=_text(_query(pynvml.nvmlDeviceGetName, handle) or "NVIDIA GPU"),
        memory_bytes=memory,
        label=label,
        capability=_capability(handle),
        link_group=link_group,
        numa=numa,
        unified=unified,
    )


def _memory_of(handle: Any) -> tuple[int | None, bool]:
    """Return the memory of a device, and whether it is the host's, as that of a GB10, which reports none."""
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total), False
    except UNSUPPORTED as error:
        if getattr(error, "value", None) != pynvml.NVML_ERROR_NOT_SUPPORTED:
            return None, False
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), True


def _capability(handle: Any) -> tuple[int, int] | None:
    answer = _query(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    return None if answer is None else (int(answer[0]), int(answer[1]))


def _pci_address(handle: Any) -> str | None:
    where = _query(pynvml.nvmlDeviceGetPciInfo, handle)
    return None if where is None else bus_address(_text(where.busId))


def _numa(sys_root: Path, bus: str | None) -> int | None:
    """Return the NUMA node of a PCI address; -1 in the file means that the host has only one."""
    try:
        node = int((sys_root / f"bus/pci/devices/{bus}.0/numa_node").read_text())
    except (OSError, ValueError):
        return None
    return max(node, 0)


def _nvlink_groups(devices: list[tuple[Any, str]]) -> dict[str, str]:
    """Return the link group of each PCI address that NVLink connects to another GPU."""
    addresses = [bus for _, bus in devices]
    pairs = [(bus, _far_end(handle, link, addresses)) for handle, bus in devices for link in _links(handle)]
    return link_groups("nvlink", addresses, [(near, far) for near, far in pairs if far is not None])


def _links(handle: Any) -> Iterator[int]:
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        state = _query(pynvml.nvmlDeviceGetNvLinkState, handle, link)
        if state is None:  # there is no such link, and none with a higher number
            return
        if state == pynvml.NVML_FEATURE_ENABLED:
            yield link


def _far_end(handle: Any, link: int, addresses: list[str]) -> str | None:
    """Return the GPU at the other end of a link, or one name for all switches, which connect all GPUs."""
    far = _query(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
    bus = None if far is None else bus_address(_text(far.busId))
    if bus in addresses:
        return bus
    kind = _query(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
    return "switch" if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH else None


def _in_mig_mode(handle: Any) -> bool:
    mode = _query(pynvml.nvmlDeviceGetMigMode, handle)
    return mode is not None and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE


def _query(call: Callable[..., T], *arguments: object) -> T | None:
    """Return the result of a call, or None if it is unsupported."""
    try:
        return call(*arguments)
    except UNSUPPORTED:
        return None


def _text(answer: str | bytes) -> str:
    """Return text; some versions of the binding return bytes."""
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer


@dataclass(slots=True)
class NvidiaHealth:
    """Satisfies ``runner.core.ports.devices.DeviceHealth``."""

    _ready: bool = False
    _events: "_Events | None" = None
    _implausible: set[str] = field(default_factory=set)  # devices whose used memory exceeds their memory

    def read(self, devices: tuple[Device, ...]) -> Mapping[str, Health]:
        """Return the health of each device; nothing if the driver does not answer."""
        if not self._initialise():
            self._events = None
            return {}
        self._events = self._events or _Events()
        codes = self._events.since_last()
        found = {device.uuid: self._health(device) for device in devices}
        return {uuid: self._events.with_codes(uuid, health, codes) for uuid, health in found.items()}

    def _initialise(self) -> bool:
        if not self._ready:
            with suppress(*UNSUPPORTED):
                pynvml.nvmlInit()
                self._ready = True
        return self._ready

    def _health(self, device: Device) -> Health:
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(device.uuid)
            in_mig_mode = device.kind != "slice" and _in_mig_mode(handle)
            health = _read_health(handle, self._memory(device.uuid, handle))
            return replace(health, unusable=NO_INSTANCES if in_mig_mode else None)
        except pynvml.NVMLError as error:
            if error.value in UNLOADED_CODES:
                self._ready = False
            return Health(lost=True if error.value in LOST_CODES else None)
        except UNSUPPORTED:
            return Health()

    def _memory(self, uuid: str, handle: Any) -> tuple[int, int] | None:
        """Return the used and the total bytes of a device; implausible ones are clamped, and logged once."""
        answer = _query_unless_lost(pynvml.nvmlDeviceGetMemoryInfo, handle)
        if answer is None:
            return None
        used, total = int(answer.used), int(answer.total)
        if not 0 < total < used:
            self._implausible.discard(uuid)
            return used, total
        if uuid not in self._implausible:
            log.warning("nvidia.memory_beyond", device=uuid, used_bytes=used, total_bytes=total)
        self._implausible.add(uuid)
        return total, total


class _Events:
    """The Xids that the driver reports as events, for daemons that may not read the kernel log."""

    def __init__(self) -> None:
        self._set = _query(pynvml.nvmlEventSetCreate)
        self._buses: dict[str, str | None] = {}  # of the devices whose events are registered, by UUID

    def since_last(self) -> dict[str, tuple[int, ...]]:
        """Return the codes that were reported since the last call, by PCI address."""
        found: dict[str, tuple[int, ...]] = {}
        while self._set is not None and (event := _query(pynvml.nvmlEventSetWait_v2, self._set, 0)):
            where = _query(pynvml.nvmlDeviceGetPciInfo, event.device)
            bus = None if where is None else bus_address(_text(where.busId))
            if bus is not None:
                found[bus] = (*found.get(bus, ()), int(event.eventData))
        return found

    def with_codes(self, uuid: str, health: Health, codes: Mapping[str, tuple[int, ...]]) -> Health:
        """Return the health of a device with its codes, which are unknown until its events are registered."""
        if uuid in self._buses:
            bus = self._buses[uuid]
            return replace(health, xids=codes.get(bus or "", ()))
        if health.bus is not None and self._register(uuid):
            self._buses[uuid] = health.bus
        return health

    def _register(self, uuid: str) -> bool:
        """Register for the Xids of a device, and return whether the driver will report them."""
        handle = _query(pynvml.nvmlDeviceGetHandleByUUID, uuid)
        whole = _query(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle) or handle
        if self._set is None or whole is None:
            return False
        try:
            pynvml.nvmlDeviceRegisterEvents(whole, pynvml.nvmlEventTypeXidCriticalError, self._set)
        except UNSUPPORTED:
            return False
        return True


def _read_health(handle: Any, memory: tuple[int, int] | None) -> Health:
    """Return the health of a device; ``memory`` is its used and its total bytes; may raise NVMLError."""
    whole = _query(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle) or handle
    used = _query_unless_lost(pynvml.nvmlDeviceGetUtilizationRates, handle)
    where = _query_unless_lost(pynvml.nvmlDeviceGetPciInfo, whole)
    recovery = _recovery(whole)
    answered = any(answer is not None for answer in (memory, used, where, recovery))
    power, errors = _query(pynvml.nvmlDeviceGetPowerUsage, whole), _uncorrectable(whole)
    energy_mj = _query(pynvml.nvmlDeviceGetTotalEnergyConsumption, whole)
    return Health(
        lost=False if answered else None,
        recovery=recovery,
        util=None if used is None else float(used.gpu),
        memory=memory[0] / memory[1] if memory is not None and memory[1] else None,
        bus=None if where is None else bus_address(_text(where.busId)),
        used_bytes=None if memory is None else memory[0],
        processes=_processes(handle),
        power_w=None if power is None else power / 1000,
        energy_j=None if energy_mj is None else energy_mj / 1000,
        temperature_c=_query(pynvml.nvmlDeviceGetTemperature, whole, pynvml.NVML_TEMPERATURE_GPU),
        ecc_uncorrectable=errors,
        throttled=_throttled(whole),
    )


COMPUTE_PROCESSES: Final = (
    pynvml.nvmlDeviceGetComputeRunningProcesses,
    pynvml.nvmlDeviceGetMPSComputeRunningProcesses,
)


def _processes(handle: Any) -> tuple[ProcessOnDevice, ...] | None:
    """Return the processes of a device; None if the driver does not report those that compute."""
    compute, shared = (_query(call, handle) for call in COMPUTE_PROCESSES)
    if compute is None:
        return None
    drawing = _query(pynvml.nvmlDeviceGetGraphicsRunningProcesses, handle) or ()
    computing = {each.pid for each in (*compute, *(shared or ()))}
    used: dict[int, int | None] = {}
    for each in (*compute, *(shared or ()), *drawing):
        known, more = used.get(each.pid), each.usedGpuMemory
        used[each.pid] = known if more is None else max(int(more), known or 0)
    return tuple(
        ProcessOnDevice(pid, used_bytes=amount, draws=pid not in computing)
        for pid, amount in sorted(used.items())
    )


def _uncorrectable(handle: Any) -> int | None:
    kind, since = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    return _query(pynvml.nvmlDeviceGetTotalEccErrors, handle, kind, since)


THROTTLE_REASONS: Final = {
    pynvml.nvmlClocksThrottleReasonSwPowerCap: "power cap",
    pynvml.nvmlClocksThrottleReasonHwSlowdown: "hardware slowdown",
    pynvml.nvmlClocksThrottleReasonSwThermalSlowdown: "heat",
    pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "heat (hardware)",
    pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "power brake",
}


def _throttled(handle: Any) -> tuple[str, ...] | None:
    """Return the reason why the clocks of a device are throttled; idle clocks are not throttled."""
    bits = _query(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
    if bits is None:  # the name in older drivers
        bits = _query(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    return None if bits is None else tuple(reason for bit, reason in THROTTLE_REASONS.items() if bits & bit)


def _recovery(handle: Any) -> str | None:
    """Return the recovery action that the driver requires; None if it does not report one."""
    try:
        [answer] = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
            raise
        return "gpu_reset" if error.value == pynvml.NVML_ERROR_RESET_REQUIRED else None
    return recovery_action(answer.value.uiVal) if answer.nvmlReturn == pynvml.NVML_SUCCESS else None


def _query_unless_lost(call: Callable[..., T], *arguments: object) -> T | None:
    """Return the answer, or None where there is none; may raise NVMLError."""
    try:
        return call(*arguments)
    except UNSUPPORTED as error:
        if getattr(error, "value", None) == pynvml.NVML_ERROR_GPU_IS_LOST:
            raise
        return None
