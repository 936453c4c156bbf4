"""Streams windows of recorded motions: the sensors that a combo shows, and what the body did.

``jobs.workloads.imu_stream.order`` defines the order; caching changes only the time.  MobilePoser emits each
window twelve times, once per combo, and computes rotations, velocities and contacts each time; the
switches ``conversion``, ``shared_targets`` and ``stream_buffer`` reproduce that.
"""
# ruff: noqa: N803, N806, N815 - tensors carry their shape: B rows, T frames, N frames, C inputs, D targets, S sites

from dataclasses import dataclass
from functools import cached_property
from typing import Final, Protocol

import torch
from torch import Tensor

from jobs.contract.plans.imu_stream import ImuStream
from jobs.data.motion import Motion, MotionFiles
from jobs.data.sequences import Recording
from jobs.data.skeleton import (
    JOINTS,
    as_six,
    from_six,
    global_rotations,
    measured_bones,
    own_bones,
)
from jobs.training.batches import Batch
from jobs.training.lru import LruCache
from jobs.workloads.imu_stream.body.frames import (
    AXES,
    CONTACTS,
    POSE,
    POSITIONS,
    TARGETS,
    TURN,
    convert_inputs,
    convert_targets,
    inputs_of,
)
from jobs.workloads.imu_stream.body.synthetic import make_motion
from jobs.workloads.imu_stream.order import Whole
from jobs.workloads.imu_stream.source import RecordedWindows
from jobs.workloads.imu_stream.streaming import CacheOptions, Sides, evenly, stride_of

SAMPLED: Final = 64
"""Sequences from which bones and the trivial predictor are measured, evenly spaced."""


class Reader(Protocol):
    """Reads or makes up the motion of a recording."""

    def read(self, recording: Recording, *, again: bool = False) -> Motion:
        """Return the motion; ``again`` does everything anew."""


@dataclass(frozen=True, slots=True)
class SyntheticMotions:
    """Makes up motions in place of reading them."""

    rate_hz: float

    def read(self, recording: Recording, *, again: bool = False) -> Motion:  # noqa: ARG002 - nothing is kept
        """Return the motion of a number."""
        return make_motion(int(recording.key or 0), recording.samples, self.rate_hz)


@dataclass(frozen=True, slots=True)
class BodyStatistics:
    """Statistics measured in the recordings to train on."""

    bones_J3: Tensor
    rigid_SJ33: Tensor  # the mean rotation of each joint, seen from the sensor at a site
    rigid_positions_SJ3: Tensor  # and its mean position
    standing_2: Tensor  # the share of frames in which each foot stands
    frames: float  # of a sequence, on average


def measure(recordings: tuple[Recording, ...], reader: Reader, plan: ImuStream) -> BodyStatistics:
    """Return the statistics of recordings to train on."""
    motions = [reader.read(each) for each in evenly(recordings, SAMPLED)]
    bones_J3 = _bones(motions)
    parts = [_seen_from_sites(motion, plan, bones_J3) for motion in motions]
    turned_SJ6, placed_SJ3, standing_2 = (torch.cat(each).mean(0) for each in zip(*parts, strict=True))
    frames = sum(each.samples for each in recordings) / len(recordings)
    return BodyStatistics(
        bones_J3.float(), from_six(turned_SJ6).float(), placed_SJ3.float(), standing_2.float(), frames
    )


def _bones(motions: list[Motion]) -> Tensor:
    """Return the mean bones of the motions whose joints are recorded; without any, those of our figure."""
    found = [
        measured_bones(global_rotations(motion.pose_NJ33.double()), motion.joints_NJ3.double())
        for motion in motions
        if motion.joints_NJ3 is not None
    ]
    return torch.stack(found).mean(0) if found else own_bones().double()


def _seen_from_sites(motion: Motion, plan: ImuStream, bones_J3: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return rotations as six numbers and positions, both seen from each site, and contacts, by frame."""
    targets_ND = convert_targets(motion, plan, bones_J3).double()
    site_NS33 = motion.orientation_NS33[:, list(plan.sites)].double()
    turn_NJ33 = from_six(targets_ND[:, POSE].unflatten(1, (JOINTS, 6)))
    place_NJ3 = targets_ND[:, POSITIONS].unflatten(1, (JOINTS, AXES))
    back_NS133 = site_NS33.transpose(-1, -2)[:, :, None]
    turned_NSJ6 = as_six(back_NS133 @ turn_NJ33[:, None])
    placed_NSJ3 = (back_NS133 @ place_NJ3[:, None, ..., None])[..., 0]
    return turned_NSJ6, placed_NSJ3, targets_ND[:, CONTACTS]


class BodyWindows(RecordedWindows):
    """The source of batches of windows, each with the sensors of a combo."""

    def __init__(  # noqa: PLR0913, PLR0917  (what a batch is made of)
        self,
        plan: ImuStream,
        seed: int,
        sides: Sides,
        bones_J3: Tensor,
        reader: Reader,
        keeping: CacheOptions,
    ) -> None:
        super().__init__(plan, seed, sides, keeping)
        self.bones_J3 = bones_J3
        self.reader = reader

    def forget(self) -> None:
        self.motions: LruCache[int, Motion] = LruCache(self.keeping.recordings)
        self.inputs: LruCache[int, Tensor] = LruCache(self.keeping.recordings)
        self.targets: LruCache[int, Tensor] = LruCache(self.keeping.recordings)

    @property
    def values(self) -> int:
        return sum(each.samples for each in self.recordings) * (inputs_of(self.plan) + TARGETS)

    def target_rows(self, recording: Recording) -> int:
        return recording.samples

    def gathered(self, rows_B3: Whole) -> tuple[Tensor, Tensor]:
        """Return the inputs (B, T, C) of all sites and the targets (B, T, D)."""
        window, stride = self.plan.window, stride_of(self.plan)
        imu_BTC = torch.empty(len(rows_B3), window, inputs_of(self.plan))
        targets_BTD = torch.empty(len(rows_B3), window, TARGETS)
        for row, (recording, number, _) in enumerate(rows_B3.tolist()):
            part = slice(number * stride, number * stride + window)
            imu_NC, targets_ND = self.converted(recording)
            imu_BTC[row], targets_BTD[row] = imu_NC[part], targets_ND[part]
        return imu_BTC, targets_BTD

    def finished(
        self, rows_B3: Whole, purpose: str, number: int, inputs_BTC: Tensor, targets_BTD: Tensor
    ) -> Batch:
        """Return the batch on its tensors' device, with the sensors of each row's combo."""
        del purpose, number  # nothing is drawn
        combos_B, device = torch.from_numpy(rows_B3[:, 2]), inputs_BTC.device
        return {
            "imu": inputs_BTC * self._visible[combos_B][:, None].to(device),
            "body": targets_BTD,
            "carrier": self._carriers[combos_B].to(device),
        }

    def converted(self, recording: int) -> tuple[Tensor, Tensor]:
        """Return the inputs and the targets of a recording, from the caches if they may be kept."""
        once, shared = self.keeping.convert_once, self.keeping.share_targets
        if once and shared:  # the motion itself is not kept
            imu_NC = self.inputs.get(recording, lambda: self._both(recording))
            return imu_NC, self.targets.get(recording, lambda: self._targets(self._read(recording)))
        motion = self.motions.get(recording, lambda: self._read(recording)) if once else self._read(recording)
        imu_NC = convert_inputs(motion, self.plan)
        if shared:
            return imu_NC, self.targets.get(recording, lambda: self._targets(motion))
        return imu_NC, self._targets(motion)

    def _both(self, recording: int) -> Tensor:
        """Return the inputs, and keep the targets too, so that a recording is opened once for both."""
        motion = self._read(recording)
        self.targets.get(recording, lambda: self._targets(motion))
        return convert_inputs(motion, self.plan)

    def _read(self, recording: int) -> Motion:
        self.opened += 1
        return self.reader.read(self.recordings[recording], again=not self.keeping.convert_once)

    def _targets(self, motion: Motion) -> Tensor:
        self.filtered += 1
        return convert_targets(motion, self.plan, self.bones_J3)

    @cached_property
    def _visible(self) -> Tensor:
        """A mask of shape (combos, C): 1 for an input of a visible site, else 0."""
        visible_KC = torch.zeros(len(self.plan.device_combos), inputs_of(self.plan))
        for mask_C, combo in zip(visible_KC, self.plan.device_combos, strict=True):
            for site in map(self.plan.sites.index, combo):
                mask_C[site * AXES : (site + 1) * AXES] = 1.0
                mask_C[_turn_of(site, self.plan)] = 1.0
        return visible_KC

    @cached_property
    def _carriers(self) -> Tensor:
        """The place among the sites of the last sensor of each combo, for the trivial predictor."""
        return torch.tensor([self.plan.sites.index(combo[-1]) for combo in self.plan.device_combos])


def _turn_of(site: int, plan: ImuStream) -> slice:
    """Return the inputs that are the rotation of a site."""
    first = len(plan.sites) * AXES + site * TURN
    return slice(first, first + TURN)


def reader_of(plan: ImuStream, *, synthetic: bool) -> Reader:
    """Return the reader of made-up or recorded motions."""
    return SyntheticMotions(plan.rate_hz) if synthetic else MotionFiles(clean=plan.clean)
