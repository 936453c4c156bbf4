"""NVIDIA devices through NVML, what there is and how it is; the only import of ``pynvml``.

Drivers differ in what they answer: every single call may fail, with NVML's own errors or
because the library is older than its Python binding, and costs only its own field.  A GPU
without a UUID cannot be named and is left out.  A GPU in MIG mode is not lendable itself;
its instances are.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import pynvml
import structlog

from runner.adapters.gpu.topology import link_groups
from runner.adapters.gpu.xid import bus_address, recovery_word
from runner.core.ports.devices import Device, DeviceProcess, Health

T = TypeVar("T")

SILENT: Final = (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError, UnicodeDecodeError)
"""What a call raises that this driver, this device or this mode does not answer."""

GONE: Final = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_NOT_FOUND})
"""What a driver that answers says about a device that it no longer has."""

AWAY: Final = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)
"""What is said where the driver itself has gone: begin anew."""

UNDIVIDED: Final = "it is in MIG mode and has no instances"
"""Where it has some, those are lent in its place."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class NvidiaProbe:
    """Satisfies ``runner.core.ports.devices.DeviceProbe``."""

    sys_root: Path = Path("/sys")

    def devices(self) -> tuple[Device, ...]:
        """Return every GPU or MIG instance that can be named; none where there is no driver."""
        try:
            pynvml.nvmlInit()
        except SILENT as error:
            log.debug("nvidia.none", why=str(error))
            return ()
        try:
            return tuple(self._devices())
        finally:
            with suppress(*SILENT):
                pynvml.nvmlShutdown()

    def _devices(self) -> Iterator[Device]:
        found = []
        for index in range(_query(pynvml.nvmlDeviceGetCount) or 0):
            handle = _query(pynvml.nvmlDeviceGetHandleByIndex, index)
            if handle is None:
                log.warning("nvidia.device_lost", index=index)
            else:
                found.append((index, handle, _bus(handle)))
        joined = _joined([(handle, bus) for _, handle, bus in found if bus is not None])
        for index, handle, bus in found:
            numa, label = _numa(self.sys_root, bus), f"GPU-{index}"
            if _in_mig_mode(handle):
                yield from _instances(handle, numa, label)
            else:
                yield from _device(handle, label=label, numa=numa, link_group=joined.get(bus or ""))


def _instances(handle: Any, numa: int | None, label: str) -> Iterator[Device]:  # noqa: ANN401 - a pointer
    """Yield the instances of a GPU; they have no links, and the GPU's capability."""
    parent = _query(pynvml.nvmlDeviceGetUUID, handle)
    capability = _capability(handle)
    for index in range(_query(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        instance = _query(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        if instance is not None:
            for device in _device(instance, label=f"{label}:{index}", numa=numa):
                whose = None if parent is None else _text(parent)
                yield replace(device, kind="slice", parent=whose, capability=capability)


def _device(
    handle: Any,  # noqa: ANN401 - an opaque pointer
    *,
    label: str,
    numa: int | None,
    link_group: str | None = None,
) -> Iterator[Device]:
    uuid = _query(pynvml.nvmlDeviceGetUUID, handle)
    if uuid is None:
        log.warning("nvidia.device_without_uuid")
        return
    memory = _query(pynvml.nvmlDeviceGetMemoryInfo, handle)
    yield Device(
        uuid=_text(uuid),
        vendor="nvidia",
        name=_text(_query(pynvml.nvmlDeviceGetName, handle) or "NVIDIA GPU"),
        memory_bytes=None if memory is None else int(memory.total),
        label=label,
        capability=_capability(handle),
        link_group=link_group,
        numa=numa,
    )


def _capability(handle: Any) -> tuple[int, int] | None:  # noqa: ANN401 - an opaque pointer
    answer = _query(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    return None if answer is None else (int(answer[0]), int(answer[1]))


def _bus(handle: Any) -> str | None:  # noqa: ANN401 - an opaque pointer
    where = _query(pynvml.nvmlDeviceGetPciInfo, handle)
    return None if where is None else bus_address(_text(where.busId))


def _numa(sys_root: Path, bus: str | None) -> int | None:
    """Return the memory node of a place on the bus; -1 in the file means that there is but one."""
    try:
        node = int((sys_root / f"bus/pci/devices/{bus}.0/numa_node").read_text())
    except (OSError, ValueError):
        return None
    return max(node, 0)


def _joined(devices: list[tuple[Any, str]]) -> dict[str, str]:
    """Return the island of each place on the bus that NVLink joins to another GPU."""
    there = [bus for _, bus in devices]
    pairs = [(bus, _far_end(handle, link, there)) for handle, bus in devices for link in _links(handle)]
    return link_groups("nvlink", there, [(near, far) for near, far in pairs if far is not None])


def _links(handle: Any) -> Iterator[int]:  # noqa: ANN401 - an opaque pointer
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        state = _query(pynvml.nvmlDeviceGetNvLinkState, handle, link)
        if state is None:  # no such link, and so none behind it
            return
        if state == pynvml.NVML_FEATURE_ENABLED:
            yield link


def _far_end(handle: Any, link: int, there: list[str]) -> str | None:  # noqa: ANN401 - an opaque pointer
    """Return the GPU at the other end of a link, or one name for all switches: they join everything."""
    far = _query(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
    bus = None if far is None else bus_address(_text(far.busId))
    if bus in there:
        return bus
    kind = _query(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
    return "switch" if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH else None


def _in_mig_mode(handle: Any) -> bool:  # noqa: ANN401 - an opaque pointer
    mode = _query(pynvml.nvmlDeviceGetMigMode, handle)
    return mode is not None and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE


def _query(call: Callable[..., T], *arguments: object) -> T | None:
    """Return the answer, or None where there is none."""
    try:
        return call(*arguments)
    except SILENT:
        return None


def _text(answer: str | bytes) -> str:
    """Return text from what some versions of the binding give as bytes."""
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer


@dataclass(slots=True)
class NvidiaHealth:
    """Satisfies ``runner.core.ports.devices.DeviceHealth``."""

    _ready: bool = False
    _events: "_Events | None" = None
    _beyond: set[str] = field(default_factory=set)  # devices of which more memory is in use than there is

    def look(self, devices: tuple[Device, ...]) -> Mapping[str, Health]:
        """Return how each device is; of a driver that does not answer nothing is known."""
        if not self._begun():
            self._events = None
            return {}
        self._events = self._events or _Events()
        happened = self._events.since_last()
        found = {device.uuid: self._health(device) for device in devices}
        return {uuid: self._events.added(uuid, health, happened) for uuid, health in found.items()}

    def _begun(self) -> bool:
        if not self._ready:
            with suppress(*SILENT):
                pynvml.nvmlInit()
                self._ready = True
        return self._ready

    def _health(self, device: Device) -> Health:
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(device.uuid)
            divided = device.kind != "slice" and _in_mig_mode(handle)
            examined = _examined(handle, self._memory(device.uuid, handle))
            return replace(examined, unusable=UNDIVIDED if divided else None)
        except pynvml.NVMLError as error:
            if error.value in AWAY:
                self._ready = False
            return Health(lost=True if error.value in GONE else None)
        except SILENT:
            return Health()

    def _memory(self, uuid: str, handle: Any) -> tuple[int, int] | None:  # noqa: ANN401 - an opaque pointer
        """Return how many bytes of a device are in use, and how many there are; what cannot be is noted once.

        Raises:
            NVMLError: the device is lost.
        """
        answer = _present(pynvml.nvmlDeviceGetMemoryInfo, handle)
        if answer is None:
            return None
        used, total = int(answer.used), int(answer.total)
        if not 0 < total < used:
            self._beyond.discard(uuid)
            return used, total
        if uuid not in self._beyond:
            log.warning("nvidia.memory_beyond", device=uuid, used_bytes=used, total_bytes=total)
        self._beyond.add(uuid)
        return total, total


class _Events:
    """The Xids that the driver reports as events: for daemons that may not read the kernel's log."""

    def __init__(self) -> None:
        self._set = _query(pynvml.nvmlEventSetCreate)
        self._buses: dict[str, str | None] = {}  # of devices that are listened to, by UUID

    def since_last(self) -> dict[str, tuple[int, ...]]:
        """Return the codes that have been reported since the last call, by place on the bus."""
        found: dict[str, tuple[int, ...]] = {}
        while self._set is not None and (event := _query(pynvml.nvmlEventSetWait_v2, self._set, 0)):
            where = _query(pynvml.nvmlDeviceGetPciInfo, event.device)
            bus = None if where is None else bus_address(_text(where.busId))
            if bus is not None:
                found[bus] = (*found.get(bus, ()), int(event.eventData))
        return found

    def added(self, uuid: str, health: Health, happened: Mapping[str, tuple[int, ...]]) -> Health:
        """Return what is known of a device with its codes; None for one that nobody has listened to yet."""
        if uuid in self._buses:
            bus = self._buses[uuid]
            return replace(health, xids=happened.get(bus or "", ()))
        if health.bus is not None and self._listens(uuid):
            self._buses[uuid] = health.bus
        return health

    def _listens(self, uuid: str) -> bool:
        """Return whether the driver will report Xids of a device from now on."""
        handle = _query(pynvml.nvmlDeviceGetHandleByUUID, uuid)
        whole = _query(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle) or handle
        if self._set is None or whole is None:
            return False
        try:
            pynvml.nvmlDeviceRegisterEvents(whole, pynvml.nvmlEventTypeXidCriticalError, self._set)
        except SILENT:
            return False
        return True


def _examined(handle: Any, memory: tuple[int, int] | None) -> Health:  # noqa: ANN401 - an opaque pointer
    """Return how a device is; ``memory`` is how much of it is in use, and how much there is.

    Raises:
        NVMLError: it was lost meanwhile.
    """
    whole = _query(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle) or handle
    used = _present(pynvml.nvmlDeviceGetUtilizationRates, handle)
    where = _present(pynvml.nvmlDeviceGetPciInfo, whole)
    recovery = _recovery(whole)
    heard = any(answer is not None for answer in (memory, used, where, recovery))
    power, errors = _query(pynvml.nvmlDeviceGetPowerUsage, whole), _uncorrectable(whole)
    return Health(
        lost=False if heard else None,
        recovery=recovery,
        util=None if used is None else float(used.gpu),
        memory=memory[0] / memory[1] if memory is not None and memory[1] else None,
        bus=None if where is None else bus_address(_text(where.busId)),
        used_bytes=None if memory is None else memory[0],
        processes=_processes(handle),
        power_w=None if power is None else power / 1000,
        temperature_c=_query(pynvml.nvmlDeviceGetTemperature, whole, pynvml.NVML_TEMPERATURE_GPU),
        ecc_uncorrectable=errors,
        throttled=_throttled(whole),
    )


COMPUTE: Final = (
    pynvml.nvmlDeviceGetComputeRunningProcesses,
    pynvml.nvmlDeviceGetMPSComputeRunningProcesses,
)


def _processes(handle: Any) -> tuple[DeviceProcess, ...] | None:  # noqa: ANN401 - an opaque pointer
    """Return who computes or draws on a device, each once; None if the driver does not say who computes."""
    compute, shared = (_query(call, handle) for call in COMPUTE)
    if compute is None:
        return None
    drawing = _query(pynvml.nvmlDeviceGetGraphicsRunningProcesses, handle) or ()
    computing = {each.pid for each in (*compute, *(shared or ()))}
    used: dict[int, int | None] = {}
    for each in (*compute, *(shared or ()), *drawing):
        known, more = used.get(each.pid), each.usedGpuMemory
        used[each.pid] = known if more is None else max(int(more), known or 0)
    return tuple(DeviceProcess(pid, amount, pid not in computing) for pid, amount in sorted(used.items()))


def _uncorrectable(handle: Any) -> int | None:  # noqa: ANN401 - an opaque pointer
    kind, since = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    return _query(pynvml.nvmlDeviceGetTotalEccErrors, handle, kind, since)


HELD_DOWN: Final = {
    pynvml.nvmlClocksThrottleReasonSwPowerCap: "power cap",
    pynvml.nvmlClocksThrottleReasonHwSlowdown: "hardware slowdown",
    pynvml.nvmlClocksThrottleReasonSwThermalSlowdown: "heat",
    pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "heat (hardware)",
    pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "power brake",
}


def _throttled(handle: Any) -> tuple[str, ...] | None:  # noqa: ANN401 - an opaque pointer
    """Return what holds the clocks of a device down against its will; idleness is no such thing."""
    bits = _query(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
    if bits is None:  # the name that older drivers know
        bits = _query(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    return None if bits is None else tuple(word for bit, word in HELD_DOWN.items() if bits & bit)


def _recovery(handle: Any) -> str | None:  # noqa: ANN401 - an opaque pointer
    """Return what the driver wants done before the device is used again; None if it does not say."""
    try:
        [answer] = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
            raise
        return "gpu_reset" if error.value == pynvml.NVML_ERROR_RESET_REQUIRED else None
    return recovery_word(answer.value.uiVal) if answer.nvmlReturn == pynvml.NVML_SUCCESS else None


def _present(call: Callable[..., T], *arguments: object) -> T | None:
    """Return the answer, or None where there is none.

    Raises:
        NVMLError: the device is lost.
    """
    try:
        return call(*arguments)
    except SILENT as error:
        if getattr(error, "value", None) == pynvml.NVML_ERROR_GPU_IS_LOST:
            raise
        return None
