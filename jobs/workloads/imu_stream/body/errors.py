"""The errors of a body-pose estimator in degrees, centimetres and metres per second, as papers report them.

SIP error: hips and shoulders alone (Sparse Inertial Poser, von Marcard et al., Eurographics 2017).  Positions
are compared with the roots on each other.  Jitter is the jerk of all joints in 100 m/s^3, and distance
how far the root has drifted after a window (TransPose, Yi et al., SIGGRAPH 2021).
"""
# ruff: noqa: N803, N806, N815 - tensors carry their shape: B rows, T frames, J joints

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from jobs.contract.plans.imu_stream import Module
from jobs.data.skeleton import JOINTS, SIP_JOINTS, angles_between
from jobs.workloads.imu_stream.body.frames import AXES
from jobs.workloads.imu_stream.body.networks import contact_losses

CM: Final = 100.0

PRIMARY: Final[Mapping[Module, str]] = {
    "joints": "eval_joints_cm",
    "poser": "eval_angle_deg",
    "foot_contact": "eval_contact_loss",
    "velocity": "eval_velocity_m_s",
}
"""The error that selects the best checkpoint of each network."""


@dataclass(frozen=True, slots=True)
class Estimates:
    """Estimates or true values of a window; None: not given."""

    joints_BTJ3: Tensor | None = None
    turned_BTJ33: Tensor | None = None
    placed_BTJ3: Tensor | None = None  # the joints that follow from the rotations
    contact_BT2: Tensor | None = None  # said: logits; true: 0 or 1
    velocity_BTD: Tensor | None = None  # in m/s


def errors(said: Estimates, true: Estimates, rate_hz: float) -> dict[str, Tensor]:
    """Return the sum of each error over the rows of a batch."""
    found: dict[str, Tensor] = {}
    if said.joints_BTJ3 is not None and true.joints_BTJ3 is not None:
        found["joints_cm"] = CM * _apart(said.joints_BTJ3, true.joints_BTJ3)
    if said.turned_BTJ33 is not None and true.turned_BTJ33 is not None:
        angle_BTJ = angles_between(said.turned_BTJ33, true.turned_BTJ33)
        found["angle_deg"] = angle_BTJ.mean((1, 2))
        found["sip_deg"] = angle_BTJ[..., list(SIP_JOINTS)].mean((1, 2))
    if said.placed_BTJ3 is not None and true.joints_BTJ3 is not None:
        found["position_cm"] = CM * _apart(said.placed_BTJ3, true.joints_BTJ3)
        if said.placed_BTJ3.shape[1] > AXES:
            jerk_BTJ3 = said.placed_BTJ3.diff(n=3, dim=1) * rate_hz**3
            found["jitter"] = jerk_BTJ3.norm(dim=-1).mean((1, 2)) / 100
    if said.contact_BT2 is not None and true.contact_BT2 is not None:
        found["contact_loss"] = contact_losses(said.contact_BT2, true.contact_BT2)
        wrong_BT2 = (said.contact_BT2 > 0) != (true.contact_BT2 > 0)
        found["contact_wrong"] = wrong_BT2.float().mean((1, 2))
    if said.velocity_BTD is not None and true.velocity_BTD is not None:
        error_BTJ3 = (said.velocity_BTD - true.velocity_BTD).unflatten(2, (JOINTS, AXES))
        found["velocity_m_s"] = error_BTJ3.norm(dim=-1).mean((1, 2))
        found["distance_cm"] = CM * (error_BTJ3[:, :, 0].sum(1) / rate_hz).norm(dim=-1)
    return {name: each_B.sum() for name, each_B in found.items()}


def constant_logits(share_2: Tensor) -> Tensor:
    """Return the logits that say a share."""
    return torch.logit(share_2, eps=1e-3)


def _apart(one_BTJ3: Tensor, other_BTJ3: Tensor) -> Tensor:
    return (one_BTJ3 - other_BTJ3).norm(dim=-1).mean((1, 2))
