"""Training data of a plan: a table of prices, or a panel, with its graphs and the usual outcome.

``Material`` is what the workload needs to know of its data, whichever they are.
"""
# ruff: noqa: N803, N806, N815 - tensors carry their shape: D days, N nodes, k kinds, J horizons, P numbers

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from jobs.contract.plans.graph_forecast import SYNTHETIC_PANEL, SYNTHETIC_STOCKS, GraphForecast, Panel
from jobs.data import panels
from jobs.data.tables import Prices, find_table, read_prices
from jobs.training.failures import InvalidSpec
from jobs.training.report import warn
from jobs.training.switches import Switches
from jobs.workloads.graph_forecast.cache import (
    DISK_BYTES,
    Counts,
    GraphBlockCache,
    GraphSource,
    GroupedTables,
    Market,
    Rebuilt,
    joined,
    prebuild,
)
from jobs.workloads.graph_forecast.days import (
    FeatureScaler,
    Split,
    StockDays,
    feature_count,
    features_of,
    history,
    known,
    outcomes_of,
    split_days,
    synthetic_prices,
)
from jobs.workloads.graph_forecast.gaps import GappedReturns
from jobs.workloads.graph_forecast.graphs import EdgeRule, LongTable, whole_returns
from jobs.workloads.graph_forecast.objectives import Huber, Objective
from jobs.workloads.graph_forecast.panel import (
    SAMPLED,
    PanelDays,
    PanelScaler,
    columns_of,
    grouped,
    panel_sha256,
    split_panel,
    synthetic_panel,
    training_outcomes,
)
from jobs.workloads.protocol import BuildContext

GRAPHS: Final = "graphs"
"""Directory below the job's cache."""

_BYTES_OF_EDGE: Final = 8
"""On disk: the neighbour and the correlation."""


@dataclass(frozen=True, slots=True)
class Material:
    """The data of a training."""

    source: "StockDays | PanelDays"
    nodes: int  # of each graph
    features: int
    kinds: tuple[str, ...]
    usual_kJP: Tensor  # the best constant forecast
    corpus: str
    summary: str
    gaps: bool = False
    synthetic: bool = False


def material_of(plan: GraphForecast, setting: BuildContext, objective: Objective) -> Material:
    """Return what a plan trains on.

    Raises:
        InvalidSpec: the data are missing, unreadable, invalid or too small.
    """
    if plan.panel is None:
        return _from_prices(plan, setting, objective)
    return _from_panel(plan, plan.panel, setting, objective)


# --- A table of prices


def _from_prices(plan: GraphForecast, setting: BuildContext, objective: Objective) -> Material:
    table, prices = _prices(plan, setting.seed)
    split = split_days(len(prices.dates), plan)
    scale, usual_2JP = _measured(prices, split, plan, objective)
    each_use = f"{table.name if table else ''} opened for every day of every batch"
    once = _converts_once(
        setting.switches, each_use, synthetic=table is None, made_up="prices lie in no table"
    )
    kept = known(prices, plan, scale) if once else None
    graphs = _graphs(prices, split.days, plan, setting)
    return Material(
        StockDays(plan, setting.seed, split, scale, graphs, kept, table),
        nodes=len(prices.assets),
        features=feature_count(plan.scales),
        kinds=("volatility", "return"),
        usual_kJP=usual_2JP,
        corpus=_sha256(prices, plan),
        summary=_summary(f"{len(prices.assets)} assets", prices.dates, split),
        synthetic=table is None,
    )


def _prices(plan: GraphForecast, seed: int) -> tuple[Path | None, Prices]:
    """Return the table's path and its prices, or None and synthetic prices."""
    if plan.data == SYNTHETIC_STOCKS:
        warn(f"SYNTHETIC DATA: {plan.synthetic_assets} made-up assets, {plan.synthetic_days} made-up days")
        return None, synthetic_prices(plan, seed)
    table = find_table(Path(plan.data))
    prices = read_prices(table)
    if len(prices.assets) < 2:
        raise InvalidSpec(f"data: {table}:1: one asset, {prices.assets[0]}; a graph takes at least two")
    return table, prices


def _measured(
    prices: Prices, split: Split, plan: GraphForecast, objective: Objective
) -> tuple[FeatureScaler, Tensor]:
    """Return the feature scaler and the usual outcome (2, J, P), from the training days only."""
    train, past = split.train, history(plan.scales)
    features_DNF = features_of(prices.values_NA[: train.stop], plan.scales)[train.start - past :]
    outcomes_DN2J = outcomes_of(prices.values_NA[: train.stop + max(plan.horizons)], plan.horizons, past)
    used_DN2J = outcomes_DN2J[train.start - past :]
    if isinstance(objective, Huber):
        return FeatureScaler.of(features_DNF), used_DN2J.mean((0, 1)).float()[..., None]
    rows = used_DN2J.flatten(0, 1)
    samples = rows[:: -(-len(rows) // SAMPLED)].flatten(1).unbind(1)
    constant_2JP = objective.constant(samples).unflatten(0, used_DN2J.shape[2:])
    return FeatureScaler.of(features_DNF), constant_2JP.float()


def _graphs(prices: Prices, days: range, plan: GraphForecast, setting: BuildContext) -> GraphSource:
    """Return the graph source of the switch, or memory instead of disk if there is no cache directory."""
    market = Market(prices.dates, prices.assets, whole_returns(prices.values_NA))
    if setting.switches.profile.graph_cache == "off":
        return Rebuilt(LongTable.of(market.returns_DN), _rule(plan), _counts(setting))
    cache, remark = _cache(setting, DISK_BYTES)
    kept = prebuild(market, days, _rule(plan), _counts(setting), cache)
    return replace(kept, remark=remark) if remark else kept


# --- A panel


def _from_panel(plan: GraphForecast, asked: Panel, setting: BuildContext, objective: Objective) -> Material:
    panel, values = _panel(plan, asked, setting.seed)
    groups_Gn = grouped(len(panel.codes), asked.nodes, setting.seed)
    split = split_panel(panel.dates, plan, asked, len(groups_Gn))
    scale = PanelScaler.of(values, split.train, panel.columns)
    usual_JP = objective.constant(training_outcomes(values, split.train, scale))
    each_use = "the files opened for every graph of every batch"
    once = _converts_once(
        setting.switches, each_use, synthetic=not panel.files, made_up="numbers lie in no files"
    )
    kept = scale.apply(values) if once else None
    returns = GappedReturns.of(values.returns_DN)
    graphs = _grouped_graphs(panel, returns, groups_Gn, split.days, plan, setting)
    return Material(
        PanelDays(plan, setting.seed, split, groups_Gn, graphs, scale, kept, panel),
        nodes=groups_Gn.shape[1],
        features=len(panel.columns.features),
        kinds=("return",),
        usual_kJP=usual_JP.float()[None],
        corpus=panel_sha256(panel, values, plan),
        summary=_panel_summary(panel, values, groups_Gn, split),
        gaps=True,
        synthetic=not panel.files,
    )


def _panel(plan: GraphForecast, asked: Panel, seed: int) -> tuple[panels.PanelFiles, panels.Values]:
    """Return the panel of the files, or a synthetic one, with its numbers."""
    if plan.data == SYNTHETIC_PANEL:
        warn(f"SYNTHETIC DATA: {plan.synthetic_assets} made-up stocks, {plan.synthetic_days} made-up days")
        return synthetic_panel(plan, asked, seed)
    panel = replace(panels.open_panel(Path(plan.data), columns_of(plan, asked)), clean=plan.clean)
    if len(panel.codes) < 2:
        raise InvalidSpec(f"data: {panel.files[0]}: one stock, {panel.codes[0]}; a graph takes at least two")
    return panel, panel.read()


def _grouped_graphs(  # noqa: PLR0913, PLR0917 - the parts of the data
    panel: panels.PanelFiles,
    returns: GappedReturns,
    groups_Gn: Tensor,
    days: range,
    plan: GraphForecast,
    setting: BuildContext,
) -> GraphSource:
    """Return the graphs of all groups, one group after the other."""
    stocks = len(panel.codes)
    parts = [returns.of_stocks(group_n.numpy(), stocks) for group_n in groups_Gn]
    rule, counts = _rule(plan), _counts(setting)
    if setting.switches.profile.graph_cache == "off":
        return Rebuilt(GroupedTables(tuple(part.table() for part in parts), days), rule, counts)
    needed = len(days) * groups_Gn.numel() * plan.neighbours * _BYTES_OF_EDGE
    cache, remark = _cache(setting, max(DISK_BYTES, 2 * needed))
    codes = (*panel.codes, "")
    markets = [
        Market(panel.dates, tuple(codes[i] for i in group_n.tolist()), part.returns_DN, part.known_DN)
        for group_n, part in zip(groups_Gn, parts, strict=True)
    ]
    kept = joined([prebuild(market, days, rule, counts, cache) for market in markets])
    return replace(kept, remark=remark) if remark else kept


def _panel_summary(panel: panels.PanelFiles, values: panels.Values, groups_Gn: Tensor, split: Split) -> str:
    missing_DNF = torch.isnan(values.features_DNF[values.listed_DN])
    groups, nodes = groups_Gn.shape
    what = (
        f"{len(panel.codes):,} stocks in {groups} group(s) of {nodes}, listed on"
        f" {float(values.listed_DN.float().mean()):.1%} of the days; {len(panel.columns.features)} features,"
        f" {float(missing_DNF.float().mean()):.1%} of their numbers missing"
    )
    return _summary(what, panel.dates, split)


# --- Both


def _converts_once(switches: Switches, each_use: str, *, synthetic: bool, made_up: str) -> bool:
    """Return whether features of all days are precomputed, and record the switch."""
    once = switches.profile.conversion == "once"
    if synthetic and not once:
        switches.fell_back("conversion", "once", f"made-up {made_up} that could be opened")
        return True
    switches.applied("conversion", verified=True, note="arrays of all days" if once else each_use)
    return once


def _rule(plan: GraphForecast) -> EdgeRule:
    return EdgeRule(plan.neighbours, plan.lookback, plan.half_life, plan.shrinkage, plan.threshold)


def _counts(setting: BuildContext) -> Counts:
    return Counts(shared=setting.switches.profile.loader_workers > 0)


def _cache(setting: BuildContext, limit_bytes: int) -> tuple[GraphBlockCache | None, str]:
    """Return the cache on disk if it is asked for, and why there is none although it is."""
    if setting.switches.profile.graph_cache != "disk":
        return None, ""
    if setting.cache_dir is None:
        return None, "; there is no directory that outlives an attempt"
    return GraphBlockCache(setting.cache_dir / GRAPHS, limit_bytes), ""


def _sha256(prices: Prices, plan: GraphForecast) -> str:
    shape = plan.model_dump(
        mode="json",
        include={
            "window",
            "scales",
            "horizons",
            "held_out",
            "neighbours",
            "lookback",
            "half_life",
            "shrinkage",
            "threshold",
        },
    )
    digest = hashlib.sha256(json.dumps([shape, prices.dates, prices.assets], sort_keys=True).encode())
    digest.update(prices.values_NA.numpy().tobytes())
    return digest.hexdigest()


def _summary(what: str, dates: Sequence[str], split: Split) -> str:
    """Return a one-line summary of the data."""
    spans = (
        f"{len(part):,} days {dates[part[0]]} to {dates[part[-1]]}" for part in (split.train, split.held_out)
    )
    train, held_out = spans
    return f"data: {what}; training on {train}; held out {held_out}"
