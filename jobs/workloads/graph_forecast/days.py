"""Turns trading days into batches of features and outcomes.

The features of a day are functions of the prices up to and including that day.  Its outcomes depend
on the prices after it.  The last days are held out.  The gap between the training days and the held-out
days is as long as the longest horizon, so no training outcome lies in the held-out days.

``conversion: once`` keeps the features and outcomes of all days in two arrays.  ``each_use`` opens
the table for every day of every batch and reads the rows it needs, as the source project did
for every sample.  Rolling sums add one lag after the other, so both variants are bit-identical.

Legend: P rows of a table of prices, D days, B days of a batch, T days of a window, N assets, F features,
J horizons; outcomes have shape (..., 2, J), volatility first, then return.
"""
# ruff: noqa: N803, N806, N815 - tensors carry their shape

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from jobs.contract.plans.graph_forecast import GraphForecast
from jobs.data.tables import Prices, read_prices
from jobs.training.batches import Batch
from jobs.training.failures import InvalidSpec
from jobs.training.randomness import derive, draw
from jobs.workloads.graph_forecast.cache import GraphSource

RECENT: Final = 20
"""Days whose volatility is what future volatility and returns are measured by."""

CALM: Final = 0.001
"""Daily volatility, 0.1 %, added before a logarithm or a division: a day without movement is no -inf."""


def feature_count(scales: Sequence[int]) -> int:
    """Return F: the day's return, its absolute value, and the return and volatility over each scale."""
    return 2 + 2 * len(scales)


def history(scales: Sequence[int]) -> int:
    """Return the number of earlier days that the features of a day need."""
    return max(RECENT, *scales)


def features_of(prices_PN: Tensor, scales: Sequence[int]) -> Tensor:
    """Return (P - history, N, F) features, float64, of every day that has enough history."""
    returns_PN, past = _log_returns(prices_PN), history(scales)
    columns = [returns_PN[past - 1 :], returns_PN[past - 1 :].abs()]
    for days in scales:
        columns.append(_trailing_sum(returns_PN, days, past) / days**0.5)
        columns.append(torch.log(CALM + _volatility(returns_PN, days, past)))
    return torch.stack(columns, dim=-1)


def outcomes_of(prices_PN: Tensor, horizons: Sequence[int], past: int) -> Tensor:
    """Return (P - past - longest horizon, N, 2, J) outcomes, float64, from row ``past`` on.

    Volatility is the logarithm of the daily volatility over the horizon, minus that of the last ``RECENT``
    days.  The return is the sum of log returns, divided by the recent volatility and the root of the days.
    """
    returns_PN = _log_returns(prices_PN)
    last = prices_PN.shape[0] - max(horizons)
    recent_DN = CALM + _volatility(returns_PN, RECENT, past)[: last - past]
    volatility, gain = [], []
    for days in horizons:
        future_DN = _volatility(returns_PN, days, past + days)[: last - past]
        volatility.append(torch.log(CALM + future_DN) - torch.log(recent_DN))
        gain_DN = _trailing_sum(returns_PN, days, past + days)[: last - past]
        gain.append(gain_DN / (days**0.5 * recent_DN))
    return torch.stack([torch.stack(volatility, dim=-1), torch.stack(gain, dim=-1)], dim=-2)


def _log_returns(prices_PN: Tensor) -> Tensor:
    return torch.log(prices_PN[1:] / prices_PN[:-1])


def _trailing_sum(values_PN: Tensor, days: int, past: int) -> Tensor:
    """Return the sum over the last days for each price from row ``past`` on; values lack the first row."""
    count = values_PN.shape[0] - past + 1
    total = values_PN[past - 1 : past - 1 + count].clone()
    for lag in range(1, days):
        total += values_PN[past - 1 - lag : past - 1 - lag + count]
    return total


def _volatility(returns_PN: Tensor, days: int, past: int) -> Tensor:
    return torch.sqrt(_trailing_sum(returns_PN * returns_PN, days, past) / days)


@dataclass(frozen=True, slots=True)
class Split:
    """The training days and the later held-out days, as rows of a table or numbers of a panel's dates."""

    train: range
    held_out: range

    @property
    def days(self) -> range:
        """Return all days from the first training day to the last held-out day."""
        return range(self.train.start, self.held_out.stop)


def split_days(rows: int, plan: GraphForecast) -> Split:
    """Return the training days and the held-out days of a table.

    Raises:
        InvalidSpec: the table has too few days.
    """
    first = max(history(plan.scales) + plan.window - 1, plan.lookback)
    stop = rows - max(plan.horizons)
    begin = stop - int(max(0, stop - first) * plan.held_out)
    split = Split(range(first, begin - max(plan.horizons)), range(begin, stop))
    wanted = plan.eval_batches * plan.batch_size
    if len(split.train) < plan.batch_size or len(split.held_out) < wanted:
        raise InvalidSpec(
            f"data: {rows} days leave {len(split.train)} to train on and {len(split.held_out)} held out;"
            f" a batch takes {plan.batch_size}, an evaluation {wanted};"
            " lower eval_batches or batch_size, or give more days"
        )
    return split


@dataclass(frozen=True, slots=True)
class FeatureScaler:
    """Mean and standard deviation of every feature on the training days, float64."""

    mean_F: Tensor
    deviation_F: Tensor

    @classmethod
    def of(cls, features_DNF: Tensor) -> "FeatureScaler":
        flat = features_DNF.flatten(0, 1)
        return cls(flat.mean(0), flat.std(0).clamp_min(1e-12))

    def apply(self, features: Tensor) -> Tensor:
        """Return standardised features, float32."""
        return ((features - self.mean_F) / self.deviation_F).float()


@dataclass(frozen=True, slots=True)
class DayTensors:
    """Features and outcomes of all days, float32; their first row is day ``first``."""

    features_DNF: Tensor
    outcomes_DN2J: Tensor
    first: int

    @property
    def size_bytes(self) -> int:
        return 4 * (self.features_DNF.numel() + self.outcomes_DN2J.numel())

    def on(self, device: torch.device) -> "DayTensors":
        return replace(
            self, features_DNF=self.features_DNF.to(device), outcomes_DN2J=self.outcomes_DN2J.to(device)
        )

    def windows(self, days_B: Tensor, window: int) -> Batch:
        """Return features (B, N, T, F) and outcomes (B, N, 2, J)."""
        place_B = (days_B - self.first).to(self.features_DNF.device)
        back_T = torch.arange(1 - window, 1, device=place_B.device)
        features_BTNF = self.features_DNF[place_B[:, None] + back_T]
        return {
            "features": features_BTNF.transpose(1, 2).contiguous(),
            "outcomes": self.outcomes_DN2J[place_B],
        }


def known(prices: Prices, plan: GraphForecast, scale: FeatureScaler) -> DayTensors:
    """Return features and outcomes of all days of a table with enough history and future."""
    past, future = history(plan.scales), max(plan.horizons)
    features = scale.apply(features_of(prices.values_NA, plan.scales))
    outcomes = outcomes_of(prices.values_NA, plan.horizons, past).float()
    return DayTensors(features[: len(features) - future], outcomes, past)


def excerpt(table: Path, day: int, plan: GraphForecast, scale: FeatureScaler) -> Batch:
    """Return the features and outcomes of one day, from a table that is opened for it."""
    past, future = history(plan.scales) + plan.window - 1, max(plan.horizons)
    prices = read_prices(table, day - past, past + 1 + future)
    return known(prices, plan, scale).windows(torch.tensor([past]), plan.window)


@dataclass(frozen=True, slots=True)
class StockDays:
    """Days drawn at random to train on, and held-out ones spread evenly."""

    plan: GraphForecast
    seed: int
    split: Split
    scale: FeatureScaler
    graphs: GraphSource
    known: DayTensors | None = None
    table: Path | None = None  # opened for each day if the features are not precomputed

    @property
    def train_rows(self) -> int:
        return len(self.split.train)

    @property
    def resident_bytes(self) -> int | None:
        return self.known.size_bytes + self.graphs.size_bytes if self.known else None

    def on(self, device: torch.device) -> "StockDays":
        kept = self.known and self.known.on(device)
        return replace(self, known=kept, graphs=self.graphs.on(device))

    def batch(self, step: int) -> Batch:
        drawn_B = draw(len(self.split.train), self.plan.batch_size, self.seed, "batch", step)
        return self._of(self.split.train.start + drawn_B, validating=False)

    def held_out(self, index: int) -> Batch:
        plan, days = self.plan, self.split.held_out
        number_B = index * plan.batch_size + torch.arange(plan.batch_size)
        spread_B = number_B * len(days) // (plan.eval_batches * plan.batch_size)
        return self._of(days.start + spread_B, validating=True)

    def _of(self, days_B: Tensor, *, validating: bool) -> Batch:
        neighbours, correlations = self.graphs.of(days_B, validating=validating)
        return self._windows(days_B) | {"neighbours": neighbours, "correlations": correlations}

    def _windows(self, days_B: Tensor) -> Batch:
        if self.known:
            return self.known.windows(days_B, self.plan.window)
        if self.table is None:
            raise AssertionError("neither arrays nor a table")
        parts = [excerpt(self.table, day, self.plan, self.scale) for day in days_B.tolist()]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def synthetic_prices(plan: GraphForecast, seed: int) -> Prices:
    """Return synthetic prices: assets follow a common market, in periods of low and high volatility."""
    days, assets = plan.synthetic_days, plan.synthetic_assets
    generator = torch.Generator().manual_seed(derive(seed, "synthetic-stocks"))
    noise_DN = torch.randn(days, assets, generator=generator, dtype=torch.float64)
    market_D = torch.randn(days, generator=generator, dtype=torch.float64)
    shocks_D = torch.randn(days, generator=generator, dtype=torch.float64)
    beta_N = 0.5 + torch.rand(assets, generator=generator, dtype=torch.float64)
    level, turmoil = 0.0, []
    for shock in shocks_D.tolist():
        level = 0.97 * level + 0.2 * shock
        turmoil.append(level)
    daily_D1 = 0.01 * torch.tensor(turmoil, dtype=torch.float64).exp()[:, None]
    returns_DN = daily_D1 * (0.7 * beta_N * market_D[:, None] + 0.7 * noise_DN)
    dates = tuple(date.fromordinal(day + 1).isoformat() for day in range(days))
    names = tuple(f"made-up-{asset + 1}" for asset in range(assets))
    return Prices(dates, names, 100 * torch.cumsum(returns_DN, dim=0).exp())
