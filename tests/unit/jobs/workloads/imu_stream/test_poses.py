"""The targets are the physics that they claim to be."""
# ruff: noqa: N806 - arrays carry their shape

import math

import numpy as np
import pytest

from jobs.workloads.imu_stream.poses import GAIN, MOTION, ORIENTATION, Frames, poses

RATE_HZ = 100.0


def window(
    up: tuple[float, ...] = (0, 0, 1), turn: tuple[float, ...] = (0, 0, 0), frames: int = 100
) -> Frames:
    return np.tile(np.array([*up, *turn], np.float32), (1, frames, 1))


def rotation(pose_9: Frames) -> Frames:
    x, y = pose_9[:3], pose_9[3:6]
    return np.stack([x, y, np.cross(x, y)], axis=-1)


def test_a_sensor_at_rest_does_not_move() -> None:
    pose_T9 = poses(window(), 1.0, RATE_HZ)[0]
    np.testing.assert_allclose(pose_T9, np.tile([1, 0, 0, 0, 1, 0, 0, 0, 0], (100, 1)), atol=1e-6)


def test_a_turn_about_the_vertical_is_integrated() -> None:
    angle = 99 / RATE_HZ * 1.5
    last_9 = poses(window(turn=(0, 0, 1.5)), 1.0, RATE_HZ)[0, -1]
    expected = [math.cos(angle), math.sin(angle), 0, -math.sin(angle), math.cos(angle), 0]
    np.testing.assert_allclose(last_9[ORIENTATION], expected, atol=1e-3)


@pytest.mark.parametrize("up", [(1, 0, 0), (0, -1, 0), (0.6, 0, -0.8), (0, 0, -1), (0.48, 0.6, 0.64)])
def test_gravity_is_turned_upright_from_the_first_frame_on(up: tuple[float, ...]) -> None:
    pose_T9 = poses(window(up), 1.0, RATE_HZ)[0]
    for pose_9 in (pose_T9[0], pose_T9[-1]):
        np.testing.assert_allclose(rotation(pose_9) @ np.array(up, np.float32), [0, 0, 1], atol=1e-5)
    np.testing.assert_allclose(pose_T9[:, MOTION], 0, atol=1e-5)


def test_a_wrong_tilt_is_corrected_by_the_accelerometer() -> None:
    imu_1T6 = window((math.sin(0.5), 0, math.cos(0.5)), frames=1000)
    imu_1T6[:, 0, :3] = (0, 0, 1)  # the first frame, from which the tilt is taken, lies
    up_T = [rotation(pose_9)[2] @ imu_1T6[0, 1, :3] for pose_9 in poses(imu_1T6, 1.0, RATE_HZ)[0]]
    left_after_a_second = 2 * math.atan(math.tan(0.25) * math.exp(-GAIN))
    assert up_T[0] == pytest.approx(math.cos(0.5), abs=1e-5)
    assert up_T[100] == pytest.approx(math.cos(left_after_a_second), abs=1e-3)
    assert up_T[-1] == pytest.approx(1, abs=1e-5)


def test_motion_is_what_the_accelerometer_shows_besides_gravity() -> None:
    imu_1T6 = window((0, 0, 9.81))
    imu_1T6[0, 50, :3] += (0, 4.905, 9.81)
    motion_T3 = poses(imu_1T6, 9.81, RATE_HZ)[0, :, MOTION]
    np.testing.assert_allclose(motion_T3[50], [0, 0.5, 1], atol=0.02)
    np.testing.assert_allclose(motion_T3[10], 0, atol=1e-6)


def test_no_acceleration_at_all_gives_numbers() -> None:
    assert np.isfinite(poses(window((0, 0, 0), (1, 2, 3)), 1.0, RATE_HZ)).all()


def test_windows_do_not_depend_on_those_beside_them() -> None:
    imu_WT6 = np.random.default_rng(0).standard_normal((7, 30, 6)).astype(np.float32)
    together = poses(imu_WT6, 1.0, RATE_HZ)
    alone = np.concatenate([poses(each[None], 1.0, RATE_HZ) for each in imu_WT6])
    np.testing.assert_array_equal(together, alone)


def test_rotations_stay_rotations() -> None:
    imu_WT6 = np.random.default_rng(0).standard_normal((1, 500, 6)).astype(np.float32) * 5
    for pose_9 in poses(imu_WT6, 1.0, RATE_HZ)[0, ::50]:
        turn_33 = rotation(pose_9)
        np.testing.assert_allclose(turn_33.T @ turn_33, np.eye(3), atol=1e-5)
