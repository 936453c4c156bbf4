"""The plan of ``resident_transformer``."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from jobs.contract.plans.base import CheckpointFields, TrainingPlan


class ResidentTransformer(TrainingPlan):
    """A transformer over candles of several timeframes, trained on the same batches epoch after epoch.

    A row, and one *item*, is one annotation: a day, with the daily, weekly and monthly candles up to its
    close; what is learnt is the action that the days after it called for, and the next day's candle.
    """

    implementation: ClassVar = "jobs.workloads.resident_transformer.workload:CandleTransformer"
    checkpoint_fields: ClassVar = CheckpointFields(
        trajectory=("every", "horizon", "threshold", "price_weight"),
        shape=("days", "weeks", "months", "pool", "layers", "heads", "width"),
    )
    switches: ClassVar = frozenset({"conversion"})
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
        " job file; or the name of a prepared data set."
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
        for name in ("days", "weeks", "months"):
            if getattr(self, name) % self.pool:
                fact = f"{name} {getattr(self, name)} is not a multiple of pool {self.pool}"
                raise self.misfit(fact, name, "pool")
        return self
