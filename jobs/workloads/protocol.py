"""Defines the interface between trainer and workload, and builds the workload of a plan.

A workload is a set of pure functions of ``(seed, step)`` around a module.  It holds no random state, no
position in a data set and no schedule, so none of these has to be saved.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from jobs.contract import TrainingPlan
from jobs.training.batches import Batch
from jobs.training.switches import Switches


class Source(Protocol):
    """Makes batches as a pure function of the step, so any process can make any batch.

    Loader processes receive a source, so it can be pickled and holds no open file.
    """

    @property
    def resident_bytes(self) -> int | None:
        """Bytes that ``on`` would take; None if this source cannot be placed on a device."""

    def on(self, device: torch.device) -> "Source":
        """Return the same source with its tensors on a device; requires ``resident_bytes`` not to be None."""

    def batch(self, step: int) -> Batch:
        """Return the effective batch of a step."""

    def held_out(self, index: int) -> Batch:
        """Return one evaluation batch, the same one each time."""


@runtime_checkable
class KeptBatches(Protocol):
    """A source whose batches are made once and kept, all of them."""

    @property
    def resident_batches(self) -> int:
        """The number of batches."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Metrics of the model on held-out data, with those of a trivial predictor."""

    metrics: Mapping[str, float]
    baseline: Mapping[str, float]  # of the trivial predictor named in docs/get-started/workloads.md
    primary: str  # the metric that selects the best checkpoint
    higher_is_better: bool = False
    details: Mapping[str, float] = field(default_factory=dict)  # further metrics, which the log leaves out
    lines: tuple[str, ...] = ()  # for the log, below the metrics


class Workload(Protocol):
    """The interface that the trainer uses."""

    @property
    def plan(self) -> TrainingPlan:
        """The workload's own fields of the spec."""

    @property
    def model(self) -> nn.Module: ...

    @property
    def source(self) -> Source: ...

    @property
    def item(self) -> str:
        """The unit that is counted: token, window, node, candle, pair."""

    @property
    def items_per_step(self) -> int:
        """Items in one effective batch."""

    @property
    def train_items(self) -> int:
        """The number of training items."""

    @property
    def steps_per_epoch(self) -> int:
        """The number of steps that draw as many items as there are."""

    @property
    def signatures(self) -> Mapping[str, str]:
        """The signatures of ``jobs.checkpoint.signatures`` that the workload provides."""

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return the optimiser's parameter groups with their hyper-parameters, parameters by name."""

    def loss_sum(self, batch: Batch) -> Tensor:
        """Return the sum of the losses of all items of a batch that lies on the model's device."""

    def count(self, batch: Batch) -> int:
        """Return the number of items whose losses ``loss_sum`` adds up, without a device synchronisation."""

    def score(self, batch: Batch) -> Mapping[str, Tensor]:
        """Return sums over one held-out batch, on its device; ``judge`` receives their totals."""

    def judge(self, sums: Mapping[str, float]) -> Evaluation:
        """Return the evaluation from the sums over all held-out batches."""


@dataclass(frozen=True, slots=True)
class BuildContext:
    """The arguments that a workload is built with, besides its plan."""

    seed: int
    switches: Switches
    cache_dir: Path | None = None  # persists across the attempts of a job; None: no cache


def build(plan: TrainingPlan, setting: BuildContext) -> Workload:
    """Return the workload of a spec, its weights initialised on the CPU.

    The module of a workload is imported only when a job uses it, because each has its own dependencies.

    Raises:
        InvalidSpec: the training data is missing, unreadable, invalid or too small.
    """
    module, _, name = plan.implementation.partition(":")
    workload: Workload = getattr(import_module(module), name)(plan, setting)
    return workload
