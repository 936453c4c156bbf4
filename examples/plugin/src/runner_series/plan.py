"""The plan of ``series_forecast``."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from jobs.contract.plans.base import CheckpointFields, TrainingPlan


class SeriesForecast(TrainingPlan):
    """A small network that predicts the next value of a series of numbers from the ones before it.

    A row is one window; so is one *item*.
    """

    implementation: ClassVar = "runner_series.workload:SeriesForecaster"
    checkpoint_fields: ClassVar = CheckpointFields(data=("window",), shape=("hidden",))
    benchmark: ClassVar[Mapping[str, Any]] = {"data": "series.csv", "steps": 200, "batch_size": 64}

    kind: Literal["series_forecast"] = "series_forecast"
    window: int = Field(16, ge=2, le=4096, description="Values that a prediction is made from.")
    hidden: int = Field(32, ge=1, le=8192, description="Width of the hidden layer.")
