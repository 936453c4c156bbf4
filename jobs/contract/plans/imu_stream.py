"""The plan of ``imu_stream``."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

from pydantic import Field, model_validator

from jobs.contract.plans.base import CheckpointFields, Clean, TrainingPlan, left_out_by_default

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

Site: TypeAlias = Annotated[int, Field(ge=0, le=255)]
Devices: TypeAlias = Annotated[tuple[Site, ...], Field(min_length=1, max_length=256)]

DEVICE_COMBOS: Final[tuple[tuple[int, ...], ...]] = (
    (0, 3, 4),  # left wrist, right pocket, head
    (1, 3, 4),  # right wrist, right pocket, head
    (0, 2, 4),  # left wrist, left pocket, head
    (1, 2, 4),  # right wrist, left pocket, head
    (0, 2),  # left wrist, left pocket
    (0, 3),  # left wrist, right pocket
    (1, 2),  # right wrist, left pocket
    (1, 3),  # right wrist, right pocket
    (2, 4),  # left pocket, head
    (3, 4),  # right pocket, head
    (2,),  # left pocket
    (3,),  # right pocket
)
"""Places of a watch, a telephone and earphones: MobilePoser's 12 choices of five sites."""

SYNTHETIC_IMU: Final = "synthetic-imu"
"""Value for made-up motions in place of recordings; the plan gives their number and length."""

Module: TypeAlias = Literal["joints", "poser", "foot_contact", "velocity"]

SITES: Final = (0, 1, 2, 3, 4)

BODY_RATE_HZ: Final = 30.0
"""Frames per second of MobilePoser's recordings."""


def _is(default: object) -> Callable[[Any], bool]:
    """Return a test for the default, which is not written: other digests of a revision would follow."""
    return lambda value: bool(value == default)


class ImuStream(TrainingPlan):
    """An LSTM that estimates orientation and motion from an inertial sensor with hidden channels.

    A row is one window of one recording seen through one *combo*, a choice of channels; so is one *item*.
    What is to be estimated is computed from all channels and does not depend on the combo.

    With ``module``, the pose of a whole body is estimated from several sensors, by four networks that are
    trained one after another; a combo is then a choice of sensor sites.
    """

    implementation: ClassVar = "jobs.workloads.imu_stream.workload:choose_task"
    checkpoint_fields: ClassVar = CheckpointFields(
        data=(
            "index", "group", "held_out", "accelerometer", "gyroscope", "gravity", "rate_hz",
            "module", "files", "acceleration_scale", "velocity_scale", "synthetic_sequences",
            "synthetic_frames", "clean",
        ),
        trajectory=(
            "window", "stride", "combos", "noise", "shards", "shuffle_block", "device_combos", "joint_noise",
            "jerk_weight", "position_weight",
        ),
        shape=("hidden", "layers", "bidirectional", "sites", "pose_joints"),
    )  # fmt: skip
    switches: ClassVar = frozenset(
        {"conversion", "shared_targets", "streaming", "stream_buffer", "stream_buffer_memory"}
    )
    evaluates: ClassVar[tuple[str, ...]] = (
        "eval_mse", "eval_mse_orientation", "eval_mse_motion", "eval_joints_cm", "eval_angle_deg",
        "eval_sip_deg", "eval_position_cm", "eval_jitter", "eval_contact_loss", "eval_contact_wrong",
        "eval_velocity_m_s", "eval_distance_cm", "synthetic_data",
    )  # fmt: skip
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
        description="Directory of .npy, .npz or .pt recordings (samples x columns), or a prepared data set;"
        " with module: .pt files of bodies, or synthetic-imu."
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
    rate_hz: float = Field(50.0, gt=0, description="Samples per second; with module, 30 unless given.")
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
    module: Module | None = Field(
        None,
        exclude_if=_is(None),
        description="The network of the body that is trained; null: the motion of one sensor instead.",
    )
    files: tuple[str, ...] = Field(
        ("*.pt",), min_length=1, max_length=64, exclude_if=_is(("*.pt",)),
        description="Names of the body's files below data.",
    )  # fmt: skip
    sites: Devices = Field(
        SITES, exclude_if=_is(SITES), description="Sensor sites of the body's files that are inputs."
    )
    device_combos: tuple[Devices, ...] = Field(
        DEVICE_COMBOS, min_length=1, max_length=256, exclude_if=_is(DEVICE_COMBOS),
        description="Visible sites: left and right wrist, left and right thigh, head.",
    )  # fmt: skip
    acceleration_scale: float = Field(
        30.0, gt=0, exclude_if=_is(30.0), description="Accelerations, in m/s^2, are divided by it."
    )
    velocity_scale: float = Field(
        2.0, gt=0, exclude_if=_is(2.0), description="Velocities, in m/s, are divided by it."
    )
    joint_noise: float = Field(
        0.04, ge=0, exclude_if=_is(0.04), description="Noise on the true joints in training, in metres."
    )
    jerk_weight: float = Field(1e-5, ge=0, exclude_if=_is(1e-5), description="Weight of jerk in the loss.")
    position_weight: float = Field(
        1.0, ge=0, exclude_if=_is(1.0), description="Weight of the joints that follow from the pose."
    )
    synthetic_sequences: int = Field(
        240, ge=2, le=10**6, exclude_if=_is(240), description="Sequences of synthetic-imu."
    )
    synthetic_frames: int = Field(
        300, ge=4, le=10**6, exclude_if=_is(300), description="Frames of each of them."
    )

    pose_joints: Literal[16, 24] = left_out_by_default(
        24,
        description="Joints whose rotations the poser says; of 16, ankles, feet, wrists and hands turn with"
        " the joint before them.",
    )
    clean: Clean | None = left_out_by_default(
        None,
        description="Numbers of the body's files that are NaN or infinite; what is missing is as in the frame"
        " before it. Null: they are an error.",
    )

    @model_validator(mode="before")
    @classmethod
    def _rate_of_bodies(cls, given: Any) -> Any:  # noqa: ANN401 - whatever a file holds
        if isinstance(given, Mapping) and given.get("module") is not None:
            return {"rate_hz": BODY_RATE_HZ, **given}
        return given

    @model_validator(mode="after")
    def _each_column_once(self) -> "ImuStream":
        columns = (*self.accelerometer, *self.gyroscope)
        twice = sorted({column for column in columns if columns.count(column) > 1})
        if twice:
            fact = f"column {twice[0]} is named twice in accelerometer and gyroscope"
            raise self.misfit(fact, "accelerometer", "gyroscope")
        return self

    @model_validator(mode="after")
    def _names_sites(self) -> "ImuStream":
        for name, sets in (("sites", (self.sites,)), ("device_combos", self.device_combos)):
            for sites in sets:
                if len(set(sites)) < len(sites):
                    raise self.misfit(f"{list(sites)} names a site twice", name)
        unknown = sorted({site for combo in self.device_combos for site in combo} - set(self.sites))
        if unknown:
            fact = f"site {unknown[0]} of a combo is none of the sites {list(self.sites)}"
            raise self.misfit(fact, "device_combos", "sites")
        return self

    @model_validator(mode="after")
    def _has_a_body(self) -> "ImuStream":
        for name in ("pose_joints", "clean"):
            if self.module is None and getattr(self, name) != type(self).model_fields[name].default:
                raise self.misfit("is about a body: set module as well", name)
        return self

    @model_validator(mode="after")
    def _has_motions_to_make_up(self) -> "ImuStream":
        if self.data == SYNTHETIC_IMU and self.module is None:
            raise self.misfit("synthetic-imu is a body in motion: set module as well", "data")
        return self

    @model_validator(mode="after")
    def _each_channel_once(self) -> "ImuStream":
        for combo in self.combos:
            if len(set(combo)) < len(combo):
                raise self.misfit(f"combo {list(combo)} names a channel twice", "combos")
        return self
