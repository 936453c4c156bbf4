"""Makes up the motions of ``synthetic-imu``: figures that walk, turn, lean and wave.

They stand in for motion capture archives, which may not be passed on.  Legs and arms swing in one rhythm, so
that a sensor at a thigh tells of all limbs; each arm also has a slow movement of its own, which only its
own sensor can tell of.  A sequence is a function of its number and its length.
"""
# ruff: noqa: N803, N806 - tensors carry their shape: N frames, J joints

import math
from pathlib import Path

import torch
from torch import Tensor

from jobs.contract.plans.imu_stream import SYNTHETIC_IMU, ImuStream
from jobs.data.motion import Motion
from jobs.data.sequences import Recording
from jobs.data.skeleton import (
    JOINTS,
    SITE_JOINTS,
    from_axis_angles,
    global_rotations,
    joint_positions,
    own_bones,
)
from jobs.training.randomness import derive

ACCELERATION_NOISE = 0.3  # m/s^2
ORIENTATION_NOISE = 0.03  # rad

LEG = 0.85  # metres from hip to foot


def synthetic_recordings(plan: ImuStream) -> tuple[Recording, ...]:
    """Return the sequences, each a group of its own."""
    width = len(str(plan.synthetic_sequences))
    return tuple(
        Recording(Path(SYNTHETIC_IMU), str(number), f"{number:0{width}}", plan.synthetic_frames)
        for number in range(plan.synthetic_sequences)
    )


def make_motion(number: int, frames: int, rate_hz: float) -> Motion:
    """Return a sequence, without joints and contacts: these follow from pose and translation."""
    dice = torch.Generator().manual_seed(derive(0, SYNTHETIC_IMU, frames, number))
    draws = torch.rand(12, generator=dice, dtype=torch.float64).tolist()
    time_N = torch.arange(frames, dtype=torch.float64) / rate_hz
    rhythm = 2 * math.pi * (0.5 + 0.5 * draws[0])  # rad/s
    phase_N = rhythm * time_N + 2 * math.pi * draws[1]
    swing = 0.25 + 0.3 * draws[2]
    yaw_N = 2 * math.pi * draws[3] + 0.5 * (draws[4] - 0.5) * time_N
    waving_N2 = torch.stack(
        [0.5 * torch.sin((0.5 + draws[6 + side]) * time_N + 6 * draws[8 + side]) for side in (0, 1)], -1
    )
    turns_NJ3 = _turns(phase_N, swing, 0.3 * draws[5], waving_N2)
    turns_NJ3[:, 0, 1] = yaw_N
    local_NJ33 = from_axis_angles(turns_NJ3)
    speed = 2 / math.pi * LEG * swing * rhythm  # that of a leg which swings back
    forward_N3 = torch.stack([torch.sin(yaw_N), torch.zeros_like(yaw_N), torch.cos(yaw_N)], -1)
    translation_N3 = torch.cumsum(forward_N3 * speed / rate_hz, 0)
    translation_N3[:, 1] += 0.95 + 0.02 * torch.cos(2 * phase_N)
    return _sensed(local_NJ33, translation_N3, rate_hz, dice)


def _turns(phase_N: Tensor, swing: float, lean: float, waving_N2: Tensor) -> Tensor:
    """Return the axis of each joint's turn against its parent, as long as the angle in radians."""
    turns_NJ3 = torch.zeros(len(phase_N), JOINTS, 3, dtype=torch.float64)
    turns_NJ3[:, (3, 6, 9), 0] = lean / 3
    turns_NJ3[:, 9, 1] = 0.2 * swing * torch.sin(phase_N)
    turns_NJ3[:, 15, 0] = 0.1 * torch.sin(2 * phase_N) - lean / 2
    for side, sign in ((0, 1.0), (1, -1.0)):
        step_N = sign * _to_and_fro(phase_N)
        turns_NJ3[:, 1 + side, 0] = -swing * step_N
        turns_NJ3[:, 4 + side, 0] = 2 * swing * (sign * phase_N.cos()).clamp(min=0).square()
        turns_NJ3[:, 7 + side, 0] = -0.1 * swing * step_N
        turns_NJ3[:, 16 + side, 2] = sign * (-1.2 + waving_N2[:, side])  # the arms hang down
        turns_NJ3[:, 13 + side, 1] = 0.4 * swing * step_N
        turns_NJ3[:, 18 + side, 1] = -sign * (0.4 + swing * (1 + step_N) / 2)
    return turns_NJ3


def _to_and_fro(phase_N: Tensor) -> Tensor:
    """Return a swing of almost constant speed between its turning points, so that feet do not slide."""
    waves = [torch.sin(n * phase_N) * (-1) ** (n // 2) / n**2 for n in (1, 3, 5)]
    return torch.stack(waves).sum(0) * 8 / math.pi**2


def _sensed(local_NJ33: Tensor, translation_N3: Tensor, rate_hz: float, dice: torch.Generator) -> Motion:
    """Return a motion with what sensors at six sites read: orientation, and acceleration without gravity."""
    global_NJ33 = global_rotations(local_NJ33)
    sites = list(SITE_JOINTS)
    positions_NJ3 = joint_positions(global_NJ33, own_bones().double()) + translation_N3[:, None]
    [moving_NS3] = torch.gradient(positions_NJ3[:, sites], spacing=1 / rate_hz, dim=0)
    [acceleration_NS3] = torch.gradient(moving_NS3, spacing=1 / rate_hz, dim=0)
    shaken_NS3 = torch.randn(acceleration_NS3.shape, generator=dice, dtype=torch.float64)
    tilted_NS3 = torch.randn(acceleration_NS3.shape, generator=dice, dtype=torch.float64)
    return Motion(
        (acceleration_NS3 + ACCELERATION_NOISE * shaken_NS3).float(),
        (global_NJ33[:, sites] @ from_axis_angles(ORIENTATION_NOISE * tilted_NS3)).float(),
        local_NJ33.float(),
        translation_N3.float(),
        joints_NJ3=None,
        contact_N2=None,
    )
