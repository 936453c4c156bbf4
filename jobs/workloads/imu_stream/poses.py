"""Computes the orientation and the motion of an inertial sensor, frame by frame.

These are the targets of ``imu_stream``.  They are computed from the clean signal of all six channels, so
no annotation is needed.  A complementary filter (Mahony, Hamel and Pflimlin, IEEE TAC 53(5), 2008, the
explicit form without bias estimate) tracks the orientation.  The motion is the acceleration without
gravity.  The filter is recursive: each frame depends on the previous one.  The loop over frames dominates
the cost, and many windows are processed in parallel.

The arithmetic is float64 and independent for each window, so the results do not depend on how
windows are grouped.
"""
# ruff: noqa: N803, N806 - arrays carry their shape: W windows, T frames, Q 16 products of two quaternion parts

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Frames: TypeAlias = NDArray[np.float32]

GAIN: Final = 1.0
"""Speed at which the accelerometer corrects the tilt: rad/s per sine of the error."""

TARGETS: Final = 9
ORIENTATION: Final = slice(0, 6)
MOTION: Final = slice(6, 9)

_NO_LENGTH: Final = 1e-9


def poses(imu_WT6: Frames, gravity: float, rate_hz: float) -> Frames:
    """Return orientation and motion for every frame, float32 of shape (W, T, 9).

    The inputs are the acceleration (at rest it points up and has length ``gravity``) and the turn rate in
    rad/s.  The first six outputs are the first two columns of the rotation from sensor to world (Zhou et
    al., CVPR 2019: continuous, unlike angles).  The world's z axis points up.  The heading of a window's
    first frame is that of the shortest rotation to upright.  The last three outputs are the acceleration
    without gravity, in world axes and in units of gravity.
    """
    acceleration_WT3 = imu_WT6[..., :3].astype(np.float64) / gravity
    turn_WT3 = imu_WT6[..., 3:].astype(np.float64)
    rotation_WT33 = _rotations(_filtered(acceleration_WT3, turn_WT3, 1 / rate_hz))
    motion_WT3 = (rotation_WT33 @ acceleration_WT3[..., None])[..., 0]
    motion_WT3[..., 2] -= 1.0
    columns_WT6 = np.concatenate([rotation_WT33[..., 0], rotation_WT33[..., 1]], axis=-1)
    return np.concatenate([columns_WT6, motion_WT3], axis=-1).astype(np.float32)


def _filtered(acceleration_WT3: Array, turn_WT3: Array, frame_s: float) -> Array:
    """Return unit quaternions (w, x, y, z) from sensor to world, of shape (W, T, 4)."""
    windows, frames, _ = turn_WT3.shape
    length_WT1 = np.linalg.norm(acceleration_WT3, axis=-1, keepdims=True)
    up_WT3 = acceleration_WT3 / np.maximum(length_WT1, _NO_LENGTH)
    # The estimated up is quadratic in the quaternion: its cross product is one matrix times the products.
    error_WT3Q = GAIN * (_cross_matrices(up_WT3) @ _UP_OF_PRODUCTS_3Q)
    half_step_Q3 = _TURN_Q3 * (frame_s / 2)
    q_WT41 = np.empty((windows, frames, 4, 1))
    q_WT41[:, 0] = q_W41 = _shortest_turn_upright(up_WT3[:, 0])[..., None]
    for frame in range(1, frames):
        products_WQ1 = (q_W41 * q_W41.swapaxes(1, 2)).reshape(windows, 16, 1)
        rate_W31 = turn_WT3[:, frame, :, None] + error_WT3Q[:, frame] @ products_WQ1
        q_W41 = q_W41 + (half_step_Q3 @ rate_W31).reshape(windows, 4, 4) @ q_W41
        q_WT41[:, frame] = q_W41 = q_W41 / np.sqrt((q_W41 * q_W41).sum(1, keepdims=True))
    return q_WT41[..., 0]


def _shortest_turn_upright(up_W3: Array) -> Array:
    """Return the quaternions that rotate a direction to z; -z is rotated half a turn about x."""
    x_W, y_W, z_W = up_W3.T
    q_W4 = np.stack([1 + z_W, y_W, -x_W, np.zeros_like(z_W)], axis=-1)
    length_W1 = np.linalg.norm(q_W4, axis=-1, keepdims=True)
    down_W1 = length_W1 < _NO_LENGTH
    return np.where(down_W1, [0.0, 1.0, 0.0, 0.0], q_W4 / np.where(down_W1, 1.0, length_W1))


def _rotations(q_WT4: Array) -> Array:
    """Return the rotation matrices of unit quaternions."""
    w, x, y, z = np.moveaxis(q_WT4, -1, 0)
    entries = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return np.stack([np.stack(row, axis=-1) for row in entries], axis=-2)


def _cross_matrices(a_WT3: Array) -> Array:
    """Return the matrices that multiply a vector by ``a`` from the left, as a cross product."""
    x, y, z = np.moveaxis(a_WT3, -1, 0)
    zero = np.zeros_like(x)
    entries = [[zero, -z, y], [z, zero, -x], [-y, x, zero]]
    return np.stack([np.stack(row, axis=-1) for row in entries], axis=-2)


def _up_of_products() -> Array:
    """Return the matrix from q q^T, flattened, to the world's z seen from the sensor."""
    up_344 = np.zeros((3, 4, 4))
    up_344[0, 1, 3], up_344[0, 0, 2] = 2, -2
    up_344[1, 2, 3], up_344[1, 0, 1] = 2, 2
    up_344[2] = np.diag([1.0, -1.0, -1.0, 1.0])
    return up_344.reshape(3, 16)


def _turn() -> Array:
    """Return the matrix from a turn rate to the matrix, flattened, of q times that rate."""
    turn_344 = np.zeros((3, 4, 4))
    for axis, (a, b, c) in enumerate(((1, 2, 3), (2, 3, 1), (3, 1, 2))):
        turn_344[axis, 0, a], turn_344[axis, a, 0] = -1, 1
        turn_344[axis, b, c], turn_344[axis, c, b] = 1, -1
    return np.ascontiguousarray(turn_344.reshape(3, 16).T)


_UP_OF_PRODUCTS_3Q: Final = _up_of_products()
_TURN_Q3: Final = _turn()
