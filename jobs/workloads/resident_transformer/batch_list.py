"""A fixed list of batches, visited once per epoch in an order that depends on the seed.

It can lie on the device: then no batch is copied during training.  ``conversion: each_use`` keeps records in
place of tensors, and converts them at each use.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from jobs.contract.plans.resident_transformer import ResidentTransformer
from jobs.training import batches
from jobs.training.batches import Batch
from jobs.training.randomness import derive


@dataclass(frozen=True, slots=True)
class BatchList:
    """The batches of a training.

    Each element is either a batch, or the records that are converted at each use.  A batch is returned
    without a copy: a write into it changes every later epoch.
    """

    train: tuple[Batch | tuple[str, ...], ...]
    held_out_batches: tuple[Batch | tuple[str, ...], ...]
    seed: int
    convert: Callable[[Sequence[str]], Batch]

    @property
    def resident_bytes(self) -> int | None:
        sizes = [batches.size_bytes(one) for one in self._all() if isinstance(one, dict)]
        return sum(sizes) if sizes else None

    @property
    def resident_batches(self) -> int:
        """The number of batches that ``on`` places on a device."""
        return len(self._all())

    def on(self, device: torch.device) -> "BatchList":
        return replace(
            self,
            train=tuple(_on(device, one) for one in self.train),
            held_out_batches=tuple(_on(device, one) for one in self.held_out_batches),
        )

    def batch(self, step: int) -> Batch:
        epoch, place = divmod(step, len(self.train))
        return self._converted(self.train[self._order(epoch)[place]])

    def held_out(self, index: int) -> Batch:
        return self._converted(self.held_out_batches[index])

    def _order(self, epoch: int) -> list[int]:
        generator = torch.Generator().manual_seed(derive(self.seed, "epoch", epoch))
        order: list[int] = torch.randperm(len(self.train), generator=generator).tolist()
        return order

    def _all(self) -> tuple[Batch | tuple[str, ...], ...]:
        return self.train + self.held_out_batches

    def _converted(self, kept: Batch | tuple[str, ...]) -> Batch:
        return kept if isinstance(kept, dict) else self.convert(kept)


def _on(device: torch.device, kept: Batch | tuple[str, ...]) -> Batch | tuple[str, ...]:
    if not isinstance(kept, dict):
        return kept
    return batches.to(kept, device)  # pinned for one copy, the memory would stay in the allocator's cache


def batch_list(  # noqa: PLR0913, PLR0917 - the parts of a training
    records: Sequence[str],
    later: Sequence[str],
    convert: Callable[[Sequence[str]], Batch],
    train: Batch | None,
    plan: ResidentTransformer,
    seed: int,
) -> BatchList:
    """Return the batches of a training: as tensors if ``train`` is given, else as records."""
    generator = torch.Generator().manual_seed(derive(seed, "batches"))
    shuffled = torch.randperm(len(records), generator=generator)
    whole = len(shuffled) // plan.batch_size * plan.batch_size  # drop the incomplete last batch
    members = shuffled[:whole].split(plan.batch_size)
    parts = [tuple(later[number :: plan.eval_batches]) for number in range(plan.eval_batches)]
    if train is None:
        chosen = (tuple(records[i] for i in member_B.tolist()) for member_B in members)
        return BatchList(tuple(chosen), tuple(parts), seed, convert)
    tensors = ({name: tensor[member_B] for name, tensor in train.items()} for member_B in members)
    return BatchList(tuple(tensors), tuple(convert(part) for part in parts), seed, convert)
