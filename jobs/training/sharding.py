"""A model of which every process holds a part: ``parallel.sharded``, by FSDP2 (``fully_shard``).

Weights, gradients and optimiser state are cut along their first dimension.  A block of layers is gathered
for its forward and its backward pass, and its gradients are added and cut again.  A checkpoint has whole
tensors, as that of any other training: rank 0 gathers them one by one on the CPU.  So it can be resumed by
another number of processes, and by one that is not sharded.
"""

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from jobs.checkpoint.state import Plain
from jobs.training.batches import Batch
from jobs.training.failures import InvalidSpec
from jobs.training.randomness import seed_all
from jobs.training.ranks import RankGroup, Ranks
from jobs.training.reduction import Accumulate, Loss, own_shards, peers_named, shard, shard_count


def is_sharded(ranks: Ranks) -> bool:
    """Return True if every process holds a part; a process alone holds the whole model."""
    return ranks.parallel.sharded and ranks.world > 1


def shard_model(model: nn.Module, ranks: RankGroup, device: torch.device, precision: str) -> None:
    """Leave to this process its part of the model's parameters.

    Raises:
        InvalidSpec: The precision is fp16, whose loss scale would have to be the same in all processes.
    """
    if precision == "fp16":
        raise InvalidSpec("parallel.sharded: not with precision fp16; choose bf16 or fp32")
    from torch.distributed.device_mesh import DeviceMesh  # noqa: PLC0415 - takes long to load
    from torch.distributed.fsdp import FSDPModule, fully_shard  # noqa: PLC0415

    mesh = DeviceMesh.from_group(ranks.group_of_devices, device.type)
    for blocks in [each for each in model.modules() if isinstance(each, nn.ModuleList)]:
        for block in blocks:
            fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):  # the loss is divided by the whole batch already; gloo has no mean
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)


class ShardedReduction:
    """Adds gradients as FSDP2 does: in an order that depends on the number of processes."""

    def __init__(self, ranks: RankGroup, seed: int, loss: Loss) -> None:
        self._ranks = ranks
        self._seed = seed
        self._loss = loss

    def gradients(self, batch: Batch, step: int, accumulate: Accumulate) -> Tensor:
        """Leave its part of the gradients of the whole batch with each process, and return the loss.

        Raises:
            DeviceOutOfMemory: This process has too little memory; the others are in the middle of a sum.
            RankLost: Another process is gone or does not answer.
        """
        losses = []
        with peers_named(self._ranks):
            for number in own_shards(self._ranks):
                seed_all(self._seed, step, "shard", number)
                losses.append(accumulate(shard(batch, number, shard_count(self._ranks)), self._loss))
            loss = torch.stack(losses).sum()
            torch.distributed.all_reduce(loss, group=self._ranks.devices)
        return loss


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor with the parts of all processes, all of which call this."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else cast("Tensor", gather())


def is_part(tensor: object) -> bool:
    """Return True if a tensor is the part of this process."""
    return hasattr(tensor, "full_tensor")


def gathered(state: Plain, *, keeps: bool) -> Plain:
    """Return a state with whole tensors, in the process that keeps it; all processes call this.

    A tensor is whole for a moment on the device of each process, and then on the CPU of one.
    """
    match state:
        case Tensor() if is_part(state):
            tensor = whole(state.detach())
            return tensor.cpu() if keeps else None
        case Mapping():
            return {key: gathered(value, keeps=keeps) for key, value in state.items()}
        case list() | tuple():
            return type(state)(gathered(value, keeps=keeps) for value in state)
        case _:
            return state


def cut_as(saved: Plain, own: object) -> Plain:
    """Return a saved tensor as a part, where this process has a part; everything else as it is."""
    if not (isinstance(saved, Tensor) and isinstance(own, Tensor) and is_part(own) and saved.dim()):
        return saved
    from torch.distributed.tensor import DTensor, distribute_tensor  # noqa: PLC0415 - takes long to load

    part = cast("DTensor", own)
    here = saved.to(part.device)
    return distribute_tensor(here, part.device_mesh, part.placements, src_data_rank=None)
