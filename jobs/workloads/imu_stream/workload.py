"""Estimates orientation and motion with an LSTM, from an inertial sensor with some channels masked.

The workload follows MobilePoser (github.com/nawta/MobilePoser, commit 8e7fa0b, module ``poser``): windows
of 125 frames, each used with several *combos* of visible channels, and targets that do not depend on
the combo.  MobilePoser's target is a body pose from motion capture data that may not be redistributed.
The target here is computed from all channels of the sensor (``jobs.workloads.imu_stream.poses``), so any
recording can be used.  The layer types are the same: linear, ReLU, dropout, LSTM, linear.
"""
# ruff: noqa: N803, N806 - tensors carry their shape: B rows, T frames

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from jobs.checkpoint.signatures import CORPUS, MODEL, SCHEDULE, model_signature, schedule_signature, signature
from jobs.contract.plans.imu_stream import ImuStream
from jobs.data.sequences import survey
from jobs.training.batches import Batch
from jobs.training.randomness import seed_all
from jobs.training.report import say
from jobs.workloads.common.workload import TrainedWorkload
from jobs.workloads.imu_stream.poses import MOTION, ORIENTATION, TARGETS
from jobs.workloads.imu_stream.source import streamed_or_loaded, verify
from jobs.workloads.imu_stream.streaming import (
    Sides,
    keeping,
    split,
    summary,
    windows_of,
)
from jobs.workloads.imu_stream.windows import CHANNELS, Windows, columns_of, measure
from jobs.workloads.protocol import BuildContext, Evaluation, Workload

PARTS: Final = {"": slice(0, TARGETS), "_orientation": ORIENTATION, "_motion": MOTION}
"""Suffix of a metric, and the targets that it is about."""


class PoseEstimator(nn.Module):
    """Predicts normalised orientation and motion of every frame from the masked signal."""

    def __init__(self, plan: ImuStream) -> None:
        super().__init__()
        self.embed = nn.Linear(CHANNELS, plan.hidden)
        self.dropout = nn.Dropout(plan.dropout)
        self.lstm = nn.LSTM(
            plan.hidden, plan.hidden, plan.layers, batch_first=True, bidirectional=plan.bidirectional
        )
        self.out = nn.Linear(plan.hidden * (2 if plan.bidirectional else 1), TARGETS)

    def forward(self, imu_BT6: Tensor) -> Tensor:
        hidden_BTH, _ = self.lstm(self.dropout(self.embed(imu_BT6).relu()))
        return self.out(hidden_BTH)


class StreamedPoses(TrainedWorkload[ImuStream, PoseEstimator]):
    """The workload: recordings, model and loss of one spec."""

    item = "window"

    def __init__(self, plan: ImuStream, setting: BuildContext) -> None:
        self.plan = plan
        found = survey(Path(plan.data), columns_of(plan), plan.index, plan.group)
        self._sha256 = found.sha256
        sides = split(found.recordings, plan)
        scale = measure(sides[0], plan)
        kept = keeping(sides, scale.recording_bytes, _target_bytes(sides, plan), plan, setting.switches)
        source = Windows(plan, setting.seed, sides, scale, kept)
        verify(source, setting.switches)
        self.source = streamed_or_loaded(source, setting.switches)
        seed_all(setting.seed, "weights")
        self.model = PoseEstimator(plan)
        say(summary(sides, plan))

    @property
    def train_items(self) -> int:
        return sum(self.source.train.shard_rows)

    @cached_property
    def signatures(self) -> Mapping[str, str]:
        plan = self.plan
        about_targets = {"index", "group", "held_out", "gravity", "rate_hz"}
        about_rows = {"window", "stride", "combos", "noise", "shards", "shuffle_block", "dropout"}
        return {
            MODEL: model_signature(self.model, plan.kind),
            CORPUS: signature([self._sha256, plan.model_dump(mode="json", include=about_targets)]),
            SCHEDULE: schedule_signature(plan, plan.model_dump(mode="json", include=about_rows)),
        }

    def loss_sum(self, batch: Batch) -> Tensor:
        error_BT9 = self.model(batch["imu"]).float() - batch["pose"]
        return error_BT9.square().mean((1, 2)).sum()

    def score(self, batch: Batch) -> Mapping[str, Tensor]:
        """Return summed errors of the model, of the mean (0: normalised) and of the repeated first frame."""
        pose_BT9 = batch["pose"]
        predictions = {
            "model": self.model(batch["imu"]).float(),
            "mean": torch.zeros_like(pose_BT9),
            "first": pose_BT9[:, :1],
        }
        sums = {
            who + part: (predicted_BT9 - pose_BT9)[..., where].square().mean((1, 2)).sum()
            for who, predicted_BT9 in predictions.items()
            for part, where in PARTS.items()
        }
        return sums | {"count": torch.tensor(self.count(batch))}

    def judge(self, sums: Mapping[str, float]) -> Evaluation:
        """Return the errors; the baseline is the better of the mean and the repeated true first frame."""
        metrics = {f"eval_mse{part}": sums["model" + part] / sums["count"] for part in PARTS}
        trivial = {
            f"eval_mse{part}": min(sums["mean" + part], sums["first" + part]) / sums["count"]
            for part in PARTS
        }
        return Evaluation(metrics, trivial, "eval_mse")


def choose_task(plan: ImuStream, setting: BuildContext) -> Workload:
    """Return the workload that a plan asks for: the motion of one sensor, or the pose of a body.

    Raises:
        InvalidSpec: the training data is missing, unreadable, invalid or too small.
    """
    if plan.module is None:
        return StreamedPoses(plan, setting)
    from jobs.workloads.imu_stream.body.workload import BodyPoses  # noqa: PLC0415 - only what is used

    return BodyPoses(plan, plan.module, setting)


def _target_bytes(sides: Sides, plan: ImuStream) -> float:
    """Return the mean size in bytes of the targets of a recording."""
    recordings = [each for side in sides for each in side]
    windows = sum(windows_of(each, plan) for each in recordings) / len(recordings)
    return windows * plan.window * TARGETS * np.dtype(np.float32).itemsize
