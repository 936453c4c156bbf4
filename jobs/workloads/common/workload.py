"""Base of most workloads: an item is a row of a batch, and an epoch draws as many as there are."""

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from torch import nn

from jobs.contract import TrainingPlan
from jobs.training import batches
from jobs.training.batches import Batch
from jobs.workloads.common.parameters import decayed_matrices

Plan = TypeVar("Plan", bound=TrainingPlan)
Model = TypeVar("Model", bound=nn.Module)


class TrainedWorkload(ABC, Generic[Plan, Model]):
    """The usual answers to some questions of ``jobs.workloads.protocol.Workload``."""

    plan: Plan
    model: Model

    @property
    @abstractmethod
    def train_items(self) -> int:
        """The number of training items."""

    @property
    def items_per_step(self) -> int:
        return self.plan.batch_size

    @property
    def steps_per_epoch(self) -> int:
        return max(1, self.train_items // self.items_per_step)

    def parameter_groups(self) -> list[dict[str, Any]]:
        return decayed_matrices(self.model, self.plan.weight_decay)

    def count(self, batch: Batch) -> int:
        return batches.rows(batch)
