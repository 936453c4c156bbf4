"""Memory of the training: allocated, reserved and peak bytes, and reuse of freed memory between steps."""

import ctypes
import os
from dataclasses import dataclass
from typing import Final, Protocol

import torch

from jobs.contract import Profile
from jobs.training.report import Reporter, resident_bytes, say, warn

HEADROOM = 0.9
"""A peak above this share of the device's memory is worth a warning."""

MIB = 1024**2

M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
"""Parameters of mallopt(3), as in ``malloc.h``."""
KEPT_BYTES: Final = 1024 * MIB
"""The freed memory that the C library may keep at the top of its heap (M_TRIM_THRESHOLD)."""
MAPPED_BYTES: Final = 32 * MIB
"""Larger allocations use mmap; this is the largest threshold that the C library accepts."""
OWN_WORDS: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")
"""The environment variables by which a user configures malloc; if one is set, it takes precedence."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory in bytes; on a CPU the first three figures are the resident memory."""

    allocated: int
    reserved: int
    peak: int
    total: int | None = None


def memory(device: torch.device) -> Memory:
    """Return the memory in use now, and the peak since the peak statistics were last reset."""
    if device.type == "cuda":
        return Memory(
            torch.cuda.memory_allocated(device),
            torch.cuda.memory_reserved(device),
            torch.cuda.max_memory_reserved(device),
            torch.cuda.get_device_properties(device).total_memory,
        )
    resident = resident_bytes() or 0
    return Memory(resident, resident, resident)


class Room(Protocol):
    """The device memory that a training may take, and how much of it was needed."""

    @property
    def capacity_bytes(self) -> int: ...

    def begin(self) -> None:
        """Measure the peak from now on."""

    def peak_bytes(self) -> int:
        """Return the largest number of bytes that was in use since ``begin``."""


class DeviceRoom:
    """The memory of a GPU that other processes do not occupy, within the limit of this process."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @property
    def capacity_bytes(self) -> int:
        free, total = torch.cuda.mem_get_info(self._device)
        limit = total * torch.cuda.get_per_process_memory_fraction(self._device)
        return int(min(limit, free + torch.cuda.memory_reserved(self._device)))

    def begin(self) -> None:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak_bytes(self) -> int:
        return torch.cuda.max_memory_reserved(self._device)


def room(device: torch.device) -> Room | None:
    """Return the memory of a device, None for a CPU: its memory is the host's, and is not measured."""
    return DeviceRoom(device) if device.type == "cuda" else None


def keep_freed_memory() -> bool:
    """Make the C library keep freed memory for the next step, and return whether it does.

    By default, the C library returns the top of its heap to the system at the end of a step.  The next
    step then gets the memory back page by page, at the cost of a page fault and zeroing for each page.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any(os.environ.get(name) for name in OWN_WORDS):
        return False
    return bool(mallopt(M_TRIM_THRESHOLD, KEPT_BYTES) and mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES))


class MemoryLog:
    """Logs the memory in use at an interval, per epoch or never, and releases cached device memory."""

    def __init__(self, profile: Profile, device: torch.device, steps_per_epoch: int) -> None:
        self._profile = profile
        self._device = device
        self._epoch = steps_per_epoch
        self._warned = False

    def stepped(self, step: int, reporter: Reporter) -> None:
        """Write the log line and release cached memory if they are due after a step."""
        if self._is_due(step):
            self._write(step, reporter)
        every = self._profile.memory_cleanup_every
        if every and step % every == 0 and self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _is_due(self, step: int) -> bool:
        match self._profile.memory_log:
            case "off":
                return False
            case "interval":
                return step % self._profile.memory_log_every == 0
            case "epoch":
                return step % self._epoch == 0

    def _write(self, step: int, reporter: Reporter) -> None:
        now = memory(self._device)
        reporter.metric(
            step=step, memory_allocated=now.allocated, memory_reserved=now.reserved, memory_peak=now.peak
        )
        say(
            f"step {step}  memory allocated {now.allocated / MIB:,.0f} MiB,"
            f" reserved {now.reserved / MIB:,.0f} MiB, peak {now.peak / MIB:,.0f} MiB"
        )
        self._warn(now)
        if self._device.type == "cuda" and step % self._epoch == 0:
            torch.cuda.reset_peak_memory_stats(self._device)

    def _warn(self, now: Memory) -> None:
        if now.total and now.peak > HEADROOM * now.total and not self._warned:
            self._warned = True
            share = now.peak / now.total
            warn(f"{share:.0%} of the device's memory was in use; a larger batch will not fit")
