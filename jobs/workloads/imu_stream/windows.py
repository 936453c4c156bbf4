"""Streams windows of recordings: the masked, noisy signal and its poses.

``jobs.workloads.imu_stream.order`` defines the order; caching changes only the time.
The repeated work of MobilePoser (github.com/nawta/MobilePoser, commit 8e7fa0b) can be reproduced here:
a recording is opened and converted for every use, and the targets of a window are computed for every
combo, with scans for NaN.  See the switches ``conversion``, ``shared_targets`` and ``stream_buffer``.
"""
# ruff: noqa: N803, N806 - arrays carry their shape: B rows, T frames, W windows; a row is (recording, window, combo)

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import torch
from torch import Tensor

from jobs.contract.plans.imu_stream import ImuStream
from jobs.data.sequences import Recording, read
from jobs.training.batches import Batch
from jobs.training.failures import InvalidSpec
from jobs.training.lru import LruCache
from jobs.training.randomness import derive
from jobs.workloads.imu_stream.order import Whole
from jobs.workloads.imu_stream.poses import TARGETS, Frames, poses
from jobs.workloads.imu_stream.source import RecordedWindows
from jobs.workloads.imu_stream.streaming import CacheOptions, Sides, evenly, stride_of, windows_of

CHANNELS: Final = 6

SAMPLED_RECORDINGS: Final = 64
SAMPLED_WINDOWS: Final = 16
"""Means and deviations come from so many recordings, and so many windows of each, evenly spaced."""

_SMALLEST_DEVIATION: Final = 1e-6


@dataclass(frozen=True, slots=True)
class WindowStatistics:
    """Means and standard deviations over training windows, per channel and per target."""

    imu_mean: Frames
    imu_deviation: Frames
    pose_mean: Frames
    pose_deviation: Frames
    recording_bytes: float
    """Mean size of what one of the sampled recordings is, converted."""


def columns_of(plan: ImuStream) -> tuple[int, ...]:
    return (*plan.accelerometer, *plan.gyroscope)


def measure(recordings: tuple[Recording, ...], plan: ImuStream) -> WindowStatistics:
    """Return the statistics of training recordings."""
    frames, windows = [], []
    for recording in evenly(recordings, SAMPLED_RECORDINGS):
        frames.append(read(recording, columns_of(plan)))
        starts_W = np.array(evenly(range(windows_of(recording, plan)), SAMPLED_WINDOWS)) * stride_of(plan)
        windows.append(_cut(frames[-1], starts_W, plan.window))
    imu_WT6 = np.concatenate(windows)
    pose_WT9 = poses(imu_WT6, plan.gravity, plan.rate_hz)
    imu, pose = (_moments(each) for each in (imu_WT6, pose_WT9))
    return WindowStatistics(*imu, *pose, recording_bytes=sum(each.nbytes for each in frames) / len(frames))


class Windows(RecordedWindows):
    """The source of batches of masked, noisy windows with their poses."""

    def __init__(
        self, plan: ImuStream, seed: int, sides: Sides, scale: WindowStatistics, keeping: CacheOptions
    ) -> None:
        super().__init__(plan, seed, sides, keeping)
        self.scale = scale

    def forget(self) -> None:
        self.frames: LruCache[int, Frames] = LruCache(self.keeping.recordings)
        self.poses: LruCache[int, Frames] = LruCache(self.keeping.recordings)

    @property
    def values(self) -> int:
        windows = sum(map(self.target_rows, self.recordings))
        return CHANNELS * sum(each.samples for each in self.recordings) + windows * self.plan.window * TARGETS

    def target_rows(self, recording: Recording) -> int:
        return windows_of(recording, self.plan)

    def gathered(self, rows_B3: Whole) -> tuple[Tensor, Tensor]:
        return self._normalised(*self.assemble(rows_B3))

    def assemble(self, rows_B3: Whole) -> tuple[Frames, Frames]:
        """Return the clean signal (B, T, 6) and its poses (B, T, 9), not normalised."""
        imu_BT6 = np.empty((len(rows_B3), self.plan.window, CHANNELS), np.float32)
        pose_BT9 = np.empty((len(rows_B3), self.plan.window, TARGETS), np.float32)
        for recording in np.unique(rows_B3[:, 0]):
            places = np.flatnonzero(rows_B3[:, 0] == recording)
            imu_BT6[places] = self._signal(int(recording), rows_B3[places, 1])
            pose_BT9[places] = self._poses(int(recording), rows_B3[places, 1], imu_BT6[places])
        return imu_BT6, pose_BT9

    def converted(self, recording: int) -> tuple[Tensor, Tensor]:
        """Return the normalised signal (N, 6) and the normalised poses (W, T, 9) of a recording."""
        return self._normalised(self._frames(recording), self._all_poses(recording))

    def finished(
        self, rows_B3: Whole, purpose: str, number: int, inputs_BTC: Tensor, targets_BTD: Tensor
    ) -> Batch:
        """Return the batch on its tensors' device; noise is drawn on the CPU, so no device changes it."""
        generator = torch.Generator().manual_seed(derive(self.seed, purpose, "noise", number))
        noise_BT6 = self.plan.noise * torch.randn(inputs_BTC.shape, generator=generator)
        visible_B16 = self._visible[torch.from_numpy(rows_B3[:, 2])][:, None]
        device = inputs_BTC.device
        return {"imu": (inputs_BTC + noise_BT6.to(device)) * visible_B16.to(device), "pose": targets_BTD}

    def _normalised(self, imu: Frames, pose: Frames) -> tuple[Tensor, Tensor]:
        scale = self.scale
        return (
            torch.from_numpy((imu - scale.imu_mean) / scale.imu_deviation),
            torch.from_numpy((pose - scale.pose_mean) / scale.pose_deviation),
        )

    @cached_property
    def _visible(self) -> Tensor:
        """A mask of shape (combos, 6): 1 for a visible channel, else 0."""
        visible_K6 = torch.zeros(len(self.plan.combos), CHANNELS)
        for number, combo in enumerate(self.plan.combos):
            visible_K6[number, list(combo)] = 1.0
        return visible_K6

    def _signal(self, recording: int, windows_W: Whole) -> Frames:
        starts_W = windows_W * stride_of(self.plan)
        if self.keeping.convert_once:
            return _cut(self._frames(recording), starts_W, self.plan.window)
        return np.stack([self._convert(recording)[start : start + self.plan.window] for start in starts_W])

    def _poses(self, recording: int, windows_W: Whole, imu_WT6: Frames) -> Frames:
        if self.keeping.share_targets:
            return self.poses.get(recording, lambda: self._all_poses(recording))[windows_W]
        return np.stack([self._scanned_poses(recording, each_T6) for each_T6 in imu_WT6])

    def _all_poses(self, recording: int) -> Frames:
        frames_N6 = self._frames(recording) if self.keeping.convert_once else self._convert(recording)
        windows_W = np.arange(windows_of(self.recordings[recording], self.plan))
        return self._filter(_cut(frames_N6, windows_W * stride_of(self.plan), self.plan.window))

    def _scanned_poses(self, recording: int, imu_T6: Frames) -> Frames:
        """Return the poses of one row, after checking the signal and the poses for NaN."""
        pose_T9 = self._filter(imu_T6[None])[0]
        if np.isnan(imu_T6).any() or np.isnan(pose_T9).any():
            raise InvalidSpec(
                f"data: {self.recordings[recording].name}: a window with values that are not numbers"
            )
        return pose_T9

    def _filter(self, imu_WT6: Frames) -> Frames:
        self.filtered += 1
        return poses(imu_WT6, self.plan.gravity, self.plan.rate_hz)

    def _frames(self, recording: int) -> Frames:
        return self.frames.get(recording, lambda: self._convert(recording))

    def _convert(self, recording: int) -> Frames:
        self.opened += 1
        return read(self.recordings[recording], columns_of(self.plan))


def _cut(frames_N6: Frames, starts_W: Whole, window: int) -> Frames:
    return frames_N6[starts_W[:, None] + np.arange(window)]


def _moments(values_WTC: Frames) -> tuple[Frames, Frames]:
    mean_C, deviation_C = values_WTC.mean((0, 1), np.float64), values_WTC.std((0, 1), np.float64)
    return mean_C.astype(np.float32), np.maximum(deviation_C, _SMALLEST_DEVIATION).astype(np.float32)
