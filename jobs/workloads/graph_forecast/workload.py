"""Forecasts stocks with graph attention: over time for each asset, then over a graph of correlations.

The workload follows gogooku3 (ATFT-GAT-FAN): the nodes are the stocks of one trading day, the targets are
forward returns at several horizons, and the graph holds the correlations of the last months.  In gogooku3
the edges never reached the model; here they do, and a test checks it.  Returns of daily prices can
hardly be forecast, so the model also forecasts volatility over the same horizons, and both are reported.

An LSTM reads each asset's window, and its last state attends to all states.  Layers of graph attention
(GATv2, arXiv:2105.14491, with the correlation as edge feature) then mix the assets of a day.  Each node has
a list of K neighbours, so attention is a softmax over one dimension, and the forward pass needs no scatter.
The backward pass of ``index_select`` is ``index_add``, which is deterministic on CPU and CUDA.

Legend: B days, N assets, M = B * N nodes, T days of a window, F features, C width, H heads, D width of a
head, K edges into a node, the last one from itself, J horizons, 2 for volatility and return.
"""
# ruff: noqa: N803, N806, N815 - tensors carry their shape

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the conventional name
from torch.utils.checkpoint import checkpoint

from jobs.checkpoint.signatures import CORPUS, MODEL, SCHEDULE, model_signature, schedule_signature
from jobs.contract.plans.graph_forecast import SYNTHETIC_STOCKS, GraphForecast
from jobs.data.tables import Prices, find_table, read_prices
from jobs.training.batches import Batch
from jobs.training.failures import InvalidSpec
from jobs.training.randomness import seed_all
from jobs.training.report import say, warn
from jobs.training.switches import Switches
from jobs.workloads.common.parameters import decayed_matrices
from jobs.workloads.graph_forecast.cache import (
    Counts,
    GraphBlockCache,
    GraphSource,
    Market,
    Rebuilt,
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
from jobs.workloads.graph_forecast.graphs import EdgeRule, LongTable, whole_returns
from jobs.workloads.protocol import BuildContext, Evaluation

KINDS: Final = ("volatility", "return")

GRAPHS: Final = "graphs"
"""Directory below the job's cache."""


class TemporalEncoder(nn.Module):
    """Encodes each node's window as one vector: the last LSTM state plus its attention over all states."""

    def __init__(self, plan: GraphForecast) -> None:
        super().__init__()
        width = plan.hidden
        self.heads = plan.heads
        self.lift = nn.Linear(feature_count(plan.scales), width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(plan.dropout)

    def forward(self, features_MTF: Tensor) -> Tensor:
        states_MTC, _ = self.lstm(F.gelu(self.lift(features_MTF)))
        last_MC = states_MTC[:, -1]
        query_MH1D = self._heads(self.query(last_MC)[:, None])
        key_MHTD, value_MHTD = map(self._heads, self.key_value(states_MTC).chunk(2, dim=-1))
        found_MH1D = F.scaled_dot_product_attention(query_MH1D, key_MHTD, value_MHTD)
        return self.norm(last_MC + self.dropout(self.out(found_MH1D.flatten(1))))

    def _heads(self, states_MTC: Tensor) -> Tensor:
        nodes, days, width = states_MTC.shape
        return states_MTC.view(nodes, days, self.heads, width // self.heads).transpose(1, 2)


@dataclass(frozen=True, slots=True)
class Edges:
    """The edges of all days of a batch: the source among its M nodes, and the correlation."""

    sender_MK: Tensor
    correlation_MK: Tensor
    absent_MK: Tensor

    @classmethod
    def of(cls, neighbours_BNK: Tensor, correlations_BNK: Tensor) -> "Edges":
        """Return the graphs of a batch joined into one, with a self-loop as the last edge of each node."""
        days, nodes, _ = neighbours_BNK.shape
        own_MK = torch.arange(days * nodes, device=neighbours_BNK.device)[:, None]
        shift_B11 = nodes * torch.arange(days, device=neighbours_BNK.device)[:, None, None]
        sender_MK = (neighbours_BNK + shift_B11).flatten(0, 1)
        correlation_MK = F.pad(correlations_BNK.flatten(0, 1), (0, 1), value=1.0)
        absent_MK = F.pad(sender_MK == own_MK, (0, 1), value=False)
        return cls(torch.cat([sender_MK, own_MK], dim=1), correlation_MK, absent_MK)


class GraphAttention(nn.Module):
    """Adds the attention-weighted messages of its neighbours to each node."""

    def __init__(self, plan: GraphForecast) -> None:
        super().__init__()
        width, self.heads = plan.hidden, plan.heads
        self.sender = nn.Linear(width, width)
        self.receiver = nn.Linear(width, width)
        self.edge = nn.Linear(2, width, bias=False)  # the correlation, and its absolute value
        self.score_HD = nn.Parameter(torch.empty(plan.heads, width // plan.heads))
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(plan.dropout)
        nn.init.xavier_uniform_(self.score_HD)

    def forward(self, x_MC: Tensor, edges: Edges) -> Tensor:
        nodes, edges_each = edges.sender_MK.shape
        shape = (nodes, edges_each, self.heads, -1)
        sent_MKHD = self.sender(x_MC).index_select(0, edges.sender_MK.flatten()).view(shape)
        strength_MK2 = torch.stack([edges.correlation_MK, edges.correlation_MK.abs()], dim=-1)
        asked_MKHD = self.receiver(x_MC).view(nodes, 1, self.heads, -1) + self.edge(strength_MK2).view(shape)
        score_MKH = (F.leaky_relu(sent_MKHD + asked_MKHD, 0.2) * self.score_HD).sum(-1)
        score_MKH = score_MKH.masked_fill(edges.absent_MK[..., None], float("-inf"))
        weight_MKH = self.dropout(score_MKH.softmax(dim=1))
        mixed_MC = (weight_MKH[..., None] * sent_MKHD).sum(1).flatten(1)
        return self.norm(x_MC + F.gelu(self.out(mixed_MC)))


class Forecaster(nn.Module):
    """Forecasts (B, N, 2, J) outcomes of every node from windows and edges."""

    def __init__(self, plan: GraphForecast, *, recompute: bool = False) -> None:
        super().__init__()
        self.recompute = recompute
        self.encoder = TemporalEncoder(plan)
        self.graph = nn.ModuleList(GraphAttention(plan) for _ in range(plan.layers))
        self.join = nn.Linear(2 * plan.hidden, plan.hidden)
        self.dropout = nn.Dropout(plan.dropout)
        self.head = nn.Linear(plan.hidden, 2 * len(plan.horizons))

    def forward(self, features_BNTF: Tensor, neighbours_BNK: Tensor, correlations_BNK: Tensor) -> Tensor:
        days, nodes = features_BNTF.shape[:2]
        edges = Edges.of(neighbours_BNK, correlations_BNK)
        alone_MC = self._through(self.encoder, features_BNTF.flatten(0, 1))
        mixed_MC = alone_MC
        for layer in self.graph:
            mixed_MC = self._through(layer, mixed_MC, edges)
        joined_MC = F.gelu(self.join(torch.cat([alone_MC, mixed_MC], dim=1)))
        return self.head(self.dropout(joined_MC)).view(days, nodes, 2, -1)

    def _through(self, layer: nn.Module, *inputs: Tensor | Edges) -> Tensor:
        if self.recompute and self.training:
            return checkpoint(layer, *inputs, use_reentrant=False)
        return layer(*inputs)


class GraphForecaster:
    """The workload: prices, graphs, model and losses of one spec."""

    item = "node"

    def __init__(self, plan: GraphForecast, setting: BuildContext) -> None:
        self.plan = plan
        self._switches = setting.switches
        table, prices = _prices(plan, setting.seed)
        split = split_days(len(prices.dates), plan)
        self._assets = len(prices.assets)
        self._corpus = _sha256(prices, plan)
        scale, self._usual_2J = _measured(prices, split, plan)
        kept = known(prices, plan, scale) if _converts_once(setting.switches, table) else None
        graphs = _graphs(prices, split.days, plan, setting)
        self.source = StockDays(plan, setting.seed, split, scale, graphs, kept, table)
        seed_all(setting.seed, "weights")
        self.model = Forecaster(plan, recompute=setting.switches.profile.activation_checkpointing)
        setting.switches.applied("activation_checkpointing")
        self._tell_of_graphs()
        say(_summary(prices, split))

    @property
    def items_per_step(self) -> int:
        return self.plan.batch_size * self._assets

    @property
    def train_items(self) -> int:
        return len(self.source.split.train) * self._assets

    @property
    def steps_per_epoch(self) -> int:
        return max(1, self.train_items // self.items_per_step)

    @cached_property
    def signatures(self) -> Mapping[str, str]:
        plan = self.plan
        return {
            MODEL: model_signature(self.model, plan.kind, plan.heads),
            CORPUS: self._corpus,
            SCHEDULE: schedule_signature(plan, plan.dropout, plan.return_weight),
        }

    def parameter_groups(self) -> list[dict[str, Any]]:
        return decayed_matrices(self.model, self.plan.weight_decay)

    def loss_sum(self, batch: Batch) -> Tensor:
        """Return the sum over nodes of the Huber losses of volatility and (weighted) return."""
        losses_2J = self._losses(self._forecast(batch), batch)
        volatility, gain = losses_2J.mean(1)
        return volatility + self.plan.return_weight * gain

    def count(self, batch: Batch) -> int:
        return batch["outcomes"].shape[0] * batch["outcomes"].shape[1]

    def score(self, batch: Batch) -> Mapping[str, Tensor]:
        """Return sums of the model's losses, the mean outcome's losses, and the information coefficients."""
        forecast_BN2J = self._forecast(batch)
        usual_2J = self._usual_2J.to(forecast_BN2J.device)
        sums = {"nodes": torch.tensor(self.count(batch)), "days": torch.tensor(len(batch["outcomes"]))}
        for who, losses_2J in (
            ("model", self._losses(forecast_BN2J, batch)),
            ("usual", self._losses(usual_2J.expand_as(forecast_BN2J), batch)),
        ):
            sums |= {f"{who} {name}": losses_2J[i, j] for name, i, j in self._names()}
        ranks_J = _agreement(forecast_BN2J[:, :, 1], batch["outcomes"][:, :, 1]).sum(0)
        return sums | {f"ic_{days}d": ranks_J[j] for j, days in enumerate(self.plan.horizons)}

    def judge(self, sums: Mapping[str, float]) -> Evaluation:
        """Return mean losses; the baseline predicts the mean outcome of the training days."""
        self._tell_of_graphs()
        metrics, usual = self._means("model", sums), self._means("usual", sums)
        for days in self.plan.horizons:
            metrics[f"ic_{days}d"] = sums[f"ic_{days}d"] / sums["days"]
            usual[f"ic_{days}d"] = 0.0  # a constant forecast ranks no asset above another
        counts = self.source.graphs.counts
        metrics |= {"graph_hits": float(counts.hits), "graph_misses": float(counts.misses)}
        if self.source.table is None:
            metrics["synthetic_data"] = 1.0
        return Evaluation(metrics, usual, "eval_loss")

    def _means(self, who: str, sums: Mapping[str, float]) -> dict[str, float]:
        each = {name: sums[f"{who} {name}"] / sums["nodes"] for name, _, _ in self._names()}
        horizons = self.plan.horizons
        volatility, gain = (
            sum(each[f"{kind}_{days}d"] for days in horizons) / len(horizons) for kind in KINDS
        )
        loss = volatility + self.plan.return_weight * gain
        return {"eval_loss": loss, "volatility_loss": volatility, "return_loss": gain, **each}

    def _names(self) -> list[tuple[str, int, int]]:
        horizons = list(enumerate(self.plan.horizons))
        return [(f"{kind}_{days}d", i, j) for i, kind in enumerate(KINDS) for j, days in horizons]

    def _forecast(self, batch: Batch) -> Tensor:
        forecast: Tensor = self.model(batch["features"], batch["neighbours"], batch["correlations"])
        return forecast.float()

    def _losses(self, forecast_BN2J: Tensor, batch: Batch) -> Tensor:
        losses_BN2J = F.huber_loss(forecast_BN2J, batch["outcomes"], reduction="none")
        return losses_BN2J.sum((0, 1))

    def _tell_of_graphs(self) -> None:
        graphs = self.source.graphs
        seen = graphs.counts.hits + graphs.counts.misses > 0
        self._switches.applied("graph_cache", graphs.kind, verified=seen or None, note=graphs.note)


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


def _measured(prices: Prices, split: Split, plan: GraphForecast) -> tuple[FeatureScaler, Tensor]:
    """Return the feature scaler and the mean outcomes (2, J), from the training days only."""
    train, past = split.train, history(plan.scales)
    features_DNF = features_of(prices.values_NA[: train.stop], plan.scales)[train.start - past :]
    outcomes_DN2J = outcomes_of(prices.values_NA[: train.stop + max(plan.horizons)], plan.horizons, past)
    return FeatureScaler.of(features_DNF), outcomes_DN2J[train.start - past :].mean((0, 1)).float()


def _converts_once(switches: Switches, table: Path | None) -> bool:
    """Return whether features of all days are precomputed, and record the switch."""
    once = switches.profile.conversion == "once"
    if table is None and not once:
        switches.fell_back("conversion", "once", "made-up prices lie in no table that could be opened")
        return True
    note = (
        "arrays of all days" if once else f"{table.name if table else ''} opened for every day of every batch"
    )
    switches.applied("conversion", verified=True, note=note)
    return once


def _graphs(prices: Prices, days: range, plan: GraphForecast, setting: BuildContext) -> GraphSource:
    """Return the graph source of the switch, or memory instead of disk if there is no cache directory."""
    profile = setting.switches.profile
    rule = EdgeRule(plan.neighbours, plan.lookback, plan.half_life, plan.shrinkage, plan.threshold)
    market = Market(prices.dates, prices.assets, whole_returns(prices.values_NA))
    counts = Counts(shared=profile.loader_workers > 0)
    if profile.graph_cache == "off":
        return Rebuilt(LongTable.of(market.returns_DN), rule, counts)
    if profile.graph_cache == "memory":
        return prebuild(market, days, rule, counts, None)
    if setting.cache_dir is None:
        kept = prebuild(market, days, rule, counts, None)
        return replace(kept, remark="; there is no directory that outlives an attempt")
    return prebuild(market, days, rule, counts, GraphBlockCache(setting.cache_dir / GRAPHS))


def _agreement(forecast_BNJ: Tensor, outcome_BNJ: Tensor) -> Tensor:
    """Return the information coefficients (B, J): correlations across the assets of each day."""
    a_BNJ, b_BNJ = (each - each.mean(1, keepdim=True) for each in (forecast_BNJ, outcome_BNJ))
    scale_BJ = a_BNJ.norm(dim=1) * b_BNJ.norm(dim=1)
    return (a_BNJ * b_BNJ).sum(1) / scale_BJ.clamp_min(1e-12)


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


def _summary(prices: Prices, split: Split) -> str:
    """Return a one-line summary of the data."""
    spans = (
        f"{len(part):,} days {prices.dates[part[0]]} to {prices.dates[part[-1]]}"
        for part in (split.train, split.held_out)
    )
    train, held_out = spans
    return f"data: {len(prices.assets)} assets; training on {train}; held out {held_out}"
