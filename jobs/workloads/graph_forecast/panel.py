"""Turns a panel of many stocks into batches of windows, outcomes and weights.

The stocks are divided once, at random, into fixed *groups* of equal size; the last one is filled up with
places that stand for no stock.  A row of a batch is one day of one group, and its graph joins the stocks of
the group, so a graph depends on its date and its group alone and can be kept.

A stock takes part on the days on which it is listed.  ``present`` tells which days of its window it was
listed on, and ``weights`` which outcomes are known: they are 0 where an outcome is missing, and equal
elsewhere, so that the loss of a batch is the mean over the outcomes that are known.

Features are standardised by the training days, and cut at ``EXTREME`` deviations; a missing feature counts
as its mean.  Outcomes are forward returns in units of their deviation on the training days.

Legend: D days, N stocks, G groups, n places of a group, B rows of a batch, T days of a window, F features,
J horizons; outcomes and weights have the shape (B, n, 1, J), 1 for the one kind of outcome.
"""
# ruff: noqa: N803, N806, N815 - tensors carry their shape

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Final

import numpy as np
import torch
from torch import Tensor

from jobs.contract.plans.graph_forecast import HORIZON, GraphForecast
from jobs.contract.plans.graph_forecast import Panel as PanelPlan
from jobs.data.panels import Columns, PanelFiles, Values
from jobs.training.batches import Batch
from jobs.training.failures import InvalidSpec
from jobs.training.randomness import derive, draw
from jobs.workloads.graph_forecast.cache import GraphSource
from jobs.workloads.graph_forecast.days import Split

EXTREME: Final = 10.0
"""Deviations from the mean at which a feature is cut: one wrong number must not decide a training."""

LEAST_DEVIATION: Final = 1e-12

SAMPLED: Final = 20_000
"""Outcomes from which the best constant forecast is computed."""


def columns_of(plan: GraphForecast, panel: PanelPlan) -> Columns:
    """Return the columns that a plan asks a panel for."""
    targets = tuple(panel.target.replace(HORIZON, str(days)) for days in plan.horizons)
    return Columns(
        panel.date, panel.code, panel.features, targets, panel.returns, panel.target.replace(HORIZON, "*")
    )


# --- Days


def split_panel(dates: Sequence[str], plan: GraphForecast, panel: PanelPlan, groups: int) -> Split:
    """Return the split of a panel's days: by its dates, or the last share of them.

    Raises:
        InvalidSpec: a date lies outside of the panel, or one side has too few days.
    """
    begin, stop = _used(dates, panel)
    first = begin + max(plan.window, plan.lookback) - 1
    embargo = max(plan.horizons) if panel.embargo is None else panel.embargo
    if panel.split is None:
        split = stop - int(max(0, stop - first) * plan.held_out)
    else:
        split = _place(dates, panel.split)
    train, held_out = range(first, max(first, split - embargo)), range(max(first, split), max(first, stop))
    wanted = plan.eval_batches * plan.batch_size
    if len(train) * groups < plan.batch_size or len(held_out) * groups < wanted:
        raise InvalidSpec(
            f"data: {stop - begin} days from {dates[begin]} leave {len(train)} to train on and"
            f" {len(held_out)} held out, with {groups} graph(s) each; a batch takes {plan.batch_size} graphs,"
            f" an evaluation {wanted}; lower eval_batches or batch_size, or give more days"
        )
    return Split(train, held_out)


def _used(dates: Sequence[str], panel: PanelPlan) -> tuple[int, int]:
    for name in ("begin", "split", "end"):
        day = getattr(panel, name)
        if day is not None and not dates[0] <= day <= dates[-1]:
            raise InvalidSpec(
                f"data: panel.{name} {day} lies outside of the panel, {dates[0]} to {dates[-1]}"
            )
    begin = 0 if panel.begin is None else _place(dates, panel.begin)
    stop = len(dates) if panel.end is None else _place(dates, str(np.datetime64(panel.end) + 1))
    return begin, stop


def _place(dates: Sequence[str], day: str) -> int:
    """Return the number of the first date that is not earlier than a day."""
    return int(np.searchsorted(np.array(dates, dtype="datetime64[D]"), np.datetime64(day)))


# --- Groups


def grouped(stocks: int, nodes: int | None, seed: int) -> Tensor:
    """Return the stocks of each group, (G, n), int64; a place that stands for none holds ``stocks``."""
    size = stocks if nodes is None else min(nodes, stocks)
    generator = torch.Generator().manual_seed(derive(seed, "groups"))
    order_N = torch.arange(stocks) if size == stocks else torch.randperm(stocks, generator=generator)
    groups = -(-stocks // size)
    padded = torch.full((groups * size,), stocks)
    padded[:stocks] = order_N
    return padded.view(groups, size).sort(dim=1).values


# --- Numbers


@dataclass(frozen=True, slots=True)
class PanelScaler:
    """Mean and deviation of each feature, and deviation of each outcome, on the training days, float64."""

    mean_F: Tensor
    deviation_F: Tensor
    outcome_J: Tensor

    @classmethod
    def of(cls, values: Values, train: range, columns: Columns) -> "PanelScaler":
        """Return the scaler of the training days.

        Raises:
            InvalidSpec: a feature or a target has no number on the training days.
        """
        used = slice(train.start, train.stop)
        measured = [
            _moments(values.features_DNF[used, :, f], name) for f, name in enumerate(columns.features)
        ]
        outcomes = [_moments(values.targets_DNJ[used, :, j], name) for j, name in enumerate(columns.targets)]
        mean_F, deviation_F = torch.tensor(measured, dtype=torch.float64).unbind(1)
        return cls(mean_F, deviation_F, torch.tensor(outcomes, dtype=torch.float64)[:, 1])

    def apply(self, values: Values) -> "PanelTensors":
        """Return what batches are made of."""
        features_DNF = (values.features_DNF - self.mean_F.float()) / self.deviation_F.float()
        features_DNF = features_DNF.clamp_(-EXTREME, EXTREME).nan_to_num_(0.0)
        outcomes_DNJ = values.targets_DNJ / self.outcome_J.float()
        return PanelTensors(features_DNF, outcomes_DNJ, values.listed_DN, 0)


def training_outcomes(values: Values, train: range, scale: PanelScaler) -> list[Tensor]:
    """Return known outcomes of the training days for each horizon, float64: at most ``SAMPLED``, evenly."""
    used = values.targets_DNJ[train.start : train.stop].double() / scale.outcome_J
    found = [column[~torch.isnan(column)] for column in used.flatten(0, 1).unbind(1)]
    return [each[:: -(-len(each) // SAMPLED)] for each in found]


def _moments(column: Tensor, name: str) -> tuple[float, float]:
    known = column[~torch.isnan(column)].double()
    if len(known) < 2:
        raise InvalidSpec(f"data: {name} has {len(known)} number(s) on the training days; leave it out")
    return float(known.mean()), max(float(known.std()), LEAST_DEVIATION)


@dataclass(frozen=True, slots=True)
class PanelTensors:
    """Standardised features (0: missing), outcomes (NaN: missing), listings; the first row is ``first``."""

    features_DNF: Tensor
    outcomes_DNJ: Tensor
    listed_DN: Tensor
    first: int

    @property
    def size_bytes(self) -> int:
        return sum(one.numel() * one.element_size() for one in self._tensors())

    def _tensors(self) -> tuple[Tensor, ...]:
        return self.features_DNF, self.outcomes_DNJ, self.listed_DN

    def on(self, device: torch.device) -> "PanelTensors":
        features, outcomes, listed = (one.to(device) for one in self._tensors())
        return PanelTensors(features, outcomes, listed, self.first)

    def windows(self, days_B: Tensor, stocks_Bn: Tensor, window: int) -> Batch:
        """Return features (B, n, T, F), present (B, n, T) and outcomes (B, n, 1, J), NaN if missing."""
        device, stocks = self.listed_DN.device, self.listed_DN.shape[1]
        days_B, stocks_Bn = (days_B - self.first).to(device), stocks_Bn.to(device)
        there_Bn = stocks_Bn < stocks
        chosen_Bn = stocks_Bn.clamp_max(stocks - 1)
        back_T = torch.arange(1 - window, 1, device=device)
        days_B1T, chosen_Bn1 = (days_B[:, None] + back_T)[:, None, :], chosen_Bn[:, :, None]
        present_BnT = self.listed_DN[days_B1T, chosen_Bn1] & there_Bn[:, :, None]
        features_BnTF = self.features_DNF[days_B1T, chosen_Bn1] * present_BnT[..., None]
        known_Bn1 = present_BnT[:, :, -1:]
        outcomes_BnJ = self.outcomes_DNJ[days_B[:, None], chosen_Bn].masked_fill(~known_Bn1, torch.nan)
        return {"features": features_BnTF, "present": present_BnT, "outcomes": outcomes_BnJ[:, :, None]}


# --- Batches


@dataclass(frozen=True, slots=True)
class PanelDays:
    """Days of groups of stocks, drawn at random to train on, and held-out ones spread evenly."""

    plan: GraphForecast
    seed: int
    split: Split
    groups_Gn: Tensor
    graphs: GraphSource
    scale: PanelScaler
    known: PanelTensors | None = None
    panel: PanelFiles | None = None  # opened for each day if the features are not precomputed

    @property
    def train_rows(self) -> int:
        return len(self.split.train) * len(self.groups_Gn)

    @property
    def resident_bytes(self) -> int | None:
        return self.known.size_bytes + self.graphs.size_bytes if self.known else None

    def on(self, device: torch.device) -> "PanelDays":
        kept = self.known and self.known.on(device)
        return replace(self, known=kept, graphs=self.graphs.on(device))

    def batch(self, step: int) -> Batch:
        drawn_B = draw(self.train_rows, self.plan.batch_size, self.seed, "batch", step)
        return self._of(self.split.train, drawn_B, validating=False)

    def held_out(self, index: int) -> Batch:
        plan, rows = self.plan, len(self.split.held_out) * len(self.groups_Gn)
        number_B = index * plan.batch_size + torch.arange(plan.batch_size)
        spread_B = number_B * rows // (plan.eval_batches * plan.batch_size)
        return self._of(self.split.held_out, spread_B, validating=True)

    def _of(self, days: range, rows_B: Tensor, *, validating: bool) -> Batch:
        groups = len(self.groups_Gn)
        days_B, groups_B = days.start + rows_B // groups, rows_B % groups
        place_B = groups_B * len(self.split.days) + days_B - self.split.days.start
        neighbours, correlations = self.graphs.of(place_B, validating=validating)
        batch = self._windows(days_B, self.groups_Gn[groups_B])
        outcomes = batch["outcomes"]
        known = ~torch.isnan(outcomes)
        weights = known / known.sum().clamp_min(1) * known.numel()
        batch |= {"outcomes": outcomes.nan_to_num(0.0), "weights": weights}
        return batch | {"neighbours": neighbours, "correlations": correlations}

    def _windows(self, days_B: Tensor, stocks_Bn: Tensor) -> Batch:
        window = self.plan.window
        if self.known:
            return self.known.windows(days_B, stocks_Bn, window)
        if self.panel is None:
            raise AssertionError("neither tensors nor files")
        parts = [
            self.scale.apply(self.panel.excerpt(day - window + 1, window)).windows(
                torch.tensor([window - 1]), stocks_1n[None], window
            )
            for day, stocks_1n in zip(days_B.tolist(), stocks_Bn, strict=True)
        ]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


# --- Synthetic panels


def synthetic_panel(plan: GraphForecast, panel: PanelPlan, seed: int) -> tuple[PanelFiles, Values]:
    """Return a synthetic panel: stocks of ten sectors, with listings, delistings and gaps.

    The first feature is the day's return; the next ones are noisy views of a hidden signal of each stock,
    which decides a small part of its returns over the following days; the others are noise.
    """
    days, stocks, noises = plan.synthetic_days, plan.synthetic_assets, plan.synthetic_features - 4
    generator = torch.Generator().manual_seed(derive(seed, "synthetic-panel"))
    noise_DN, shocks_DN = (torch.randn(days, stocks, generator=generator) for _ in range(2))
    sector_N = torch.randint(10, (stocks,), generator=generator)
    sectors_DN = torch.randn(days, 10, generator=generator)[:, sector_N]
    signal_DN = torch.zeros(days, stocks)
    for day in range(1, days):
        signal_DN[day] = 0.9 * signal_DN[day - 1] + 0.44 * shocks_DN[day]
    before_DN = torch.cat([torch.zeros(1, stocks), signal_DN[:-1]])
    returns_DN = 0.02 * (0.6 * sectors_DN + 0.75 * noise_DN + 0.2 * before_DN)
    listed_DN = _listings(days, stocks, generator)
    views = [signal_DN + torch.randn(days, stocks, generator=generator) for _ in range(3)]
    others = [torch.randn(days, stocks, generator=generator) for _ in range(noises)]
    features_DNF = torch.stack([returns_DN, *views, *others], dim=-1)
    targets_DNJ = torch.stack([_ahead(returns_DN, listed_DN, horizon) for horizon in plan.horizons], dim=-1)
    absent_DN = ~listed_DN
    values = Values(
        features_DNF.masked_fill(absent_DN[..., None], torch.nan),
        targets_DNJ.masked_fill(absent_DN[..., None], torch.nan),
        returns_DN.masked_fill(absent_DN, torch.nan),
        listed_DN,
    )
    names = ("returns_1d", *(f"signal_{n + 1}" for n in range(3)), *(f"noise_{n + 1}" for n in range(noises)))
    columns = replace(columns_of(plan, panel), features=names)
    dates = tuple(_workday(day).isoformat() for day in range(days))
    return PanelFiles((), columns, dates, tuple(f"{10000 + number}" for number in range(stocks))), values


def _listings(days: int, stocks: int, generator: torch.Generator) -> Tensor:
    """Return who is listed when: one stock of five comes later, one goes earlier, 1 % of days miss."""
    day_D1 = torch.arange(days)[:, None]
    chance_N, begin_N, end_N = (torch.rand(stocks, generator=generator) for _ in range(3))
    first_N = torch.where(chance_N < 0.2, begin_N * days * 0.8, 0)
    last_N = torch.where(chance_N > 0.8, (0.2 + 0.8 * end_N) * days, days)
    gaps_DN = torch.rand(days, stocks, generator=generator) < 0.01
    return (day_D1 >= first_N) & (day_D1 < last_N) & ~gaps_DN


def _ahead(returns_DN: Tensor, listed_DN: Tensor, horizon: int) -> Tensor:
    """Return the sum of the returns of the next days, NaN where the stock is not listed at their end."""
    total_DN = torch.cat([torch.zeros(1, returns_DN.shape[1]), returns_DN.double().cumsum(0)])
    ahead_DN = torch.full_like(returns_DN, torch.nan)
    ahead_DN[:-horizon] = (total_DN[1 + horizon :] - total_DN[1:-horizon]).float()
    gone_DN = torch.ones_like(listed_DN)
    gone_DN[:-horizon] = ~listed_DN[horizon:]
    return ahead_DN.masked_fill(gone_DN, torch.nan)


def _workday(number: int) -> date:
    return date(2020, 1, 6) + timedelta(days=number // 5 * 7 + number % 5)


def panel_sha256(panel: PanelFiles, values: Values, plan: GraphForecast) -> str:
    """Return the hash of everything that decides features, outcomes and edges."""
    used = {
        "window",
        "horizons",
        "held_out",
        "neighbours",
        "lookback",
        "half_life",
        "shrinkage",
        "threshold",
        "panel",
    }
    shape = plan.model_dump(mode="json", include=used)
    named = [shape, panel.dates, panel.codes, panel.columns.features, panel.columns.targets]
    digest = hashlib.sha256(json.dumps(named, sort_keys=True).encode())
    for tensor in (values.features_DNF, values.targets_DNJ, values.returns_DN, values.listed_DN):
        digest.update(tensor.nan_to_num(torch.inf).numpy().tobytes())
    return digest.hexdigest()
