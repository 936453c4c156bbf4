"""Rotations and joints of the skeleton."""

import math

import pytest
import torch

from jobs.data.skeleton import (
    JOINTS,
    PARENTS,
    angles_between,
    as_six,
    from_axis_angles,
    from_quaternions,
    from_six,
    global_rotations,
    joint_positions,
    measured_bones,
    own_bones,
)


def some_rotations(*shape: int) -> torch.Tensor:
    return from_axis_angles(torch.randn(*shape, 3, generator=torch.Generator().manual_seed(0)).double())


def test_the_figure_stands_upright_with_its_arms_spread() -> None:
    joints = joint_positions(torch.eye(3).expand(JOINTS, 3, 3), own_bones())
    assert joints[0].tolist() == [0, 0, 0]
    left_hand, right_hand, head, left_foot = joints[[22, 23, 15, 10]]
    assert torch.allclose(left_hand * torch.tensor([-1, 1, 1]), right_hand)
    assert 1.5 < float(head[1] - left_foot[1]) < 1.7
    assert 1.3 < float(left_hand[0] - right_hand[0]) < 1.7


def test_every_joint_follows_its_parent() -> None:
    assert all(parent < joint for joint, parent in enumerate(PARENTS) if joint)
    turned, bones = global_rotations(some_rotations(5, JOINTS)), own_bones().double()
    joints = joint_positions(turned, bones)
    assert not joints[:, 0].any()
    for joint, parent in list(enumerate(PARENTS))[1:]:
        along = (turned[:, parent] @ bones[joint][:, None])[..., 0]
        assert torch.allclose(joints[:, joint], joints[:, parent] + along)


def test_a_turn_of_the_root_turns_everything() -> None:
    local = torch.eye(3).repeat(JOINTS, 1, 1)
    local[0] = from_axis_angles(torch.tensor([0.0, math.pi / 2, 0.0]))
    straight = joint_positions(torch.eye(3).expand(JOINTS, 3, 3), own_bones())
    turned = joint_positions(global_rotations(local), own_bones())
    assert torch.allclose(turned, straight @ local[0].T, atol=1e-6)


def test_bones_are_measured_from_poses_and_joints() -> None:
    bones, turned = own_bones().double() * 1.1, global_rotations(some_rotations(4, JOINTS))
    joints = joint_positions(turned, bones) + 5.0
    assert torch.allclose(measured_bones(turned, joints), bones)


def test_six_numbers_are_a_rotation_and_any_six_become_one() -> None:
    rotations = some_rotations(7, JOINTS)
    assert torch.allclose(from_six(as_six(rotations)), rotations)
    nearest = from_six(torch.randn(9, 6, generator=torch.Generator().manual_seed(1)))
    assert torch.allclose(nearest @ nearest.transpose(-1, -2), torch.eye(3), atol=1e-5)
    assert torch.allclose(torch.linalg.det(nearest), torch.ones(9))


@pytest.mark.parametrize("degrees", [0.0, 1.0, 90.0, 179.0])
def test_angles_are_in_degrees(degrees: float) -> None:
    turn = from_axis_angles(torch.tensor([0.0, 0.0, math.radians(degrees)], dtype=torch.float64))
    known = some_rotations(1)[0]
    assert float(angles_between(known @ turn, known)) == pytest.approx(degrees, abs=1e-4)


def test_axes_with_angles_are_the_exponential_of_their_cross_product() -> None:
    turns = torch.randn(20, 3, generator=torch.Generator().manual_seed(2)).double()
    x, y, z = turns.unbind(-1)
    zero = torch.zeros_like(x)
    cross = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).unflatten(-1, (3, 3))
    assert torch.allclose(from_axis_angles(turns), torch.matrix_exp(cross))


def test_quaternions_have_the_real_part_first() -> None:
    turns = torch.tensor([[0.3, -0.2, 0.9], [0.0, 2.0, 0.0]]).double()
    half = turns.norm(dim=-1, keepdim=True) / 2
    quaternions = torch.cat([half.cos(), half.sin() * turns / (2 * half)], -1)
    assert torch.allclose(from_quaternions(quaternions), from_axis_angles(turns))
