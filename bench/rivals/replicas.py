"""Three data-parallel trainings of one model in the same processes, in turns; a gang of two runs this module.

Ours with the exact tree of sums, ours with ``reduction: fast``, and a loop by hand around
``DistributedDataParallel``.  Dropout is off, so all three compute the same; each step of ours includes what
the processes agree on after it.  Only the processes of the benchmark import it: it needs torch.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from jobs.checkpoint.state import weights_sha256
from jobs.contract import AttemptSpec
from jobs.contract.plans.causal_lm import CausalLm
from jobs.training.batches import Batch
from jobs.training.device import Device, prepare
from jobs.training.launcher import own_rank
from jobs.training.lr_schedule import learning_rate
from jobs.training.optimizer import BETAS
from jobs.training.ranks import Ranks, joined
from jobs.training.reduction import shard
from jobs.training.step import Training
from jobs.training.switches import Switches
from jobs.workloads.causal_lm import CausalLanguageModel
from jobs.workloads.protocol import BuildContext

EXACT: Final = "exact"
FAST: Final = "fast"
BY_HAND: Final = "by hand"

Step = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Replica:
    """One training in this process: its step, and its model."""

    step: Step
    model: nn.Module


def ours(spec: AttemptSpec, device: Device, ranks: Ranks) -> Replica:
    """Return the trainer of this project."""
    plan, workload, switches = _parts(spec)
    training = Training(spec, plan, workload, device, switches, ranks)
    training.feed.begin(0)

    def step(number: int) -> None:
        training.update(number)
        ranks.agree(False, False)  # noqa: FBT003 - a stop and a save, as after each step of an attempt

    return Replica(step, workload.model)


class _Loss(nn.Module):
    """The loss as the forward pass, which ``DistributedDataParallel`` has to see."""

    def __init__(self, workload: CausalLanguageModel) -> None:
        super().__init__()
        self.model = workload.model
        self._loss_sum = workload.loss_sum

    def forward(self, batch: Batch) -> Tensor:
        return self._loss_sum(batch)


def by_hand(spec: AttemptSpec, ranks: Ranks) -> Replica:
    """Return a minimal loop around ``DistributedDataParallel``."""
    plan, workload, _ = _parts(spec)
    replica = DistributedDataParallel(_Loss(workload))
    parameters = list(workload.model.parameters())
    optimizer = torch.optim.AdamW(
        workload.parameter_groups(), lr=plan.learning_rate, betas=BETAS, foreach=False, fused=True
    )

    def step(number: int) -> None:
        batch = workload.source.batch(number)
        mine = shard(batch, ranks.rank, ranks.world)
        optimizer.zero_grad(set_to_none=True)
        loss = replica(mine) * ranks.world / workload.count(batch)
        loss.backward()
        clip_grad_norm_(parameters, plan.grad_clip)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(plan, number)
        optimizer.step()
        loss.item()

    return Replica(step, workload.model)


def _parts(spec: AttemptSpec) -> tuple[CausalLm, CausalLanguageModel, Switches]:
    plan, switches = spec.workload, Switches(spec.profile)
    if not isinstance(plan, CausalLm):
        raise TypeError(f"{plan.kind}: replicas are compared on causal_lm")
    return plan, CausalLanguageModel(plan, BuildContext(spec.seed, switches)), switches


def measure(spec: AttemptSpec, turns: int, steps: int) -> Mapping[str, Any]:
    """Return the seconds of one step in each turn, and the digest of the weights, of each training."""
    device = prepare(spec, Switches(spec.profile))
    with joined(spec, device.torch_device) as ranks:
        fast_spec = spec.model_copy(
            update={"parallel": spec.parallel.model_copy(update={"reduction": "fast"})}
        )
        replicas = {
            EXACT: ours(spec, device, ranks),
            FAST: ours(fast_spec, device, replace(ranks, parallel=fast_spec.parallel)),
            BY_HAND: by_hand(spec, ranks),
        }
        seconds: dict[str, list[float]] = {name: [] for name in replicas}
        for turn in range(turns):
            for name, replica in replicas.items():
                ranks.meet()
                began = time.perf_counter()
                for number in range(turn * steps, (turn + 1) * steps):
                    replica.step(number)
                ranks.meet()
                seconds[name].append((time.perf_counter() - began) / steps)
        weights = {name: weights_sha256(replica.model.state_dict()) for name, replica in replicas.items()}
        ranks.meet()
    return {"seconds": seconds, "weights": weights}


def main(arguments: list[str]) -> int:
    """Measure, and let the first process write what it found."""
    spec, turns, steps, output = arguments
    found = measure(AttemptSpec.model_validate_json(Path(spec).read_bytes()), int(turns), int(steps))
    if own_rank() == 0:
        Path(output).write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
