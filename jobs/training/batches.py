"""Batches, which are named tensors whose first dimension is the row, and operations on whole batches."""

from collections.abc import Iterator
from typing import TypeAlias

import torch
from torch import Tensor

Batch: TypeAlias = dict[str, Tensor]
"""Tensors by name; the first dimension of each is the row: a sequence, a window, a day or a pair."""


def rows(batch: Batch) -> int:
    """Return the number of rows."""
    return next(iter(batch.values())).shape[0]


def split(batch: Batch, size: int) -> Iterator[Batch]:
    """Yield consecutive parts of at most ``size`` rows."""
    if rows(batch) <= size:
        yield batch
        return
    for start in range(0, rows(batch), size):
        yield {name: tensor[start : start + size] for name, tensor in batch.items()}


def to(batch: Batch, device: torch.device, *, non_blocking: bool = False) -> Batch:
    """Return the batch on a device."""
    return {name: tensor.to(device, non_blocking=non_blocking) for name, tensor in batch.items()}


def clone(batch: Batch) -> Batch:
    """Return a copy of every tensor."""
    return {name: tensor.detach().clone() for name, tensor in batch.items()}


def pin(batch: Batch) -> Batch:
    """Return the batch in pinned (page-locked) memory, from which a device copies without the CPU."""
    return {name: tensor.pin_memory() for name, tensor in batch.items()}


def size_bytes(batch: Batch) -> int:
    """Return the bytes of all tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in batch.values())


def device_of(batch: Batch) -> torch.device:
    """Return the device of the first tensor; all tensors of a batch are on the same device."""
    return next(iter(batch.values())).device


def automatic_size(batch_size: int) -> int:
    """Return the first guess of ``micro_batch: auto``: an eighth of a large batch, half of a small one.

    The rule is MobilePoser's ("dynamic batch size for streaming").  On a CPU it is the result, because a
    small part stays in the caches; on a device the search for the largest part begins there
    (``jobs.training.fitting``).
    """
    return min(batch_size, max(512, batch_size // 8) if batch_size >= 1024 else max(32, batch_size // 2))
