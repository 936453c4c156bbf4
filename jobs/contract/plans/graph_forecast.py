"""The plan of ``graph_forecast``."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

from pydantic import Field, model_validator

from jobs.contract.plans.base import CheckpointFields, TrainingPlan

SYNTHETIC_STOCKS: Final = "synthetic-stocks"
"""Value for synthetic prices in place of a table; the plan gives the number of assets and days."""

Days: TypeAlias = Annotated[int, Field(ge=1, le=1000)]


class GraphForecast(TrainingPlan):
    """A recurrent encoder of each asset's recent days, then attention along a graph of correlations.

    A row is one trading day with all assets; one *item* is one node: an asset on a day.  Forecast are, for
    each horizon, how volatile the asset will be compared with its recent past, and its return.
    """

    implementation: ClassVar = "jobs.workloads.graph_forecast.workload:GraphForecaster"
    checkpoint_fields: ClassVar = CheckpointFields(
        data=(
            "window", "scales", "horizons", "held_out", "neighbours", "lookback", "half_life", "shrinkage",
            "threshold", "synthetic_assets", "synthetic_days",
        ),
        trajectory=("return_weight",),
        shape=("hidden", "heads", "layers"),
    )  # fmt: skip
    switches: ClassVar = frozenset({"conversion", "graph_cache"})
    benchmark: ClassVar[Mapping[str, Any]] = {
        "data": "sp500-stocks",
        "steps": 200,
        "batch_size": 8,
        "hidden": 32,
        "heads": 4,
        "layers": 2,
        "neighbours": 5,
        "eval_every": 50,
        "eval_batches": 32,
        "log_every": 10,
    }

    kind: Literal["graph_forecast"] = "graph_forecast"
    data: str = Field(
        description="Price table (CSV, Parquet: date and one column for each asset) or a directory that holds"
        " one, relative to the job file; the name of a prepared data set; or synthetic-stocks."
    )
    batch_size: int = Field(8, ge=1, le=10**6, description="Days in one step, the effective batch.")
    eval_batches: int = Field(
        32, ge=1, le=10**6, description="Batches in one evaluation, their days spread over the held-out ones."
    )
    window: int = Field(20, ge=2, le=1000, description="Days that the encoder looks at.")
    scales: tuple[Days, ...] = Field(
        (5, 20, 60), min_length=1, max_length=64, description="Days over which each feature is also taken."
    )
    horizons: tuple[Days, ...] = Field(
        (1, 5, 10, 20), min_length=1, max_length=16, description="Days ahead of the forecasts."
    )
    return_weight: float = Field(0.1, ge=0, description="Weight of the returns in the loss; volatility: 1.")
    held_out: float = Field(
        0.2, gt=0, lt=1, description="Share of the days, the last ones, that is only evaluated on."
    )
    neighbours: int = Field(
        5, ge=0, le=1024, description="Edges into each node, from its most correlated ones; 0: no edges."
    )
    lookback: int = Field(60, ge=2, le=512, description="Days over which correlations are taken.")
    half_life: float = Field(30.0, gt=0, description="Days after which a day counts half in a correlation.")
    shrinkage: float = Field(0.1, ge=0, lt=1, description="Share by which correlations are drawn to zero.")
    threshold: float = Field(0.1, ge=0, le=1, description="Weakest correlation that makes an edge.")
    hidden: int = Field(32, ge=4, le=16384, description="Width of encoder and graph; a multiple of heads.")
    heads: int = Field(4, ge=1, le=128, description="Attention heads.")
    layers: int = Field(2, ge=1, le=16, description="Layers of graph attention.")
    dropout: float = Field(0.1, ge=0, lt=1, description="Share of activations dropped in training.")
    synthetic_assets: int = Field(64, ge=2, le=4096, description="Assets of synthetic-stocks.")
    synthetic_days: int = Field(2000, ge=100, le=10**5, description="Days of synthetic-stocks.")

    @model_validator(mode="after")
    def _hidden_divides(self) -> "GraphForecast":
        if self.hidden % self.heads:
            fact = f"hidden {self.hidden} is not a multiple of heads {self.heads}"
            raise self.misfit(fact, "hidden", "heads")
        return self

    @model_validator(mode="after")
    def _each_once(self) -> "GraphForecast":
        for name in ("scales", "horizons"):
            days = getattr(self, name)
            if list(days) != sorted(set(days)):
                raise self.misfit(f"{name} {list(days)} must rise, each number once", name)
        return self
