"""Base of the sources of both tasks: windows of recordings that are read when needed, or lie on a device.

A row of a batch is (recording, window, combo); ``jobs.workloads.imu_stream.order`` defines their order.
"""
# ruff: noqa: N803, N806, N815 - tensors carry their shape: B rows, T frames, N frames, C inputs, P recordings

from abc import ABC, abstractmethod
from copy import copy
from dataclasses import dataclass
from typing import Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from jobs.contract.plans.imu_stream import ImuStream
from jobs.data.sequences import Recording
from jobs.training.batches import Batch
from jobs.training.switches import Switches
from jobs.workloads.imu_stream.order import Order, Whole
from jobs.workloads.imu_stream.streaming import CacheOptions, Sides, orders_of, stride_of


@dataclass(frozen=True, slots=True)
class Resident:
    """The inputs and the targets of all recordings on a device, with the first row of each recording."""

    inputs_NC: Tensor
    targets: Tensor
    first_P2: Tensor

    def gathered(self, rows_B3: Whole, plan: ImuStream) -> tuple[Tensor, Tensor]:
        """Return the inputs and the targets of rows; a recording has targets of frames or of windows."""
        device = self.inputs_NC.device
        recording_B, window_B = torch.from_numpy(rows_B3[:, 0]), torch.from_numpy(rows_B3[:, 1])
        first_B, target_B = self.first_P2[recording_B].unbind(1)
        frames_T = torch.arange(plan.window, device=device)
        frames_BT = (first_B + window_B * stride_of(plan)).to(device)[:, None] + frames_T
        of_windows = self.targets.dim() == 3
        return self.inputs_NC[frames_BT], self.targets[
            (target_B + window_B).to(device) if of_windows else frames_BT
        ]


class RecordedWindows(ABC):
    """A source of batches of windows; ``opened`` and ``filtered`` count what was read and computed."""

    def __init__(self, plan: ImuStream, seed: int, sides: Sides, keeping: CacheOptions) -> None:
        self.plan, self.seed, self.keeping = plan, seed, keeping
        self.recordings, self.train, self.evaluated = orders_of(sides, plan, seed)
        self.opened = 0
        self.filtered = 0
        self.resident: Resident | None = None
        self.forget()

    @abstractmethod
    def forget(self) -> None:
        """Release what is kept; it is made again if it is needed."""

    @abstractmethod
    def target_rows(self, recording: Recording) -> int:
        """Return the number of rows of a recording's targets."""

    @abstractmethod
    def converted(self, recording: int) -> tuple[Tensor, Tensor]:
        """Return the inputs (N, C) and the targets of a recording, as batches have them."""

    @abstractmethod
    def gathered(self, rows_B3: Whole) -> tuple[Tensor, Tensor]:
        """Return the inputs (B, T, C) and the targets (B, T, D) of rows, read and converted now."""

    @abstractmethod
    def finished(
        self, rows_B3: Whole, purpose: str, number: int, inputs_BTC: Tensor, targets_BTD: Tensor
    ) -> Batch:
        """Return the batch on its tensors' device, each row with what its combo shows."""

    @property
    @abstractmethod
    def values(self) -> int:
        """The number of values of all recordings, converted."""

    @property
    def resident_bytes(self) -> int | None:
        """Bytes of all recordings, converted; None if they are converted again for every use."""
        kept = self.keeping.convert_once and self.keeping.share_targets
        return self.values * torch.float32.itemsize if kept else None

    def on(self, device: torch.device) -> Self:
        """Return a source of the same batches that keeps all data on a device, converted once."""
        rows_P2 = torch.tensor([[each.samples, self.target_rows(each)] for each in self.recordings])
        first_P2, tables = rows_P2.cumsum(0) - rows_P2, list[Tensor]()
        for recording, firsts in enumerate(first_P2.tolist()):
            parts = self.converted(recording)
            if not tables:
                sizes = zip(rows_P2.sum(0).tolist(), parts, strict=True)
                tables = [torch.empty(rows, *part.shape[1:], device=device) for rows, part in sizes]
            for table, first, part in zip(tables, firsts, parts, strict=True):
                table[first : first + len(part)] = part
        self.forget()
        made = copy(self)
        made.resident = Resident(tables[0], tables[1], first_P2)
        return made

    def batch(self, step: int) -> Batch:
        return self._batch(self.train, "batch", step)

    def held_out(self, index: int) -> Batch:
        return self._batch(self.evaluated, "held-out", index)

    def _batch(self, order: Order, purpose: str, number: int) -> Batch:
        rows_B3 = order.rows(number, self.plan.batch_size)
        there = self.resident
        parts = self.gathered(rows_B3) if there is None else there.gathered(rows_B3, self.plan)
        return self.finished(rows_B3, purpose, number, *parts)


Source = TypeVar("Source", bound=RecordedWindows)


def verify(source: RecordedWindows, switches: Switches) -> None:
    """Record the measured cost of one window with two combos: file openings and filter runs."""
    source.gathered(np.array([[0, 0, 0], [0, 0, 1]]))
    seen = {
        "conversion": (source.opened, source.keeping.convert_once, "opened its file"),
        "shared_targets": (source.filtered, source.keeping.share_targets, "computed its targets"),
    }
    for name, (times, only_once, what) in seen.items():
        note = f"two uses of a window {what} {times} time(s)"
        switches.applied(name, verified=(times == 1) == only_once, note=note)


def streamed_or_loaded(source: Source, switches: Switches) -> Source:
    """Return the source itself, or with ``streaming: false`` one that has converted all recordings by now.

    Loader processes are forked, so they share the memory of what is loaded here.
    """
    size = source.resident_bytes
    if switches.profile.streaming:
        switches.applied("streaming", verified=True)
        return source
    if size is None:
        why = "conversion each_use, or targets not shared: there is nothing to load ahead"
        switches.fell_back("streaming", value=True, why=why)
        return source
    loaded = source.on(torch.device("cpu"))
    note = f"{size:,} bytes, converted before the first step and shared by all loader processes"
    switches.applied("streaming", verified=True, note=note)
    switches.fell_back("stream_buffer", 0, "streaming false: all recordings are in memory")
    return loaded
