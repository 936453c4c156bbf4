"""The four networks of a body-pose estimator, and their losses.

After MobilePoser (Xu et al., UIST 2024; github.com/nawta/MobilePoser, commit 8e7fa0b): ``joints`` estimates
where the joints are, ``poser`` how they are turned, ``foot_contact`` which feet stand, and ``velocity`` how
fast all joints move.  The last three read the joints as well.  Here the four are parts of one model, so that
the weights of one job are the beginning of the next.
"""
# ruff: noqa: N803, N806 - tensors carry their shape: B rows, T frames, C inputs, J joints

from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from jobs.contract.plans.imu_stream import ImuStream, Module
from jobs.data.skeleton import (
    FEET,
    JOINTS,
    SIX,
    estimated_joints,
    from_six,
    joint_positions,
    turned_with,
)
from jobs.training.batches import Batch
from jobs.workloads.imu_stream.body.frames import AXES, CONTACTS, POSE, POSITIONS, VELOCITIES, inputs_of

MODULES: Final[tuple[Module, ...]] = ("joints", "poser", "foot_contact", "velocity")
"""The order in which they are trained: later ones read what the first one says."""

CONTACT_SHARE: Final = 4
"""The network of the feet is narrower by so much."""

SPANS: Final = (1, 3, 9)
"""Frames over which the error of the velocity is added up, so that a drift counts."""


class Recurrent(nn.Module):
    """Linear, ReLU, dropout, LSTM, linear."""

    def __init__(self, inputs: int, outputs: int, width: int, plan: ImuStream, *, ahead: bool) -> None:
        super().__init__()
        self.embed = nn.Linear(inputs, width)
        self.dropout = nn.Dropout(plan.dropout)
        self.lstm = nn.LSTM(width, width, plan.layers, batch_first=True, bidirectional=ahead)
        self.out = nn.Linear(width * (2 if ahead else 1), outputs)

    def forward(self, inputs_BTC: Tensor) -> Tensor:
        hidden_BTH, _ = self.lstm(self.dropout(self.embed(inputs_BTC).relu()))
        return self.out(hidden_BTH)


class BodyNetworks(nn.Module):
    """All four, of which one is trained.  The bones are constants, and no part of its state."""

    def __init__(self, plan: ImuStream, trained: Module, bones_J3: Tensor) -> None:
        super().__init__()
        self.trained = trained
        sensors, wide, ahead = inputs_of(plan), plan.hidden, plan.bidirectional
        both, narrow = sensors + JOINTS * AXES, max(1, plan.hidden // CONTACT_SHARE)
        self.joints = Recurrent(sensors, JOINTS * AXES, wide, plan, ahead=ahead)
        self.poser = Recurrent(both, plan.pose_joints * SIX, wide, plan, ahead=ahead)
        self.foot_contact = Recurrent(both, len(FEET), narrow, plan, ahead=ahead)
        self.velocity = Recurrent(both, JOINTS * AXES, wide, plan, ahead=False)
        self.estimated, self._turned_with = estimated_joints(plan.pose_joints), turned_with(plan.pose_joints)
        self.bones_J3: Tensor
        self.register_buffer("bones_J3", bones_J3, persistent=False)
        for name in MODULES:
            self.get_submodule(name).requires_grad_(name == trained)

    def forward(self, inputs_BTC: Tensor, module: Module) -> Tensor:
        """Return the output of one of the networks."""
        return self.get_submodule(module)(inputs_BTC)

    def posed(self, six_BTD: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rotations and the positions of all joints that the poser's output means."""
        turned_BTJ33 = from_six(six_BTD.float().unflatten(-1, (-1, SIX)))
        if len(self.estimated) < JOINTS:
            turned_BTJ33 = turned_BTJ33[..., list(self._turned_with), :, :]
        return turned_BTJ33, joint_positions(turned_BTJ33, self.bones_J3)


def losses(networks: BodyNetworks, batch: Batch, plan: ImuStream, joints_BTD: Tensor) -> Tensor:
    """Return the loss of each row for the network that is trained, which may read ``joints_BTD``."""
    imu_BTC, body_BTD = batch["imu"], batch["body"]
    trained = networks.trained
    if trained == "joints":
        said_BTD = networks(imu_BTC, "joints").float()
        return _squares(said_BTD - body_BTD[..., POSITIONS]) + plan.jerk_weight * jerk(said_BTD)
    said_BTD = networks(torch.cat([imu_BTC, joints_BTD], -1), trained).float()
    match trained:
        case "poser":
            _, placed_BTJ3 = networks.posed(said_BTD)
            positions = _squares(placed_BTJ3.flatten(2) - body_BTD[..., POSITIONS])
            pose_BTD = body_BTD[..., POSE]
            if len(networks.estimated) < JOINTS:
                pose_BTD = pose_BTD.unflatten(2, (JOINTS, SIX))[:, :, list(networks.estimated)].flatten(2)
            pose = _squares(said_BTD - pose_BTD)
            return pose + plan.position_weight * positions + plan.jerk_weight * jerk(said_BTD)
        case "foot_contact":
            return contact_losses(said_BTD, body_BTD[..., CONTACTS])
        case "velocity":
            return velocity_losses(said_BTD - body_BTD[..., VELOCITIES])


def jerk(values_BTD: Tensor) -> Tensor:
    """Return the mean size of the third difference in time of each row; 0 for fewer than four frames."""
    if values_BTD.shape[1] <= 3:
        return values_BTD.new_zeros(len(values_BTD))
    return values_BTD.diff(n=3, dim=1).abs().mean((1, 2))


def contact_losses(logits_BT2: Tensor, contact_BT2: Tensor) -> Tensor:
    """Return the cross entropy of each row."""
    return F.binary_cross_entropy_with_logits(logits_BT2, contact_BT2, reduction="none").mean((1, 2))


def velocity_losses(error_BTD: Tensor) -> Tensor:
    """Return the mean square of each row's error, added up over one, three and nine frames."""
    total = error_BTD.new_zeros(len(error_BTD))
    for span in SPANS:
        whole = error_BTD.shape[1] // span
        if whole:
            total = total + _squares(error_BTD[:, : whole * span].unflatten(1, (whole, span)).sum(2))
    return total


def _squares(error_BTD: Tensor) -> Tensor:
    return error_BTD.square().mean((1, 2))
