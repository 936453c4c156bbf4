"""The plan of ``resident_transformer``."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal, TypeAlias

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from jobs.contract.base import Spec
from jobs.contract.plans.base import CheckpointFields, Clean, TrainingPlan, left_out_by_default

SYNTHETIC_ANNOTATIONS: Final = "synthetic-annotations"
"""Value for synthetic annotations in place of files; the plan gives their number."""

Frame: TypeAlias = Literal["1s", "1m", "1h", "1d"]


class Annotations(Spec):
    """Contents of annotation files, and the heads that are trained on them."""

    frames: tuple[Frame, ...] = Field(
        ("1s", "1m", "1h", "1d"),
        min_length=1,
        max_length=4,
        description="Frames of candles; an annotation may lack some of them, but not all.",
    )
    candles: int = Field(
        100, ge=1, le=10**5, description="Candles of each frame in one annotation; a multiple of pool."
    )
    order_book: int | None = Field(
        None, ge=1, le=10**4, description="Numbers in a snapshot of the order book; null: no such input."
    )
    technical: int | None = Field(
        None, ge=1, le=10**4, description="Technical indicators; null: no such input."
    )
    position: int | None = Field(
        None, ge=1, le=1000, description="Numbers that describe the open position; null: no such input."
    )
    held_out: float = Field(
        0.2, gt=0, lt=1, description="Share of the annotations, the last ones, that is only evaluated on."
    )
    trend_weight: float = Field(
        0.5, ge=0, description="Weight of angle, steepness and direction in the loss."
    )
    pivot_weight: float = Field(0.5, ge=0, description="Weight of the next pivots in the loss.")
    pivots: int = Field(5, ge=1, le=10, description="Levels of pivots, L1 and so on, that are forecast.")
    labels: Literal["annotation", "candle"] = left_out_by_default(
        "annotation",
        description="One row for each annotation; or candle: one for each label in its training_labels, made"
        " of what was known when that candle had closed.",
    )

    @model_validator(mode="after")
    def _each_frame_once(self) -> "Annotations":
        if len(set(self.frames)) < len(self.frames):
            fact = f"frames {list(self.frames)} name a frame twice"
            raise PydanticCustomError("below", "{fact}", {"fact": fact, "path": ("frames",)})
        return self


class ResidentTransformer(TrainingPlan):
    """A transformer over candles of several timeframes, trained on the same batches epoch after epoch.

    A row, and one *item*, is one annotation: a day, with the daily, weekly and monthly candles up to its
    close; what is learnt is the action that the days after it called for, and the next day's candle.

    With ``annotations``, the annotations are JSON files made by hand, with candles of seconds, minutes, hours
    and days, and what is learnt is their action, the price, the trend and the next pivots.
    """

    implementation: ClassVar = "jobs.workloads.resident_transformer.workload:choose_task"
    checkpoint_fields: ClassVar = CheckpointFields(
        data=("annotations", "synthetic_annotations", "clean"),
        trajectory=("every", "horizon", "threshold", "price_weight"),
        shape=("days", "weeks", "months", "pool", "layers", "heads", "width"),
    )
    switches: ClassVar = frozenset({"conversion"})
    evaluates: ClassVar[tuple[str, ...]] = (
        "eval_loss", "action_accuracy", "action_loss", "price_error", "angle_error_degrees",
        "steepness_error", "direction_accuracy", "pivot_error", "synthetic_data",
    )  # fmt: skip
    benchmark: ClassVar[Mapping[str, Any]] = {
        "data": "index-ohlcv",
        "steps": 200,
        "batch_size": 64,
        "days": 64,
        "weeks": 32,
        "months": 16,
        "eval_every": 100,
        "eval_batches": 20,
        "log_every": 10,
    }

    kind: Literal["resident_transformer"] = "resident_transformer"
    data: str = Field(
        description="Directory of price tables (CSV, Parquet), one per symbol, or one table, relative to the"
        " job file; or the name of a prepared data set. With annotations: a directory of annotation_*.json"
        " files, or synthetic-annotations."
    )
    annotations: Annotations | None = Field(
        None,
        exclude_if=lambda value: value is None,  # so that the JSON is that of earlier versions; also below
        description="Inputs and heads of annotation files; null: annotations are made from price tables.",
    )
    synthetic_annotations: int = Field(
        20,
        ge=4,
        le=10**5,
        exclude_if=lambda value: value == 20,
        description="Annotations of synthetic-annotations.",
    )
    clean: Clean | None = left_out_by_default(
        None,
        description="Indicators, position and order book of annotations that are NaN or infinite; one that is"
        " missing takes its vector or snapshot along. Null: they are an error.",
    )
    batch_size: int = Field(32, ge=1, le=10**6, description="Annotations in one step, the effective batch.")
    days: int = Field(64, ge=1, le=10**5, description="Daily candles of one annotation; a multiple of pool.")
    weeks: int = Field(32, ge=1, le=10**5, description="Weekly candles; a multiple of pool.")
    months: int = Field(16, ge=1, le=10**5, description="Monthly candles; a multiple of pool.")
    every: int = Field(1, ge=1, le=10**5, description="Days from one annotation to the next.")
    horizon: int = Field(5, ge=1, le=10**4, description="Days after which the action is judged.")
    threshold: float = Field(
        0.01, gt=0, description="Log return that calls for buying, or below 0 for selling; else for holding."
    )
    price_weight: float = Field(1.0, ge=0, description="Weight of the next candle's error in the loss.")
    pool: int = Field(8, ge=1, le=10**4, description="Consecutive candles that make one position.")
    layers: int = Field(1, ge=1, le=128, description="Transformer blocks across all timeframes.")
    heads: int = Field(4, ge=1, le=128, description="Attention heads in each block.")
    width: int = Field(32, ge=8, le=16384, description="Model width; a multiple of heads.")
    dropout: float = Field(0.3, ge=0, lt=1, description="Share of activations dropped in training.")

    @model_validator(mode="after")
    def _divides(self) -> "ResidentTransformer":
        if self.width % self.heads:
            fact = f"width {self.width} is not a multiple of heads {self.heads}"
            raise self.misfit(fact, "width", "heads")
        for name in () if self.annotations else ("days", "weeks", "months"):
            if getattr(self, name) % self.pool:
                fact = f"{name} {getattr(self, name)} is not a multiple of pool {self.pool}"
                raise self.misfit(fact, name, "pool")
        if self.annotations is not None and self.annotations.candles % self.pool:
            fact = f"candles {self.annotations.candles} is not a multiple of pool {self.pool}"
            raise PydanticCustomError("below", "{fact}", {"fact": fact, "path": ("annotations", "candles")})
        return self

    @model_validator(mode="after")
    def _fits_its_annotations(self) -> "ResidentTransformer":
        if self.annotations is None and self.data == SYNTHETIC_ANNOTATIONS:
            fact = f"{SYNTHETIC_ANNOTATIONS} needs annotations; write `annotations: {{}}`"
            raise self.misfit(fact, "data")
        if self.annotations is None and self.clean is not None:
            raise self.misfit("is for annotations: a table of prices has one on each day", "clean")
        asked = self.annotations
        if asked is not None and asked.labels == "candle" and self.data == SYNTHETIC_ANNOTATIONS:
            fact = f"{SYNTHETIC_ANNOTATIONS} have no labels of candles"
            raise PydanticCustomError("below", "{fact}", {"fact": fact, "path": ("annotations", "labels")})
        return self
