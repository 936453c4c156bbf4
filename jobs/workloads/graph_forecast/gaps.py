"""Builds graphs of stocks of which not every one has a return on every day.

The rule is that of ``jobs.workloads.graph_forecast.graphs``; each pair is correlated over the days on which
both have a return.  A pair has no edge if these days hold less than ``SHARED`` of the weights, and a stock
without a return on the day itself has no edges.  Without gaps, the edges are exactly those of ``build_days``.

``build_gapped_days`` computes days at once.  ``rebuild_gapped_day`` does what the source project did for each
validation batch: it filters a long table by dates, then by each stock, correlates, and loops over edges
in Python.  Both give the same bits: all sums are sums of integers, and the few operations after them have
one order.

Legend: D days, N stocks (nodes), K neighbours, L days of lookback.
"""
# ruff: noqa: N803, N806, N815 - arrays carry their shape

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jobs.workloads.graph_forecast.graphs import (
    CHUNK_BYTES,
    NO_SPREAD,
    RETURN_UNIT,
    EdgeRule,
    Graphs,
    LongTable,
    Real,
    Whole,
    edges_of,
)

Known: TypeAlias = NDArray[np.bool_]

SHARED: Final = 0.5
"""Share of the weights of the lookback that the common days of a pair hold at least."""


@dataclass(frozen=True, slots=True)
class GappedReturns:
    """Integer returns in units of ``RETURN_UNIT``, 0 where ``known_DN`` says that there is none."""

    returns_DN: Whole
    known_DN: Known

    @classmethod
    def of(cls, returns_DN: Tensor) -> "GappedReturns":
        """Return the form from which graphs are built; NaN means no return."""
        values_DN = returns_DN.numpy().astype(np.float64)
        known_DN = ~np.isnan(values_DN)
        whole_DN = np.rint(np.clip(np.where(known_DN, values_DN, 0.0), -1, 1) / RETURN_UNIT)
        return cls(whole_DN.astype(np.int64), known_DN)

    def of_stocks(self, stocks_N: Whole, absent: int) -> "GappedReturns":
        """Return the columns of some stocks; a stock number from ``absent`` on stands for none."""
        there_N = stocks_N < absent
        chosen_N = np.where(there_N, stocks_N, 0)
        known_DN = self.known_DN[:, chosen_N] & there_N
        return GappedReturns(np.where(known_DN, self.returns_DN[:, chosen_N], 0), known_DN)

    def table(self) -> LongTable:
        """Return one row for each stock and day with a return, ordered by day."""
        day_M, asset_M = np.nonzero(self.known_DN)
        return LongTable(day_M, asset_M, self.returns_DN[day_M, asset_M], self.returns_DN.shape[1])


def build_gapped_days(returns: GappedReturns, days: range, rule: EdgeRule) -> Graphs:
    """Return the graphs of consecutive days; each needs ``lookback`` rows up to itself."""
    nodes = returns.returns_DN.shape[1]
    size = max(1, CHUNK_BYTES // (8 * nodes * max(nodes, rule.lookback)))
    chunks = [days[start : start + size] for start in range(0, len(days), size)]
    parts = [edges_of(*_correlations(returns, chunk, rule), rule) for chunk in chunks]
    return Graphs(torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts]))


def _correlations(returns: GappedReturns, days: range, rule: EdgeRule) -> tuple[Real, Known]:
    """Return (D, N, N) correlations, and the pairs that may have an edge."""
    weights_L = rule.weights()
    used = slice(days.start - rule.lookback + 1, days.stop)
    windows_DNL = _windows(returns.returns_DN[used].astype(np.float64), rule.lookback)
    known_DNL = _windows(returns.known_DN[used].astype(np.float64), rule.lookback)
    known_DLN = known_DNL.transpose(0, 2, 1)
    weighted_DNL = windows_DNL * weights_L
    total_DNN = (known_DNL * weights_L) @ known_DLN
    sums_DNN = weighted_DNL @ known_DLN  # of the first, over the days of both
    products_DNN = weighted_DNL @ windows_DNL.transpose(0, 2, 1)
    squares_DNN = (weighted_DNL * windows_DNL) @ known_DLN
    others_DNN = sums_DNN.transpose(0, 2, 1)
    variances_DNN = total_DNN * squares_DNN - sums_DNN * sums_DNN
    moves_DNN = variances_DNN > NO_SPREAD * (total_DNN * squares_DNN)
    deviations_DNN = np.sqrt(np.where(moves_DNN, variances_DNN, np.inf))
    covariances_DNN = total_DNN * products_DNN - sums_DNN * others_DNN
    scale_DNN = deviations_DNN * deviations_DNN.transpose(0, 2, 1)
    here_DN = returns.known_DN[days.start : days.stop]
    together_DNN = here_DN[:, :, None] & here_DN[:, None, :]
    allowed_DNN = together_DNN & (total_DNN >= SHARED * weights_L.sum())
    return (1 - rule.shrinkage) * (covariances_DNN / scale_DNN), allowed_DNN


def _windows(values_DN: Real, lookback: int) -> Real:
    views_DNL = np.lib.stride_tricks.sliding_window_view(values_DN, lookback, axis=0)
    return np.ascontiguousarray(views_DNL)  # the products then use BLAS, ten times faster


def rebuild_gapped_day(table: LongTable, day: int, rule: EdgeRule) -> Graphs:
    """Return one day's graph, computed as the source project did for every validation batch."""
    recent = table.where((table.day_M > day - rule.lookback) & (table.day_M <= day))
    returns_LN = np.zeros((rule.lookback, table.assets), dtype=np.int64)
    known_LN = np.zeros((rule.lookback, table.assets), dtype=np.bool_)
    for asset in range(table.assets):
        rows = recent.where(recent.asset_M == asset)
        place = rows.day_M - (day - rule.lookback + 1)
        returns_LN[place, asset], known_LN[place, asset] = rows.return_M, True
    last = range(rule.lookback - 1, rule.lookback)
    correlations_DNN, allowed_DNN = _correlations(GappedReturns(returns_LN, known_LN), last, rule)
    return _edge_by_edge(torch.from_numpy(correlations_DNN[0]), torch.from_numpy(allowed_DNN[0]), rule)


def _edge_by_edge(correlations_NN: Tensor, allowed_NN: Tensor, rule: EdgeRule) -> Graphs:
    nodes = len(correlations_NN)
    count = min(rule.neighbours, nodes)
    strength_NN = torch.where(allowed_NN, correlations_NN.abs(), -1.0).fill_diagonal_(-1.0)
    order_NN = strength_NN.argsort(dim=1, descending=True, stable=True)
    neighbours_NK, correlations_NK = [], []
    for node in range(nodes):
        nearest = [order_NN[node, place].item() for place in range(count)]
        strong = [other for other in nearest if strength_NN[node, other].item() >= rule.threshold]
        absent = count - len(strong)
        neighbours_NK.append(strong + [node] * absent)
        correlations_NK.append([correlations_NN[node, other].item() for other in strong] + [0.0] * absent)
    return Graphs(
        torch.tensor([neighbours_NK], dtype=torch.int64), torch.tensor([correlations_NK], dtype=torch.float32)
    )
