"""The plan of ``imu_stream``."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

from pydantic import Field, model_validator

from jobs.contract.plans.base import CheckpointFields, TrainingPlan

Column: TypeAlias = Annotated[int, Field(ge=0, le=4095)]
Axes: TypeAlias = tuple[Column, Column, Column]
Channel: TypeAlias = Annotated[int, Field(ge=0, le=5)]
Combo: TypeAlias = Annotated[tuple[Channel, ...], Field(min_length=1, max_length=6)]

COMBOS: Final[tuple[tuple[int, ...], ...]] = (
    (0, 1, 2, 3, 4, 5),  # the whole sensor
    (0, 1, 2),  # the accelerometer alone
    (3, 4, 5),  # the gyroscope alone
    (0, 1, 3, 4),  # one axis of each is dead
    (1, 2, 4, 5),
    (0, 2, 3, 5),
)


class ImuStream(TrainingPlan):
    """An LSTM that estimates orientation and motion from an inertial sensor with hidden channels.

    A row is one window of one recording seen through one *combo*, a choice of channels; so is one *item*.
    What is to be estimated is computed from all channels and does not depend on the combo.
    """

    implementation: ClassVar = "jobs.workloads.imu_stream.workload:StreamedPoses"
    checkpoint_fields: ClassVar = CheckpointFields(
        data=("index", "group", "held_out", "accelerometer", "gyroscope", "gravity", "rate_hz"),
        trajectory=("window", "stride", "combos", "noise", "shards", "shuffle_block"),
        shape=("hidden", "layers", "bidirectional"),
    )
    switches: ClassVar = frozenset({"conversion", "shared_targets", "stream_buffer", "stream_buffer_memory"})
    benchmark: ClassVar[Mapping[str, Any]] = {
        "data": "watch",
        "steps": 200,
        "batch_size": 64,
        "hidden": 32,
        "layers": 2,
        "eval_every": 100,
        "eval_batches": 16,
        "log_every": 10,
    }

    kind: Literal["imu_stream"] = "imu_stream"
    data: str = Field(
        description="Directory of .npy, .npz or .pt recordings (samples x columns), or a prepared data set."
    )
    batch_size: int = Field(512, ge=1, le=10**9, description="Rows in one step, the effective batch.")
    index: str = Field(
        "index.csv", min_length=1, description="Table in the directory that names files and groups."
    )
    group: str = Field(
        "subject", min_length=1, description="Its column that must not be on both sides of the split."
    )
    held_out: float = Field(0.2, gt=0, lt=1, description="Share of the groups that is only evaluated on.")
    accelerometer: Axes = Field((0, 1, 2), description="Columns x, y, z of the acceleration.")
    gyroscope: Axes = Field((3, 4, 5), description="Columns x, y, z of the turn rate, in rad/s.")
    gravity: float = Field(
        1.0, gt=0, description="What the accelerometer reads at rest; 9.81 if it is in m/s^2."
    )
    rate_hz: float = Field(50.0, gt=0, description="Samples per second.")
    window: int = Field(125, ge=2, le=65536, description="Samples in one window.")
    stride: int | None = Field(None, ge=1, description="Samples from window to window; null: no overlap.")
    combos: tuple[Combo, ...] = Field(
        COMBOS, min_length=1, max_length=64, description="Visible channels; 0-2 acceleration, 3-5 turn rate."
    )
    noise: float = Field(
        0.05, ge=0, description="Noise added to visible channels, in their standard deviations."
    )
    shards: int = Field(
        4, ge=1, le=4096, description="Parts of the recordings; step s takes from part s mod shards."
    )
    shuffle_block: int = Field(
        32, ge=1, le=10**6, description="Recordings whose windows are shuffled together."
    )
    hidden: int = Field(32, ge=1, le=16384, description="Width of the LSTM.")
    layers: int = Field(2, ge=1, le=64, description="Layers of the LSTM.")
    bidirectional: bool = Field(default=False, description="Also look ahead in the window; a stream cannot.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Share of the LSTM's inputs dropped in training.")

    @model_validator(mode="after")
    def _each_column_once(self) -> "ImuStream":
        columns = (*self.accelerometer, *self.gyroscope)
        twice = sorted({column for column in columns if columns.count(column) > 1})
        if twice:
            fact = f"column {twice[0]} is named twice in accelerometer and gyroscope"
            raise self.misfit(fact, "accelerometer", "gyroscope")
        return self

    @model_validator(mode="after")
    def _each_channel_once(self) -> "ImuStream":
        for combo in self.combos:
            if len(set(combo)) < len(combo):
                raise self.misfit(f"combo {list(combo)} names a channel twice", "combos")
        return self
