"""How much memory the training takes: allocated, reserved and at its peak, when the profile wants it said."""

from dataclasses import dataclass

import torch

from jobs.contract import Profile
from jobs.report import Reporter, resident_bytes, say, warn

HEADROOM = 0.9
"""A peak above this share of the device's memory is worth a warning."""

MIB = 1024**2


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
