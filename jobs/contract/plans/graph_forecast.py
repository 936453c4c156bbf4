"""The plan of ``graph_forecast``."""

import datetime as dt
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from jobs.contract.base import Spec
from jobs.contract.plans.base import CheckpointFields, Clean, TrainingPlan, left_out_by_default

SYNTHETIC_STOCKS: Final = "synthetic-stocks"
"""Value for synthetic prices in place of a table; the plan gives the number of assets and days."""

SYNTHETIC_PANEL: Final = "synthetic-panel"
"""Value for a synthetic panel, whose stocks are listed and delisted and have gaps."""

HORIZON: Final = "{horizon}"
"""Stands for the number of days in the name of a target column."""

Days: TypeAlias = Annotated[int, Field(ge=1, le=1000)]
Column: TypeAlias = Annotated[str, Field(min_length=1, max_length=200)]


def _is_a_day(text: str) -> str:
    try:
        correct = dt.date.fromisoformat(text).isoformat() == text
    except ValueError:
        correct = False
    if not correct:
        raise ValueError(f'must be a day as 2024-12-31, not "{text}"')
    return text


Day: TypeAlias = Annotated[str, Field(max_length=40), AfterValidator(_is_a_day)]
Level: TypeAlias = Annotated[float, Field(gt=0, lt=1)]

QUANTILES: Final = (0.1, 0.25, 0.5, 0.75, 0.9)


class Panel(Spec):
    """The columns of a long panel, one row for each stock and day, and the split of its days."""

    date: Column = Field("date", description="Column of the day.")
    code: Column = Field("code", description="Column that names the stock.")
    features: tuple[Column, ...] = Field(
        ("*",),
        min_length=1,
        max_length=4096,
        description="Feature columns, by name or by a pattern with * and ?.",
    )
    target: Column = Field(
        "target_{horizon}d", description="Column of the forward return of each of the horizons."
    )
    returns: Column = Field(
        "returns_1d", description="Column of the day's return, from which graphs are built."
    )
    nodes: int | None = Field(
        None,
        ge=2,
        le=65536,
        description="Stocks in one graph: fixed groups of so many; null: all stocks in one graph.",
    )
    begin: Day | None = Field(None, description="First day that is used; null: the first one.")
    split: Day | None = Field(
        None, description="First held-out day; null: the last days are held out, as held_out says."
    )
    end: Day | None = Field(None, description="Last day that is used; null: the last one.")
    embargo: int | None = Field(
        None,
        ge=0,
        le=1000,
        description="Days between training and held-out days that are not used; null: the longest horizon.",
    )

    @model_validator(mode="after")
    def _is_in_order(self) -> "Panel":
        days = [(name, getattr(self, name)) for name in ("begin", "split", "end")]
        given = [(name, day) for name, day in days if day is not None]
        for (before, one), (name, other) in pairwise(given):
            if other <= one:
                fact = f"{name} {other} must come after {before} {one}"
                raise PydanticCustomError("below", "{fact}", {"fact": fact, "path": (name,)})
        if HORIZON not in self.target:
            fact = f"must contain {HORIZON}, in whose place the number of days stands"
            raise PydanticCustomError("below", "{fact}", {"fact": fact, "path": ("target",)})
        return self


class Mixed(Spec):
    """Losses besides that of the distribution, each with its weight.

    A Sharpe ratio is none of them: it would depend on how a batch is divided.
    """

    huber: float = Field(0.0, ge=0, description="Huber loss of the number that ranks the stocks.")
    ic: float = Field(
        0.0, ge=0, description="One minus the correlation of forecasts and returns across a day's stocks."
    )
    rank_ic: float = Field(
        0.0, ge=0, description="The same with the ranks of the returns in place of the returns."
    )


class GraphForecast(TrainingPlan):
    """A recurrent encoder of each asset's recent days, then attention along a graph of correlations.

    A row is one trading day with all assets; one *item* is one node: an asset on a day.  Forecast are, for
    each horizon, how volatile the asset will be compared with its recent past, and its return.
    """

    implementation: ClassVar = "jobs.workloads.graph_forecast.workload:GraphForecaster"
    checkpoint_fields: ClassVar = CheckpointFields(
        data=(
            "window", "scales", "horizons", "held_out", "neighbours", "lookback", "half_life", "shrinkage",
            "threshold", "synthetic_assets", "synthetic_days", "synthetic_features", "panel", "clean",
        ),
        trajectory=("return_weight", "horizon_weights", "mixed"),
        shape=("hidden", "heads", "layers", "loss", "quantiles", "variable_selection", "frequencies"),
    )  # fmt: skip
    switches: ClassVar = frozenset({"conversion", "graph_cache"})
    evaluates: ClassVar[tuple[str, ...]] = (
        "eval_loss", "volatility_loss", "return_loss", "volatility_*d", "return_*d", "coverage_*d", "ic_*d",
        "rank_ic_*d", "sharpe_*d", "hit_rate_*d", "graph_hits", "graph_misses", "synthetic_data",
    )  # fmt: skip
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
        " one, relative to the job file; the name of a prepared data set; or synthetic-stocks. With panel: a"
        " long Parquet file, a directory of them, or synthetic-panel."
    )
    panel: Panel | None = Field(
        None,
        exclude_if=lambda value: value is None,  # so that the JSON is that of earlier versions; also below
        description="Columns of a long panel, one row for each stock and day; null: a price table.",
    )
    clean: Clean | None = left_out_by_default(
        None,
        description="Features of a panel that are NaN or infinite; what is missing counts as the mean. A"
        " target or a return is never replaced: it is missing. Null: NaN is missing, infinity is an error.",
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
    horizon_weights: tuple[Annotated[float, Field(ge=0)], ...] | None = left_out_by_default(
        None, min_length=1, max_length=16, description="Weight of each horizon in the loss; null: equal."
    )
    mixed: Mixed | None = left_out_by_default(
        None, description="Further losses of the returns, added to loss with their weights; null: none."
    )
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
    loss: Literal["huber", "quantile", "student_t"] = Field(
        "huber",
        exclude_if=lambda value: value == "huber",
        description="Loss of each outcome: of one number, of quantiles, or of a Student-t distribution.",
    )
    quantiles: tuple[Level, ...] = Field(
        QUANTILES,
        min_length=1,
        max_length=99,
        exclude_if=lambda value: tuple(value) == QUANTILES,
        description="Levels of the quantile loss; they rise, and 0.5 is one of them.",
    )
    variable_selection: bool = Field(
        default=False,
        exclude_if=lambda value: not value,
        description="Weigh the features of each node by a gated residual network for each.",
    )
    frequencies: int | None = Field(
        None,
        ge=1,
        le=64,
        exclude_if=lambda value: value is None,
        description="Main frequencies that are taken out of each window and forecast apart; null: none.",
    )
    synthetic_assets: int = Field(64, ge=2, le=4096, description="Assets of synthetic data.")
    synthetic_days: int = Field(2000, ge=100, le=10**5, description="Days of synthetic data.")
    synthetic_features: int = left_out_by_default(
        8, ge=5, le=4096, description="Features of a synthetic panel."
    )

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

    @model_validator(mode="after")
    def _weighs_each_horizon(self) -> "GraphForecast":
        weights = self.horizon_weights
        if weights is not None and (len(weights) != len(self.horizons) or not sum(weights)):
            fact = f"{len(weights)} weights, of which one is above 0, for {len(self.horizons)} horizons"
            raise self.misfit(f"horizon_weights must be as many as horizons: {fact}", "horizon_weights")
        return self

    @model_validator(mode="after")
    def _has_a_median(self) -> "GraphForecast":
        levels = list(self.quantiles)
        if levels != sorted(set(levels)) or 0.5 not in levels:
            raise self.misfit(f"quantiles {levels} must rise, each number once, and hold 0.5", "quantiles")
        return self

    @model_validator(mode="after")
    def _has_as_many_frequencies(self) -> "GraphForecast":
        if self.frequencies is not None and self.frequencies > self.window // 2:
            fact = f"frequencies {self.frequencies} are more than half of the window of {self.window} days"
            raise self.misfit(fact, "frequencies", "window")
        return self

    @model_validator(mode="after")
    def _fits_its_panel(self) -> "GraphForecast":
        if self.panel is None:
            if self.data == SYNTHETIC_PANEL:
                raise self.misfit(f"{SYNTHETIC_PANEL} needs panel; write `panel: {{}}`", "data")
            if self.clean is not None:
                raise self.misfit("is for a panel: a table of prices has one on each day", "clean")
            return self
        if self.data == SYNTHETIC_STOCKS:
            raise self.misfit(f"{SYNTHETIC_STOCKS} is no panel; write {SYNTHETIC_PANEL}", "data")
        embargo, longest = self.panel.embargo, max(self.horizons)
        if embargo is not None and embargo < longest:
            fact = f"embargo {embargo} is shorter than the longest horizon, {longest}: outcomes would overlap"
            raise PydanticCustomError("below", "{fact}", {"fact": fact, "path": ("panel", "embargo")})
        return self
