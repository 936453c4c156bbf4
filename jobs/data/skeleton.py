"""A skeleton of 24 joints: forward kinematics, and rotations as six numbers.

Numbering and hierarchy of the joints are those of SMPL (Loper et al., SIGGRAPH Asia 2015), in which motion
capture archives are written.  The bones here are a simple figure of our own; the bones of somebody's
recordings are measured from their poses and joint positions (``measured_bones``).

Lengths are metres; y points up, z forward and x to the left.  Rotations are matrices.  *Local* ones turn
a joint against its parent, *global* ones against the world.
"""
# ruff: noqa: N803, N806 - tensors carry their shape: N frames, J joints

import math
from typing import Final

import torch
from torch import Tensor

PARENTS: Final = (0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 12, 13, 14, 16, 17, 18, 19, 20, 21)
"""The parent of each joint; the root, the pelvis, is its own."""

JOINTS: Final = len(PARENTS)
REDUCED: Final = (0, 1, 2, 3, 4, 5, 6, 9, 12, 13, 14, 15, 16, 17, 18, 19)
"""The joints whose rotations TransPose and MobilePoser estimate; the others turn with their parents."""

SIX: Final = 6
FEET: Final = (10, 11)
SIP_JOINTS: Final = (1, 2, 16, 17)
"""Hips and shoulders, whose error von Marcard et al. (Sparse Inertial Poser, Eurographics 2017) report."""

SITE_JOINTS: Final = (18, 19, 1, 2, 15, 0)
"""The joints that turn with sensors at left and right wrist, left and right thigh, head and pelvis."""

_SIDE: Final = (
    (
        (0.09, -0.08, 0.0),
        (0.0, -0.40, 0.0),
        (0.0, -0.41, -0.02),
        (0.0, -0.06, 0.12),
    ),  # a leg
    ((0.07, 0.12, 0.0), (0.11, 0.04, 0.0), (0.26, 0.0, 0.0), (0.25, 0.0, 0.0), (0.08, 0.0, 0.0)),  # an arm
)
_MIDDLE: Final = ((0.0, 0.11, 0.0), (0.0, 0.13, 0.0), (0.0, 0.06, 0.0), (0.0, 0.21, 0.0), (0.0, 0.09, 0.04))


def own_bones() -> Tensor:
    """Return the bones of a figure 1.7 m tall that stands with its arms spread: from each parent, (J, 3)."""
    bones_J3 = torch.zeros(JOINTS, 3)
    mirrored = torch.tensor([-1.0, 1.0, 1.0])
    bones_J3[[3, 6, 9, 12, 15]] = torch.tensor(_MIDDLE)
    for left, bones in zip(((1, 4, 7, 10), (13, 16, 18, 20, 22)), _SIDE, strict=True):
        bones_J3[list(left)] = torch.tensor(bones)
        bones_J3[[joint + 1 for joint in left]] = torch.tensor(bones) * mirrored
    return bones_J3


def global_rotations(local_NJ33: Tensor) -> Tensor:
    """Return the rotations against the world."""
    turned = [local_NJ33[..., 0, :, :]]
    for joint in range(1, JOINTS):
        turned.append(turned[PARENTS[joint]] @ local_NJ33[..., joint, :, :])
    return torch.stack(turned, -3)


def turned_with(joints: int) -> tuple[int, ...]:
    """Return for each joint the place, among the estimated ones, of the joint that it turns with."""
    estimated = estimated_joints(joints)
    nearest = list[int]()
    for joint in range(JOINTS):
        nearest.append(joint if joint in estimated else nearest[PARENTS[joint]])
    return tuple(estimated.index(joint) for joint in nearest)


def estimated_joints(joints: int) -> tuple[int, ...]:
    """Return the joints whose rotations are estimated, of 16 or of all."""
    return REDUCED if joints == len(REDUCED) else tuple(range(JOINTS))


def joint_positions(global_NJ33: Tensor, bones_J3: Tensor) -> Tensor:
    """Return the positions of the joints, counted from the root."""
    turning_NJ33 = global_NJ33[..., list(PARENTS), :, :]
    bones_NJ3 = (turning_NJ33 @ bones_J3[..., None])[..., 0]
    return _chains(bones_J3) @ bones_NJ3


def measured_bones(global_NJ33: Tensor, joints_NJ3: Tensor) -> Tensor:
    """Return the bones of recorded joints: the mean of each, seen from its parent; the root's is 0."""
    parents = list(PARENTS)
    along_NJ3 = joints_NJ3 - joints_NJ3[..., parents, :]
    seen_NJ3 = (global_NJ33[..., parents, :, :].transpose(-1, -2) @ along_NJ3[..., None])[..., 0]
    return seen_NJ3.reshape(-1, JOINTS, 3).mean(0)


def as_six(rotations: Tensor) -> Tensor:
    """Return the first two columns of each matrix (Zhou et al., CVPR 2019: continuous, unlike angles)."""
    return rotations[..., :2].transpose(-1, -2).flatten(-2)


def from_six(six: Tensor) -> Tensor:
    """Return the rotation that is nearest in the sense of Gram and Schmidt to each pair of columns."""
    first, second = six.unflatten(-1, (2, 3)).unbind(-2)
    x = torch.nn.functional.normalize(first, dim=-1)
    y = torch.nn.functional.normalize(second - (x * second).sum(-1, keepdim=True) * x, dim=-1)
    return torch.stack([x, y, torch.linalg.cross(x, y)], -1)


def angles_between(one: Tensor, other: Tensor) -> Tensor:
    """Return the angle in degrees from each rotation to the other, 0 to 180."""
    cosine = ((one * other).sum((-1, -2)) - 1) / 2
    return torch.rad2deg(torch.acos(cosine.clamp(-1, 1)))


def from_axis_angles(turns: Tensor) -> Tensor:
    """Return the rotations about axes by as many radians as the axes are long (Rodrigues)."""
    x, y, z = turns.unbind(-1)
    zero = torch.zeros_like(x)
    cross = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).unflatten(-1, (3, 3))
    turned = turns.norm(dim=-1)[..., None, None] / math.pi  # sinc(x) is sin(pi x) / (pi x), and 1 at 0
    squared = 0.5 * torch.sinc(turned / 2).square() * (cross @ cross)
    return torch.eye(3, dtype=turns.dtype) + torch.sinc(turned) * cross + squared


def from_quaternions(quaternions: Tensor) -> Tensor:
    """Return the rotations of unit quaternions (w, x, y, z)."""
    w, x, y, z = quaternions.unbind(-1)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


def _chains(like: Tensor) -> Tensor:
    """Return the matrix that adds up the bones from the root to each joint, (J, J)."""
    chains_JJ = torch.eye(JOINTS, dtype=like.dtype)
    for joint in range(1, JOINTS):
        chains_JJ[joint] += chains_JJ[PARENTS[joint]]
    return chains_JJ.to(like.device)
