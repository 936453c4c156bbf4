"""Turns a recorded motion into what the networks read and what they are to say, frame by frame."""
# ruff: noqa: N803, N806, N815 - tensors carry their shape: N frames, S sites, J joints, C inputs, D targets

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from jobs.contract.plans.imu_stream import ImuStream
from jobs.data.motion import Motion
from jobs.data.skeleton import FEET, JOINTS, SIX, as_six, global_rotations, joint_positions

AXES: Final = 3
TURN: Final = 9
POSE: Final = slice(0, JOINTS * SIX)
POSITIONS: Final = slice(POSE.stop, POSE.stop + JOINTS * AXES)
VELOCITIES: Final = slice(POSITIONS.stop, POSITIONS.stop + JOINTS * AXES)
CONTACTS: Final = slice(VELOCITIES.stop, VELOCITIES.stop + 2)
TARGETS: Final = CONTACTS.stop

STANDING_M_S: Final = 0.48
"""A foot that is slower stands (TransPose, Yi et al., SIGGRAPH 2021: 8 mm in a sixtieth of a second)."""


@dataclass(frozen=True, slots=True)
class Frames:
    """A converted sequence, float32."""

    imu_NC: Tensor
    targets_ND: Tensor


def inputs_of(plan: ImuStream) -> int:
    """Return the number of inputs: an acceleration and a rotation for each site."""
    return len(plan.sites) * (AXES + TURN)


def convert_inputs(motion: Motion, plan: ImuStream) -> Tensor:
    """Return all accelerations, then all rotations, of the sites that the plan names: (N, C)."""
    sites = list(plan.sites)
    acceleration_NS3 = motion.acceleration_NS3[:, sites] / plan.acceleration_scale
    return torch.cat([acceleration_NS3.flatten(1), motion.orientation_NS33[:, sites].flatten(1)], 1)


def convert_targets(motion: Motion, plan: ImuStream, bones_J3: Tensor) -> Tensor:
    """Return pose, positions, velocities and contacts of all joints: (N, D).

    The pose is against the world.  Positions are counted from the root.  The root's velocity is that of the
    body, that of a joint is its change against the root.
    """
    global_NJ33 = global_rotations(motion.pose_NJ33.double())
    if motion.joints_NJ3 is None:
        positions_NJ3 = joint_positions(global_NJ33, bones_J3.double())
    else:
        positions_NJ3 = motion.joints_NJ3.double() - motion.joints_NJ3[:, :1].double()
    translation_N3 = motion.translation_N3.double()
    moved_NJ3 = torch.cat([translation_N3[:, None], positions_NJ3[:, 1:]], 1)
    velocity_NJ3 = changes(moved_NJ3) * plan.rate_hz
    parts = [
        as_six(global_NJ33).flatten(1),
        positions_NJ3.flatten(1),
        velocity_NJ3.flatten(1) / plan.velocity_scale,
        _contacts(motion, velocity_NJ3),
    ]
    return torch.cat(parts, 1).float()


def changes(values_NX: Tensor) -> Tensor:
    """Return the change from the frame before; the first frame takes that of the second."""
    if len(values_NX) == 1:
        return torch.zeros_like(values_NX)
    change_NX = values_NX.diff(dim=0)
    return torch.cat([change_NX[:1], change_NX])


def _contacts(motion: Motion, velocity_NJ3: Tensor) -> Tensor:
    if motion.contact_N2 is not None:
        return motion.contact_N2.double()
    feet_N23 = velocity_NJ3[:, list(FEET)] + velocity_NJ3[:, :1]
    return (feet_N23.norm(dim=-1) < STANDING_M_S).double()
