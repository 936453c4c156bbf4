"""Builds graphs of correlated assets, one for each trading day, in two ways.

A node has an edge from each of the ``neighbours`` assets whose returns correlate most strongly
(positively or negatively) with its own in the days up to and including that day.  The rule is that of
the source project (gogooku3: exponentially weighted, demeaned, shrunk, cut off at a threshold).

``build_days`` computes all days at once.  ``rebuild_day`` does what the source project did for
each validation batch: it filters a long table by dates, then by each asset, and loops over
pairs and edges in Python.  Both give bit-identical edges on every machine: returns and weights are
integers here, so every sum is exact in float64 in any order, and the remaining operations are
single IEEE operations in a fixed order.

``jobs.workloads.graph_forecast.cache`` decides when graphs are built, and caches them.

A *day* is the number of a row in the table of prices.  Legend: D days, N assets (nodes),
K neighbours, L days of lookback, M rows of the long table.
"""
# ruff: noqa: N803, N806, N815 - arrays carry their shape

import math
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Whole: TypeAlias = NDArray[np.int64]
Real: TypeAlias = NDArray[np.float64]

RETURN_UNIT: Final = 2.0**-18
"""A log return is rounded to this and cut at 1, so that 2**9 products of two, times 2**8, fit in 2**53."""

WEIGHT_STEPS: Final = 255

NO_SPREAD: Final = 1e-9
"""An asset whose variance is a smaller share of its mean square did not move: it correlates with nothing."""

CHUNK_BYTES: Final = 2**22
"""Largest intermediate array of ``build_days``: what a CPU cache holds."""


@dataclass(frozen=True, slots=True)
class EdgeRule:
    """The parameters that determine the edges of a graph."""

    neighbours: int
    lookback: int
    half_life: float
    shrinkage: float
    threshold: float

    def weights(self) -> Real:
        """Return integer weights, one for each day of the lookback, the latest day last."""
        age_L = np.arange(self.lookback)[::-1]
        return np.rint(WEIGHT_STEPS * 0.5 ** (age_L / self.half_life))


class Graphs(NamedTuple):
    """Incoming edges of every node, strongest first; a node with fewer than K neighbours lists itself.

    ``neighbours_DNK`` is int64, ``correlations_DNK`` float32 and 0 where there is no edge.
    """

    neighbours_DNK: Tensor
    correlations_DNK: Tensor

    def to(self, device: torch.device) -> "Graphs":
        """Return the same graphs on a device."""
        return Graphs(self.neighbours_DNK.to(device), self.correlations_DNK.to(device))


def whole_returns(prices_DN: Tensor) -> Whole:
    """Return integer log returns in units of ``RETURN_UNIT``; row d belongs to day d, and the first is 0."""
    log_DN = np.log(prices_DN.numpy())
    returns_DN = np.diff(log_DN, axis=0, prepend=log_DN[:1])
    return np.rint(np.clip(returns_DN, -1, 1) / RETURN_UNIT).astype(np.int64)


def build_days(returns_DN: Whole, days: range, rule: EdgeRule) -> Graphs:
    """Return the graphs of consecutive days; each needs ``lookback`` returns up to itself."""
    nodes = returns_DN.shape[1]
    size = max(1, CHUNK_BYTES // (8 * nodes * max(nodes, rule.lookback)))
    chunks = [days[start : start + size] for start in range(0, len(days), size)]
    parts = [edges_of(_correlations(returns_DN, chunk, rule), None, rule) for chunk in chunks]
    return Graphs(torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts]))


def _correlations(returns_DN: Whole, days: range, rule: EdgeRule) -> Real:
    """Return (D, N, N) correlations, including the diagonal."""
    weights_L = rule.weights()
    history_DN = returns_DN[days.start - rule.lookback + 1 : days.stop].astype(np.float64)
    views_DNL = np.lib.stride_tricks.sliding_window_view(history_DN, rule.lookback, axis=0)
    windows_DNL = np.ascontiguousarray(views_DNL)  # the product then uses BLAS, ten times faster
    weighted_DNL = windows_DNL * weights_L
    sums_DN = weighted_DNL.sum(axis=2)
    products_DNN = weighted_DNL @ windows_DNL.transpose(0, 2, 1)
    total = weights_L.sum()
    squares_DN = np.diagonal(products_DNN, axis1=1, axis2=2)
    variances_DN = total * squares_DN - sums_DN * sums_DN
    moves_DN = variances_DN > NO_SPREAD * (total * squares_DN)
    deviations_DN = np.sqrt(np.where(moves_DN, variances_DN, np.inf))
    covariances_DNN = total * products_DNN - sums_DN[:, :, None] * sums_DN[:, None, :]
    scale_DNN = deviations_DN[:, :, None] * deviations_DN[:, None, :]
    return (1 - rule.shrinkage) * (covariances_DNN / scale_DNN)


def edges_of(
    correlations_DNN: Real, allowed_DNN: NDArray[np.bool_] | None, rule: EdgeRule
) -> tuple[Tensor, Tensor]:
    """Return the edges of days from their correlations; ``allowed_DNN`` tells which pairs may have one."""
    nodes = correlations_DNN.shape[1]
    strength_DNN = np.abs(correlations_DNN)
    strength_DNN[:, np.arange(nodes), np.arange(nodes)] = -1.0  # exclude the node itself
    if allowed_DNN is not None:
        strength_DNN[~allowed_DNN] = -1.0
    order_DNK = _strongest(strength_DNN, min(rule.neighbours, nodes))
    chosen_DNK = np.take_along_axis(correlations_DNN, order_DNK, axis=2)
    strong_DNK = np.take_along_axis(strength_DNN, order_DNK, axis=2) >= rule.threshold
    neighbours_DNK = np.where(strong_DNK, order_DNK, np.arange(nodes)[None, :, None])
    kept_DNK = np.where(strong_DNK, chosen_DNK, 0.0).astype(np.float32)
    return torch.from_numpy(neighbours_DNK), torch.from_numpy(kept_DNK)


def _strongest(strength_DNN: Real, count: int) -> Whole:
    """Return the indices of the largest values, ties in index order, without sorting all of them."""
    left_DNN = strength_DNN.copy()
    order_DNK = np.empty((*strength_DNN.shape[:2], count), dtype=np.int64)
    for place in range(count):
        best_DN1 = left_DNN.argmax(axis=2)[:, :, None]
        order_DNK[:, :, place : place + 1] = best_DN1
        np.put_along_axis(left_DNN, best_DN1, -2.0, axis=2)
    return order_DNK


@dataclass(frozen=True, slots=True)
class LongTable:
    """Returns in the layout of the source project: one row for each asset and day."""

    day_M: Whole
    asset_M: Whole
    return_M: Whole
    assets: int

    @classmethod
    def of(cls, returns_DN: Whole) -> "LongTable":
        """Return the long form of a table, ordered by day."""
        days, assets = returns_DN.shape
        day_M, asset_M = np.repeat(np.arange(days), assets), np.tile(np.arange(assets), days)
        return cls(day_M, asset_M, returns_DN.reshape(-1), assets)

    def where(self, wanted_M: NDArray[np.bool_]) -> "LongTable":
        """Return the selected rows."""
        return LongTable(self.day_M[wanted_M], self.asset_M[wanted_M], self.return_M[wanted_M], self.assets)


def rebuild_day(table: LongTable, day: int, rule: EdgeRule) -> Graphs:
    """Return one day's graph, computed as the source project did for every validation batch."""
    recent = table.where((table.day_M > day - rule.lookback) & (table.day_M <= day))
    returns = [recent.where(recent.asset_M == asset).return_M for asset in range(table.assets)]
    matrix = _pair_by_pair([one.astype(np.float64) for one in returns], rule)
    neighbours_NK, correlations_NK = [], []
    for node, row in enumerate(matrix):
        others = [other for other in range(table.assets) if other != node]
        nearest = sorted(others, key=lambda other: -abs(row[other].item()))[: rule.neighbours]
        strong = [other for other in nearest if abs(row[other].item()) >= rule.threshold]
        absent = min(rule.neighbours, table.assets) - len(strong)
        neighbours_NK.append(strong + [node] * absent)
        correlations_NK.append([row[other].item() for other in strong] + [0.0] * absent)
    return Graphs(
        torch.tensor([neighbours_NK], dtype=torch.int64), torch.tensor([correlations_NK], dtype=torch.float32)
    )


def _pair_by_pair(returns: list[Real], rule: EdgeRule) -> Tensor:
    weights_L = rule.weights()
    total = weights_L.sum()
    sums = [(weights_L * one_L).sum() for one_L in returns]
    deviations = [_deviation(one_L, weights_L) for one_L in returns]
    matrix_NN = torch.zeros(len(returns), len(returns), dtype=torch.float64)
    for i, a_L in enumerate(returns):
        for j, b_L in enumerate(returns):
            covariance = total * (weights_L * a_L * b_L).sum() - sums[i] * sums[j]
            matrix_NN[i, j] = (1 - rule.shrinkage) * (covariance / (deviations[i] * deviations[j]))
    return matrix_NN


def _deviation(one_L: Real, weights_L: Real) -> float:
    square = weights_L.sum() * (weights_L * one_L * one_L).sum()
    variance = square - (weights_L * one_L).sum() * (weights_L * one_L).sum()
    return math.sqrt(variance) if variance > NO_SPREAD * square else math.inf
