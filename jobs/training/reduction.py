"""Gradients of a batch that is cut into shards, and their sum over all processes.

``TreeReduction`` adds the gradients of shards in one binary tree over the numbers of the shards: within a
process like a counter that carries, between processes by exchanges in pairs.  ``a + b`` has the bits of
``b + a``, so 1, 2, 4 and more processes give the same bits.  ``FastReduction`` leaves the sum to
``DistributedDataParallel``, which overlaps it with the backward pass.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from jobs.contract import Parallel
from jobs.training import batches
from jobs.training.batches import Batch
from jobs.training.device import is_out_of_memory
from jobs.training.failures import DeviceOutOfMemory, RankLost
from jobs.training.randomness import seed_all
from jobs.training.ranks import RankGroup, Ranks

Loss = Callable[[Batch], Tensor]
"""Returns the sum of the losses of some rows on the device."""


class Accumulate(Protocol):
    """Adds the gradients of some rows to those of the parameters."""

    def __call__(
        self, rows: Batch, loss: Loss, quiet: Callable[[], AbstractContextManager[None]] = nullcontext, /
    ) -> Tensor:
        """Return the loss of the rows; ``quiet`` is entered for every micro-batch but the last."""


class Reduction(Protocol):
    """Computes the gradients of a batch together with the other processes."""

    def gradients(self, batch: Batch, step: int, accumulate: Accumulate) -> Tensor:
        """Leave the gradients of the whole batch with the parameters, and return its loss.

        Raises:
            RankLost: Another process is gone or does not answer.
        """


def reduction(ranks: Ranks, seed: int, loss: Loss, model: nn.Module) -> Reduction | None:
    """Return how gradients are reduced; None if one process computes the whole batch."""
    if ranks.parallel.is_plain:
        return None
    if ranks.parallel.reduction == "fast" and isinstance(ranks, RankGroup):
        return FastReduction(ranks, seed, loss, model)
    return TreeReduction(ranks, seed, loss, [one for one in model.parameters() if one.requires_grad])


def reduction_environment(parallel: Parallel) -> dict[str, str]:
    """Return what the rounding of a training depends on besides that of one process without shards."""
    if parallel.is_plain:
        return {}
    cut = {"shards": str(parallel.shards or parallel.processes)}
    if parallel.sharded and parallel.processes > 1:
        return cut | {"reduction": "sharded", "processes": str(parallel.processes)}
    if parallel.reduction == "exact":
        return cut
    return cut | {"reduction": "fast", "processes": str(parallel.processes)}


def shard(batch: Batch, number: int, shards: int) -> Batch:
    """Return the rows of one shard; shards differ by one row at most."""
    rows = batches.rows(batch)
    part = slice(number * rows // shards, (number + 1) * rows // shards)
    return {name: tensor[part] for name, tensor in batch.items()}


def own_shards(ranks: Ranks) -> range:
    """Return the numbers of the shards that this process computes: consecutive ones."""
    each = shard_count(ranks) // ranks.world
    return range(ranks.rank * each, (ranks.rank + 1) * each)


def shard_count(ranks: Ranks) -> int:
    """Return into how many shards a batch is cut; without a number, one per process."""
    return ranks.parallel.shards or ranks.parallel.processes


@dataclass(frozen=True, slots=True)
class _Sum:
    """The gradients of one or several shards: one flat buffer per type of number."""

    flats: Sequence[Tensor]
    views: Sequence[Tensor]  # one per parameter, into the buffers
    loss: Tensor  # a view, too

    def clear(self) -> None:
        for flat in self.flats:
            flat.zero_()

    def add(self, other: "_Sum") -> None:
        for mine, theirs in zip(self.flats, other.flats, strict=True):
            mine.add_(theirs)


class TreeReduction:
    """Adds gradients in one binary tree whose shape does not depend on the number of processes."""

    def __init__(self, ranks: Ranks, seed: int, loss: Loss, parameters: Sequence[Tensor]) -> None:
        self._ranks = ranks
        self._seed = seed
        self._loss = loss
        self._parameters = parameters
        self._free: list[_Sum] = []

    def gradients(self, batch: Batch, step: int, accumulate: Accumulate) -> Tensor:
        """Leave the gradients of the whole batch with the parameters, and return its loss.

        Raises:
            torch.OutOfMemoryError: A process has too little memory; all processes raise it together.
            RankLost: Another process is gone or does not answer.
        """
        total, problem = self._own(batch, step, accumulate)
        first = self._ranks.first_with(problem=problem is not None)
        if problem is not None and self._ranks.world == 1:
            raise problem
        if first is not None or total is None:
            where = "" if problem is None else f": {str(problem).splitlines()[0]}"
            raise torch.OutOfMemoryError(f"rank {first} has too little memory{where}")
        self._ranks.add(total.flats)
        self._use(total)
        return total.loss.clone()

    def _own(
        self, batch: Batch, step: int, accumulate: Accumulate
    ) -> tuple[_Sum | None, RuntimeError | None]:
        """Return the sum over the shards of this process, or why there is no memory for it."""
        try:
            return self._own_sum(batch, step, accumulate), None
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            self._free.clear()
            return None, error.with_traceback(None)  # which would keep the tensors of the failed pass

    def _own_sum(self, batch: Batch, step: int, accumulate: Accumulate) -> _Sum:
        count, waiting = shard_count(self._ranks), list[tuple[int, _Sum]]()
        for number in own_shards(self._ranks):
            found, level = self._cleared(), 0
            self._use(found)
            seed_all(self._seed, step, "shard", number)
            rows = shard(batch, number, count)
            found.loss.copy_(accumulate(rows, self._loss))
            while waiting and waiting[-1][0] == level:
                left = waiting.pop()[1]
                left.add(found)
                self._free.append(found)
                found, level = left, level + 1
            waiting.append((level, found))
        ((_, total),) = waiting
        self._free.append(total)  # the next step begins with it; until then the parameters use it
        return total

    def _cleared(self) -> _Sum:
        found = self._free.pop() if self._free else self._new()
        found.clear()
        return found

    def _use(self, found: _Sum) -> None:
        for parameter, view in zip(self._parameters, found.views, strict=True):
            parameter.grad = view

    def _new(self) -> _Sum:
        sizes: dict[torch.dtype, int] = defaultdict(int)
        sizes[torch.float32] = 1  # the loss, at the beginning
        places = []
        for parameter in self._parameters:
            places.append((parameter.dtype, sizes[parameter.dtype]))
            sizes[parameter.dtype] += parameter.numel()
        device = self._parameters[0].device
        flats = {kind: torch.zeros(size, dtype=kind, device=device) for kind, size in sizes.items()}
        views = [
            flats[kind][start : start + parameter.numel()].view_as(parameter)
            for parameter, (kind, start) in zip(self._parameters, places, strict=True)
        ]
        return _Sum(list(flats.values()), views, flats[torch.float32][0])


class _LossModule(nn.Module):
    """The loss of a workload as the forward pass that ``DistributedDataParallel`` wraps."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self._loss = loss

    def forward(self, batch: Batch) -> Tensor:
        return self._loss(batch)


class FastReduction:
    """Adds gradients as ``DistributedDataParallel`` does: in an order that depends on the processes."""

    def __init__(self, ranks: RankGroup, seed: int, loss: Loss, model: nn.Module) -> None:
        self._ranks = ranks
        self._seed = seed
        self._wrapped = DistributedDataParallel(
            _LossModule(model, loss),
            process_group=ranks.devices,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
        )

    def gradients(self, batch: Batch, step: int, accumulate: Accumulate) -> Tensor:
        """Leave the gradients of the whole batch with the parameters, and return its loss.

        Raises:
            DeviceOutOfMemory: This process has too little memory; the others are in the middle of a sum.
            RankLost: Another process is gone or does not answer.
        """
        count, mine = shard_count(self._ranks), own_shards(self._ranks)
        loss = torch.zeros((), device=next(self._wrapped.parameters()).device)
        with peers_named(self._ranks):
            for number in mine:
                seed_all(self._seed, step, "shard", number)
                rows = shard(batch, number, count)
                with nullcontext() if number == mine[-1] else self._wrapped.no_sync():
                    loss += accumulate(rows, self._scaled_loss, self._wrapped.no_sync)
            loss /= self._ranks.world
            torch.distributed.all_reduce(loss, group=self._ranks.devices)
        return loss

    def _scaled_loss(self, batch: Batch) -> Tensor:
        """Return the loss so that the mean over the processes, which the wrapper takes, is the sum."""
        loss: Tensor = self._wrapped(batch) * self._ranks.world
        return loss


@contextmanager
def peers_named(ranks: Ranks) -> Iterator[None]:
    """Name the errors of a step whose sum is part of the backward pass."""
    try:
        yield
    except RuntimeError as error:
        first_line = f"{error}\n".splitlines()[0]
        if is_out_of_memory(error):
            raise DeviceOutOfMemory(f"rank {ranks.rank}: {first_line} Lower profile.micro_batch") from error
        if "nan values" in first_line or "deterministic" in first_line:
            raise
        raise RankLost(f"another process of this attempt is gone or does not answer: {first_line}") from error
