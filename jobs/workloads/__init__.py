"""What can be trained: one module for each workload, all satisfying one Protocol.

A workload is a set of pure functions of ``(seed, step)`` around a module; it owns no random
state, no position in a data set and no schedule, so there is nothing of them to save.
"""

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

from torch import Tensor, nn

from jobs.contract import CausalLm
from jobs.workloads import causal_lm

Batch: TypeAlias = Tensor
"""The first dimension is the sequence or row; a micro-batch is a slice of it."""


class Workload(Protocol):
    """What the trainer needs to know about a training."""

    @property
    def plan(self) -> CausalLm:
        """The workload's own fields of the spec."""

    @property
    def model(self) -> nn.Module: ...

    @property
    def items_per_step(self) -> int:
        """Tokens, windows or rows in one effective batch."""

    @property
    def train_items(self) -> int:
        """Tokens, windows or rows to draw from."""

    @property
    def baseline_loss(self) -> float:
        """The loss of knowing frequencies only; a model that learns ends below it."""

    @property
    def signatures(self) -> Mapping[str, str]:
        """The aspects of ``jobs.signatures`` that the workload decides."""

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return the optimiser's parameter groups with their hyper-parameters."""

    def learning_rate(self, step: int) -> float: ...

    def batch(self, step: int) -> Batch:
        """Return the effective batch of a step, on the CPU."""

    def held_out(self, index: int) -> Batch:
        """Return one evaluation batch, the same one each time."""

    def loss_sum(self, batch: Batch) -> Tensor:
        """Return the sum of the losses of all items of a batch that lies on the model's device."""

    def count(self, batch: Batch) -> int:
        """Return the number of items whose losses ``loss_sum`` adds up."""


def build(plan: CausalLm, seed: int) -> Workload:
    """Return the workload of a spec, its weights initialised on the CPU.

    Raises:
        InvalidSpec: its corpus is missing, unreadable or too small.
    """
    match plan:
        case CausalLm():
            return causal_lm.CausalLanguageModel(plan, seed)
