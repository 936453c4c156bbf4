"""Estimates the pose of a body from a few sensors, one of four networks at a time.

Each job trains one network.  The first reads the sensors; the others read the sensors and the joints: the
true ones with noise in training, as MobilePoser does, and at evaluations those that the first network says
if the job began with trained weights (``init_from``), else the true ones.
"""
# ruff: noqa: N806 - tensors carry their shape: B rows, T frames, C inputs, D targets, J joints

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from jobs.checkpoint.signatures import CORPUS, MODEL, SCHEDULE, model_signature, schedule_signature, signature
from jobs.contract.plans.imu_stream import SYNTHETIC_IMU, ImuStream, Module
from jobs.data.motion import survey
from jobs.data.skeleton import JOINTS, SIX, from_six
from jobs.training.batches import Batch
from jobs.training.randomness import seed_all
from jobs.training.report import say, warn
from jobs.workloads.common.workload import TrainedWorkload
from jobs.workloads.imu_stream.body.errors import PRIMARY, Estimates, constant_logits, errors
from jobs.workloads.imu_stream.body.frames import (
    AXES,
    CONTACTS,
    POSE,
    POSITIONS,
    TARGETS,
    TURN,
    VELOCITIES,
    inputs_of,
)
from jobs.workloads.imu_stream.body.networks import MODULES, BodyNetworks, losses
from jobs.workloads.imu_stream.body.synthetic import synthetic_recordings
from jobs.workloads.imu_stream.body.windows import BodyWindows, measure, reader_of
from jobs.workloads.imu_stream.source import streamed_or_loaded, verify
from jobs.workloads.imu_stream.streaming import (
    Sides,
    keeping,
    long_enough,
    require_shards,
    split,
    summary,
)
from jobs.workloads.protocol import BuildContext, Evaluation

CORPUS_FIELDS = {"held_out", "rate_hz", "sites", "acceleration_scale", "velocity_scale"}
ROW_FIELDS = {
    "window", "stride", "device_combos", "shards", "shuffle_block", "dropout", "joint_noise", "jerk_weight",
    "position_weight",
}  # fmt: skip


class BodyPoses(TrainedWorkload[ImuStream, BodyNetworks]):
    """The workload: recordings, networks and losses of one spec."""

    item = "window"

    def __init__(self, plan: ImuStream, trained: Module, setting: BuildContext) -> None:
        self.plan = plan
        self._trained = trained
        self._synthetic = plan.data == SYNTHETIC_IMU
        sides, self._sha256 = _recordings(plan)
        reader = reader_of(plan, synthetic=self._synthetic)
        self.statistics = measure(sides[0], reader, plan)
        frame_bytes = self.statistics.frames * torch.float32.itemsize
        kept = keeping(sides, frame_bytes * inputs_of(plan), frame_bytes * TARGETS, plan, setting.switches)
        source = BodyWindows(plan, setting.seed, sides, self.statistics.bones_J3, reader, kept)
        verify(source, setting.switches)
        self.source = streamed_or_loaded(source, setting.switches)
        seed_all(setting.seed, "weights")
        self.model = BodyNetworks(plan, trained, self.statistics.bones_J3)
        say(summary(sides, plan))

    @property
    def train_items(self) -> int:
        return sum(self.source.train.shard_rows)

    @cached_property
    def signatures(self) -> Mapping[str, str]:
        plan = self.plan
        return {
            MODEL: model_signature(self.model, plan.kind, "body"),
            CORPUS: signature([self._sha256, _written(plan, CORPUS_FIELDS)]),
            SCHEDULE: schedule_signature(plan, _written(plan, ROW_FIELDS)),
        }

    def loss_sum(self, batch: Batch) -> Tensor:
        joints_BTD = batch["body"][..., POSITIONS]
        if self.model.training:
            joints_BTD = joints_BTD + self.plan.joint_noise * torch.randn_like(joints_BTD)
        return losses(self.model, batch, self.plan, joints_BTD).sum()

    def score(self, batch: Batch) -> Mapping[str, Tensor]:
        """Return summed errors of the networks, and of a rigid figure that is carried by a sensor."""
        true = self._true(batch)
        sums: dict[str, Tensor] = {"count": torch.tensor(self.count(batch))}
        said = {"model": self._said(batch), "trivial": self._rigid(batch)}
        for who, estimates in said.items():
            for name, total in errors(estimates, true, self.plan.rate_hz).items():
                sums[f"{who}_{name}"] = total
        return sums

    def judge(self, sums: Mapping[str, float]) -> Evaluation:
        """Return the errors, and those of the rigid figure."""
        found = {
            who: {
                "eval_" + name.removeprefix(who + "_"): total / sums["count"]
                for name, total in sums.items()
                if name.startswith(who + "_")
            }
            for who in ("model", "trivial")
        }
        trivial = {name: value for name, value in found["trivial"].items() if name in found["model"]}
        metrics = found["model"] | ({"synthetic_data": 1.0} if self._synthetic else {})
        return Evaluation(metrics, trivial, PRIMARY[self._trained])

    def _true(self, batch: Batch) -> Estimates:
        body_BTD = batch["body"]
        positions_BTJ3 = body_BTD[..., POSITIONS].unflatten(2, (JOINTS, AXES))
        return Estimates(
            positions_BTJ3,
            from_six(body_BTD[..., POSE].unflatten(2, (JOINTS, SIX))),
            positions_BTJ3,
            body_BTD[..., CONTACTS],
            body_BTD[..., VELOCITIES] * self.plan.velocity_scale,
        )

    def _said(self, batch: Batch) -> Estimates:
        """Return the output of the network that is trained, and by those before it if they are trained."""
        plan, imu_BTC = self.plan, batch["imu"]
        in_turn = plan.init_from is not None
        last = MODULES.index(self._trained)
        heard = set(MODULES[: last + 1]) if in_turn else {self._trained}
        said: dict[Module, Tensor] = {}
        joints_BTD = batch["body"][..., POSITIONS]
        if "joints" in heard:
            said["joints"] = self.model(imu_BTC, "joints").float()
            joints_BTD = said["joints"]
        for module in MODULES[1:]:
            if module in heard:
                said[module] = self.model(torch.cat([imu_BTC, joints_BTD], -1), module).float()
        turned, placed = self.model.posed(said["poser"]) if "poser" in said else (None, None)
        return Estimates(
            said["joints"].unflatten(2, (JOINTS, AXES)) if "joints" in said else None,
            turned,
            placed,
            said.get("foot_contact"),
            said["velocity"] * plan.velocity_scale if "velocity" in said else None,
        )

    def _rigid(self, batch: Batch) -> Estimates:
        """Return the mean figure, turned with one of the visible sensors; it stands still."""
        carrier_B, imu_BTC, statistics = batch["carrier"], batch["imu"], self.statistics
        device, first = imu_BTC.device, len(self.plan.sites) * AXES
        turns_BTS9 = imu_BTC[..., first:].unflatten(2, (len(self.plan.sites), TURN))
        turn_BT133 = turns_BTS9[torch.arange(len(carrier_B), device=device), :, carrier_B].unflatten(
            2, (1, 3, 3)
        )
        turned_BTJ33 = turn_BT133 @ statistics.rigid_SJ33.to(device)[carrier_B][:, None]
        seen_BJ31 = statistics.rigid_positions_SJ3.to(device)[carrier_B][..., None]
        placed_BTJ3 = (turn_BT133 @ seen_BJ31[:, None])[..., 0]
        contact_BT2 = constant_logits(statistics.standing_2.to(device)).expand_as(
            batch["body"][..., CONTACTS]
        )
        return Estimates(
            placed_BTJ3,
            turned_BTJ33,
            placed_BTJ3,
            contact_BT2,
            torch.zeros_like(batch["body"][..., VELOCITIES]),
        )


def _recordings(plan: ImuStream) -> tuple[Sides, str]:
    """Return the recordings of both sides, and a digest of the data."""
    if plan.data == SYNTHETIC_IMU:
        count, frames = plan.synthetic_sequences, plan.synthetic_frames
        warn(f"SYNTHETIC DATA: {count:,} made-up sequences of {frames:,} frames")
        return split(synthetic_recordings(plan), plan), signature([SYNTHETIC_IMU, count, frames])
    found = survey(Path(plan.data), plan.files, max(plan.sites) + 1, plan.clean)
    if not found.test:
        return split(found.train, plan), found.sha256
    train, test = long_enough(found.train, plan), long_enough(found.test, plan)
    require_shards(train, plan)
    return (train, test) if test else split(found.train, plan), found.sha256


def _written(plan: ImuStream, fields: set[str]) -> dict[str, Any]:
    """Return some fields, those with their default as well."""
    return {name: _plain(getattr(plan, name)) for name in sorted(fields)}


def _plain(value: Any) -> Any:  # noqa: ANN401 - what a plan holds
    return [_plain(each) for each in value] if isinstance(value, tuple) else value
