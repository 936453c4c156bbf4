"""NVIDIA devices through NVML, and the only import of ``pynvml``.

Drivers differ in what they answer: every single call may fail, with NVML's own errors or
because the library is older than its Python binding, and costs only its own field.  A GPU
without a UUID cannot be named and is left out.  A GPU in MIG mode is not lendable itself;
its instances are.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final, TypeVar

import pynvml
import structlog

from runner.ports import Device

T = TypeVar("T")

SILENT: Final = (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError, UnicodeDecodeError)
"""What a call raises that this driver, this device or this mode does not answer."""

log = structlog.get_logger(__name__)


class NvidiaProbe:
    """Satisfies ``runner.ports.DeviceProbe``."""

    def devices(self) -> tuple[Device, ...]:
        """Return every GPU or MIG instance that can be named; none where there is no driver."""
        try:
            pynvml.nvmlInit()
        except SILENT as error:
            log.debug("nvidia.none", why=str(error))
            return ()
        try:
            return tuple(_devices())
        finally:
            with suppress(*SILENT):
                pynvml.nvmlShutdown()


def _devices() -> Iterator[Device]:
    for index in range(_asked(pynvml.nvmlDeviceGetCount) or 0):
        handle = _asked(pynvml.nvmlDeviceGetHandleByIndex, index)
        if handle is None:
            log.warning("nvidia.device_lost", index=index)
        elif _in_mig_mode(handle):
            yield from _instances(handle)
        else:
            yield from _device(handle)


def _instances(handle: Any) -> Iterator[Device]:  # noqa: ANN401 - an opaque pointer
    for index in range(_asked(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        instance = _asked(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        if instance is not None:
            yield from _device(instance)


def _device(handle: Any) -> Iterator[Device]:  # noqa: ANN401 - an opaque pointer
    uuid = _asked(pynvml.nvmlDeviceGetUUID, handle)
    if uuid is None:
        log.warning("nvidia.device_without_uuid")
        return
    memory = _asked(pynvml.nvmlDeviceGetMemoryInfo, handle)
    yield Device(
        uuid=_text(uuid),
        vendor="nvidia",
        name=_text(_asked(pynvml.nvmlDeviceGetName, handle) or "NVIDIA GPU"),
        memory_bytes=None if memory is None else int(memory.total),
    )


def _in_mig_mode(handle: Any) -> bool:  # noqa: ANN401 - an opaque pointer
    mode = _asked(pynvml.nvmlDeviceGetMigMode, handle)
    return mode is not None and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE


def _asked(call: Callable[..., T], *arguments: object) -> T | None:
    """Return the answer, or None where there is none."""
    try:
        return call(*arguments)
    except SILENT:
        return None


def _text(answer: str | bytes) -> str:
    """Return text from what some versions of the binding give as bytes."""
    return answer.decode(errors="replace") if isinstance(answer, bytes) else answer
