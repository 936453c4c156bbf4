"""Supply of batches from a source to the device: loader processes, placement and transfer.

Any process can make any batch (``jobs.workloads.protocol.Source``).  Loader processes get step numbers
and return batches in order, so they change only the speed.
"""

import ctypes
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import torch
from torch.utils.data import DataLoader, Dataset

from jobs.training import batches
from jobs.training.batches import Batch
from jobs.training.device import Device
from jobs.training.failures import NoBatch
from jobs.training.memory import MIB
from jobs.training.report import say
from jobs.training.switches import Switches
from jobs.workloads.protocol import KeptBatches, Source

RESIDENT_SHARE: Final = 0.3
"""The largest share of the device's free memory for a resident data set; the training needs the rest."""

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - shared memory of loader processes, no scratch file
"""The tmpfs for batches of loader processes; in a container its size is ``resources.shm``."""

PATIENCE_S: Final = 300.0
"""Timeout for a batch of a loader process: this, or ``PATIENCE`` times the trainer's own time if longer."""

PATIENCE: Final = 50.0

IN_USE: Final = 2
"""Number of batches that the trainer holds in shared memory: the current one and the next one."""

_PR_SET_PDEATHSIG: Final = 1


class Feed:
    """Supplies the batch of every step, in order, and the held-out batches."""

    def __init__(self, source: Source, switches: Switches, device: Device, plan_steps: int) -> None:
        self._profile = switches.profile
        self._device = device.torch_device
        self._steps = plan_steps
        self._pinned = False
        self.source = _place(source, switches, device)
        self._pinned = switches.report()["placement"].applied == "pinned"
        self._loader: Iterator[Batch] | None = None
        self._held_out: DataLoader[Batch] | None = None
        self._ahead: tuple[int, Batch] | None = None
        self._patience_s = PATIENCE_S
        _tell(switches, device)
        self._workers = self._fitting_workers(switches)
        self._verify_clones(switches)

    def begin(self, step: int) -> None:
        """Start the loader processes, if any, for the batches from this step on."""
        if self._workers:
            self._loader = iter(
                self._processes(_Steps(self.source), range(step, self._steps), persistent=False)
            )

    def take(self, step: int) -> Batch:
        """Return the batch of a step, in the memory that the placement selects.

        Raises:
            NoBatch: The loader processes do not deliver a batch in time.
        """
        ahead, self._ahead = self._ahead, None
        if ahead and ahead[0] == step:
            return ahead[1]
        batch = self.source.batch(step) if self._loader is None else self._next(self._loader)
        return self._prepared(batch)

    def look_ahead(self, step: int) -> None:
        """Prepare the next batch while the device computes the current step."""
        if self._device.type == "cuda" and self._profile.non_blocking and step < self._steps:
            self._ahead = (step, self.take(step))

    def held_out(self, count: int) -> Iterator[Batch]:
        """Yield the first held-out batches.

        Raises:
            NoBatch: The loader processes do not deliver a batch in time.
        """
        if not self._workers:
            yield from (self._prepared(self.source.held_out(index)) for index in range(count))
            return
        if self._held_out is None or not self._profile.loader_persistent:
            persistent = self._profile.loader_persistent
            self._held_out = self._processes(_HeldOut(self.source), range(count), persistent=persistent)
        batches_ahead = iter(self._held_out)
        for _ in range(count):
            yield self._prepared(self._next(batches_ahead))
        next(batches_ahead, None)  # reach the end, so that persistent workers can start another pass

    def to_device(self, batch: Batch) -> Batch:
        """Return the batch on the device; ``always`` requests a transfer even if it is there already."""
        if self._profile.transfer == "needed" and batches.device_of(batch) == self._device:
            return batch
        return batches.to(batch, self._device, non_blocking=self._profile.non_blocking)

    def _prepared(self, batch: Batch) -> Batch:
        if self._profile.clone_batches:
            batch = batches.clone(batch)
        in_memory = batches.device_of(batch).type == "cpu"
        return batches.pin(batch) if self._pinned and in_memory and not self._loader else batch

    def _next(self, loader: Iterator[Batch]) -> Batch:
        """Return the next batch of the loader processes, or raise ``NoBatch`` after the timeout."""
        try:
            return next(loader)
        except RuntimeError as error:
            _end_loaders()
            if "timed out" not in str(error):
                raise
            raise NoBatch(
                f"no batch from {self._workers} loader process(es) in {self._patience_s:.0f} s; the log above"
                f" may say why; {_shared_memory_text()}; lower profile.loader_workers or raise resources.shm"
            ) from error

    def _verify_clones(self, switches: Switches) -> None:
        """Verify that batches are cloned only if requested; not possible with pinning, which copies too."""
        batch = {"one": torch.ones(1)}
        if not self._pinned:
            copied = self._prepared(batch)["one"].data_ptr() != batch["one"].data_ptr()
            switches.applied("clone_batches", verified=copied == self._profile.clone_batches)

    def _fitting_workers(self, switches: Switches) -> int:
        """Return the number of loader processes whose batches fit into shared memory.

        If shared memory is full, a loader process does not exit.  Its sending thread raises, and the
        trainer would wait for the batch forever.
        """
        wanted, ahead = self._profile.loader_workers, self._profile.loader_prefetch
        free = _shared_memory_free()
        if not wanted:
            return 0
        began = time.monotonic()
        size = batches.size_bytes(self.source.batch(0))
        self._patience_s = max(PATIENCE_S, PATIENCE * (time.monotonic() - began))
        if free is None:
            return wanted
        rounds = 2 if self._profile.loader_persistent else 1  # the evaluation's processes hold batches, too
        fitting = max(0, min(wanted, (free // max(size, 1) - IN_USE) // (ahead * rounds)))
        if fitting < wanted:
            need = size * (wanted * ahead * rounds + IN_USE)
            why = (
                f"{wanted} process(es) with {ahead} batches each of {size / MIB:,.1f} MiB need"
                f" {need / MIB:,.0f} MiB of shared memory, and {free / MIB:,.0f} MiB are free;"
                " raise resources.shm"
            )
            switches.fell_back("loader_workers", fitting, why)
        return fitting

    def _processes(
        self, numbered: "Dataset[Batch]", numbers: Sequence[int], *, persistent: bool
    ) -> "DataLoader[Batch]":
        return DataLoader(
            numbered,
            batch_size=None,
            sampler=numbers,
            num_workers=self._workers,
            prefetch_factor=self._profile.loader_prefetch,
            persistent_workers=persistent,
            pin_memory=self._pinned,
            timeout=self._patience_s,
            worker_init_fn=outlive_signals,
            multiprocessing_context="fork",  # outlive_signals needs children of this process
            generator=torch.Generator(),  # the default would draw from the training's randomness
        )


class _Steps(Dataset[Batch]):
    """Training batches by step."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __getitem__(self, step: int) -> Batch:
        return self._source.batch(step)


class _HeldOut(Dataset[Batch]):
    """Evaluation batches by number."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __getitem__(self, index: int) -> Batch:
        return self._source.held_out(index)


def _shared_memory_free() -> int | None:
    """Return the free bytes of shared memory, or None if the file system does not exist."""
    try:
        found = os.statvfs(SHARED_MEMORY)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def _shared_memory_text() -> str:
    free = _shared_memory_free()
    return f"no {SHARED_MEMORY}" if free is None else f"{free / MIB:,.0f} MiB of {SHARED_MEMORY} are free"


def outlive_signals(_worker: int) -> None:
    """Ignore stop signals in a loader process, and make the kernel kill it when the trainer dies.

    Otherwise a SIGTERM to the process group would end the loader processes, and with them the
    trainer, before its last save.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    trainer = multiprocessing.parent_process()
    if trainer is not None and os.getppid() != trainer.pid:
        os._exit(1)  # the trainer died before prctl; this process holds the lineage's lock


def _end_loaders() -> None:
    """Kill the loader processes, which ignore SIGTERM: the trainer's interpreter would wait for their end."""
    notice = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # PyTorch's raises for a loader that is killed
    for process in multiprocessing.active_children():
        process.kill()
        process.join()
    signal.signal(signal.SIGCHLD, notice)


def _place(source: Source, switches: Switches, device: Device) -> Source:
    """Return the source in the requested placement, or in the fallback if that is not possible."""
    wanted, on_device = switches.profile.placement, device.torch_device.type == "cuda"
    if wanted == "host":
        kept = f"{_counted(source)}{source.resident_bytes or 0:,} bytes in memory" if _counted(source) else ""
        switches.applied("placement", verified=True, note=kept)
    elif not on_device:
        switches.fell_back("placement", "host", "the device is a CPU: its memory is the host's")
    elif wanted == "pinned":
        switches.applied("placement", verified=True)
    else:
        return _resident(source, switches, device.torch_device)
    return source


def _resident(source: Source, switches: Switches, device: torch.device) -> Source:
    size = source.resident_bytes
    if size is None:
        switches.fell_back(
            "placement", "host", "this workload makes its batches at each use: nothing can be resident"
        )
        return source
    free, _ = torch.cuda.mem_get_info(device)
    if size > RESIDENT_SHARE * free:
        room = f"{size:,} bytes are more than {RESIDENT_SHARE:.0%} of the {free:,} that are free"
        switches.fell_back("placement", "pinned", room)
        return source
    began = time.monotonic()
    moved = source.on(device)
    torch.cuda.synchronize(device)
    note = f"{_counted(source)}{size:,} bytes on {device} in {time.monotonic() - began:.2f} s"
    switches.applied("placement", verified=True, note=note)
    say(f"placement: {note}; the host keeps no copy")
    return moved


def _counted(source: Source) -> str:
    """Return how many batches a source holds, if its batches are made once."""
    return f"{source.resident_batches:,} batches, " if isinstance(source, KeptBatches) else ""


def _tell(switches: Switches, device: Device) -> None:
    """Record the switches that take effect here."""
    on_device = device.torch_device.type == "cuda"
    for name in ("loader_workers", "transfer", "clone_batches"):
        switches.applied(name)
    if switches.profile.loader_workers:
        switches.applied("loader_prefetch")
        switches.applied("loader_persistent")
    if switches.profile.non_blocking and not on_device:
        switches.fell_back(
            "non_blocking", value=False, why="the device is a CPU: there is nothing to wait for"
        )
    else:
        switches.applied("non_blocking")
