"""A two-layer network on windows of one series of numbers, one number a line.

Shape legend: N values, B windows, W window.
"""
# ruff: noqa: N803, N806, N815 - tensors carry their shape

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name under which everybody knows it

from jobs.checkpoint.signatures import CORPUS, MODEL, SCHEDULE, model_signature, schedule_signature
from jobs.data.text import windows
from jobs.training.batches import Batch
from jobs.training.failures import InvalidSpec
from jobs.training.randomness import seed_all
from jobs.workloads.common.parameters import decayed_matrices
from jobs.workloads.protocol import BuildContext, Evaluation
from runner_series.plan import SeriesForecast

HELD_OUT = 0.1  # the last tenth of the series


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of a series; those of a step depend on the seed and its number alone."""

    train_N: Tensor
    held_out_N: Tensor
    plan: SeriesForecast
    seed: int

    @property
    def resident_bytes(self) -> int:
        return 4 * (len(self.train_N) + len(self.held_out_N))

    def on(self, device: torch.device) -> "Windows":
        return replace(self, train_N=self.train_N.to(device), held_out_N=self.held_out_N.to(device))

    def batch(self, step: int) -> Batch:
        return self._drawn(self.train_N, "batch", step)

    def held_out(self, index: int) -> Batch:
        return self._drawn(self.held_out_N, "held-out", index)

    def _drawn(self, series_N: Tensor, purpose: str, number: int) -> Batch:
        return {
            "values": windows(
                series_N, self.plan.batch_size, self.plan.window + 1, self.seed, purpose, number
            )
        }


def series_file(named: Path) -> Path:
    """Return the file of a data path: itself, or ``series.csv`` in a directory."""
    return named / "series.csv" if named.is_dir() else named


def read_series(path: Path, least: int) -> Tensor:
    """Return the numbers of a file.

    Raises:
        InvalidSpec: it cannot be read, a line is no number, or there are fewer than ``least`` lines.
    """
    try:
        lines = path.read_text(encoding="utf-8").split()
        values_N = torch.tensor([float(line) for line in lines])
    except (OSError, ValueError) as error:
        raise InvalidSpec(f"{path}: {error}") from error
    if len(values_N) < least:
        raise InvalidSpec(f"{path}: has {len(values_N)} values, and {least} are needed")
    return values_N


class SeriesForecaster:
    """The workload: series, network and loss of one spec."""

    item = "window"

    def __init__(self, plan: SeriesForecast, setting: BuildContext) -> None:
        self.plan = plan
        values_N = read_series(series_file(Path(plan.data)), 20 * plan.window)
        split = int(len(values_N) * (1 - HELD_OUT))
        self.digest = hashlib.sha256(values_N.numpy().tobytes()).hexdigest()
        self.source = Windows(values_N[:split], values_N[split:], plan, setting.seed)
        seed_all(setting.seed, "weights")
        self.model = nn.Sequential(nn.Linear(plan.window, plan.hidden), nn.GELU(), nn.Linear(plan.hidden, 1))

    @property
    def items_per_step(self) -> int:
        return self.plan.batch_size

    @property
    def train_items(self) -> int:
        return len(self.source.train_N) - self.plan.window

    @property
    def steps_per_epoch(self) -> int:
        return max(1, self.train_items // self.items_per_step)

    @cached_property
    def signatures(self) -> Mapping[str, str]:
        return {
            MODEL: model_signature(self.model, self.plan.kind),
            CORPUS: f"{self.digest}:{self.plan.window}",
            SCHEDULE: schedule_signature(self.plan),
        }

    def parameter_groups(self) -> list[dict[str, Any]]:
        return decayed_matrices(self.model, self.plan.weight_decay)

    def loss_sum(self, batch: Batch) -> Tensor:
        values_BW = batch["values"]
        return F.mse_loss(self.model(values_BW[:, :-1])[:, 0].float(), values_BW[:, -1], reduction="sum")

    def count(self, batch: Batch) -> int:
        return len(batch["values"])

    def score(self, batch: Batch) -> Mapping[str, Tensor]:
        values_BW = batch["values"]
        held_still = F.mse_loss(values_BW[:, -2], values_BW[:, -1], reduction="sum")
        return {"loss": self.loss_sum(batch), "still": held_still, "count": torch.tensor(self.count(batch))}

    def judge(self, sums: Mapping[str, float]) -> Evaluation:
        count = sums["count"]
        return Evaluation({"eval_mse": sums["loss"] / count}, {"eval_mse": sums["still"] / count}, "eval_mse")
