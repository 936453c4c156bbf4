"""What the trainer asks of a workload: one Protocol, and the way from a plan to its workload.

A workload is a set of pure functions of ``(seed, step)`` around a module.  It holds no random state, no
position in a data set and no schedule, so nothing of them has to be saved.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from jobs.contract import TrainingPlan
from jobs.training.batches import Batch
from jobs.training.switches import Switches


class Source(Protocol):
    """Makes batches; a pure function of the step, so any process can make any of them.

    It is handed to loader processes, so it can be pickled and holds no open file.
    """

    @property
    def resident_bytes(self) -> int | None:
        """Bytes that ``on`` would take; None if this source cannot live on a device."""

    def on(self, device: torch.device) -> "Source":
        """Return the same source with its tensors on a device; only where ``resident_bytes`` is known."""

    def batch(self, step: int) -> Batch:
        """Return the effective batch of a step."""

    def held_out(self, index: int) -> Batch:
        """Return one evaluation batch, the same one each time."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What held-out data says about the model, beside what no model at all would get."""

    metrics: Mapping[str, float]
    baseline: Mapping[str, float]  # of the trivial predictor named in docs/get-started/workloads.md
    primary: str  # decides which checkpoint is the best
    higher_is_better: bool = False


class Workload(Protocol):
    """What the trainer needs to know about a training."""

    @property
    def plan(self) -> TrainingPlan:
        """The workload's own fields of the spec."""

    @property
    def model(self) -> nn.Module: ...

    @property
    def source(self) -> Source: ...

    @property
    def item(self) -> str:
        """What is counted: token, window, node, candle, pair."""

    @property
    def items_per_step(self) -> int:
        """Items in one effective batch."""

    @property
    def train_items(self) -> int:
        """Items to draw from."""

    @property
    def steps_per_epoch(self) -> int:
        """Steps after which as many items were drawn as there are."""

    @property
    def signatures(self) -> Mapping[str, str]:
        """The aspects of ``jobs.checkpoint.signatures`` that the workload decides."""

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return the optimiser's parameter groups with their hyper-parameters, parameters by name."""

    def loss_sum(self, batch: Batch) -> Tensor:
        """Return the sum of the losses of all items of a batch that lies on the model's device."""

    def count(self, batch: Batch) -> int:
        """Return the number of items whose losses ``loss_sum`` adds up, without asking the device."""

    def score(self, batch: Batch) -> Mapping[str, Tensor]:
        """Return sums over one held-out batch, on its device; ``judge`` gets them added up."""

    def judge(self, sums: Mapping[str, float]) -> Evaluation:
        """Return what the sums over all held-out batches mean."""


@dataclass(frozen=True, slots=True)
class BuildContext:
    """What a workload is built from."""

    seed: int
    switches: Switches
    cache_dir: Path | None = None  # survives from attempt to attempt of a job; None: there is none


def build(plan: TrainingPlan, setting: BuildContext) -> Workload:
    """Return the workload of a spec, its weights initialised on the CPU.

    Its module is imported when a job asks for it: each has readers and libraries of its own.

    Raises:
        InvalidSpec: what it is to learn from is missing, unreadable, wrong or too small.
    """
    module, _, name = plan.implementation.partition(":")
    workload: Workload = getattr(import_module(module), name)(plan, setting)
    return workload
