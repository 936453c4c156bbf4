"""How much memory the training takes: allocated, reserved and at its peak; and what stays between steps."""

import ctypes
import os
from dataclasses import dataclass
from typing import Final

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
"""As much freed memory may stay with the process."""
MAPPED_BYTES: Final = 32 * MIB
"""Larger pieces have mappings of their own: the most that the C library accepts."""
OWN_WORDS: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")
"""With these in the environment somebody has decided for himself."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes; on a CPU all three are what is resident."""

    allocated: int
    reserved: int
    peak: int
    total: int | None = None


def memory(device: torch.device) -> Memory:
    """Return what is in use now, and the most that was since the peak was last forgotten."""
    if device.type == "cuda":
        return Memory(
            torch.cuda.memory_allocated(device),
            torch.cuda.memory_reserved(device),
            torch.cuda.max_memory_reserved(device),
            torch.cuda.get_device_properties(device).total_memory,
        )
    resident = resident_bytes() or 0
    return Memory(resident, resident, resident)


def keep_freed_memory() -> bool:
    """Let the C library keep what a step frees for the next one; return whether it will.

    Left alone it gives the top of its heap back to the system at the end of a step, and the next step
    gets it again page by page, each of which is a fault and a page of zeros.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any(os.environ.get(name) for name in OWN_WORDS):
        return False
    return bool(mallopt(M_TRIM_THRESHOLD, KEPT_BYTES) and mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES))


class MemoryLog:
    """Says how much memory is in use at an interval, per epoch, or never; gives cached memory back."""

    def __init__(self, profile: Profile, device: torch.device, steps_per_epoch: int) -> None:
        self._profile = profile
        self._device = device
        self._epoch = steps_per_epoch
        self._warned = False

    def stepped(self, step: int, reporter: Reporter) -> None:
        """Do what is due after a step."""
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
