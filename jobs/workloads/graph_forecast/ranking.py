"""Value of a forecast of many stocks: rank correlation, hit rate, and the Sharpe ratio of a portfolio.

All are computed for each graph and horizon over the stocks whose outcome is known, and added up.

Legend: B graphs of a batch, N nodes, J horizons.
"""
# ruff: noqa: N803, N806 - tensors carry their shape

import math
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

YEAR: Final = 252
"""Trading days."""

LEAST: Final = 2
"""Stocks that a ranking takes."""

_TINY: Final = 1e-12


def ranks(values_BNJ: Tensor, known_BNJ: Tensor) -> Tensor:
    """Return the ranks among the known values, centred on 0; equal values share a rank, unknown ones 0."""
    last = values_BNJ.masked_fill(~known_BNJ, math.inf).transpose(1, 2).contiguous()
    ordered_BJN = last.sort(dim=-1).values
    low, high = (torch.searchsorted(ordered_BJN, last, right=right) for right in (False, True))
    known_BJN = known_BNJ.transpose(1, 2)
    middle_BJ1 = known_BJN.sum(-1, keepdim=True) / 2
    return (((low + high) / 2 - middle_BJ1) * known_BJN).transpose(1, 2)


def correlations(one_BNJ: Tensor, other_BNJ: Tensor, known_BNJ: Tensor) -> Tensor:
    """Return the correlation across the known nodes of each graph, (B, J); 0 if one side is constant."""
    count_B1J = known_BNJ.sum(1, keepdim=True).clamp_min(1)
    a_BNJ, b_BNJ = (
        (each - (each * known_BNJ).sum(1, keepdim=True) / count_B1J) * known_BNJ
        for each in (one_BNJ, other_BNJ)
    )
    scale_BJ = a_BNJ.norm(dim=1) * b_BNJ.norm(dim=1)
    return (a_BNJ * b_BNJ).sum(1) / scale_BJ.clamp_min(_TINY)


def portfolio_returns(point_BNJ: Tensor, outcome_BNJ: Tensor, known_BNJ: Tensor) -> Tensor:
    """Return what a portfolio earns, (B, J): long high ranks, short low ones, 1 in all."""
    rank_BNJ = ranks(point_BNJ, known_BNJ)
    share_BNJ = rank_BNJ / rank_BNJ.abs().sum(1, keepdim=True).clamp_min(_TINY)
    return (share_BNJ * outcome_BNJ).sum(1)


def ranking_sums(point_BNJ: Tensor, outcome_BNJ: Tensor, known_BNJ: Tensor) -> Mapping[str, Tensor]:
    """Return sums over graphs and nodes for each horizon (J), from which ``ranking`` computes the metrics."""
    point_BNJ, outcome_BNJ = point_BNJ.double(), outcome_BNJ.double()
    counts_BJ = known_BNJ.sum(1) >= LEAST
    earned_BJ = portfolio_returns(point_BNJ, outcome_BNJ, known_BNJ) * counts_BJ
    moved_BNJ = known_BNJ & (outcome_BNJ != 0)
    rank_BJ = correlations(ranks(point_BNJ, known_BNJ), ranks(outcome_BNJ, known_BNJ), known_BNJ)
    return {
        "graphs": counts_BJ.sum(0),
        "ic": (correlations(point_BNJ, outcome_BNJ, known_BNJ) * counts_BJ).sum(0),
        "rank_ic": (rank_BJ * counts_BJ).sum(0),
        "earned": earned_BJ.sum(0),
        "earned squared": earned_BJ.square().sum(0),
        "moved": moved_BNJ.sum((0, 1)),
        "rose": (moved_BNJ & (outcome_BNJ > 0)).sum((0, 1)),
        "hit": (moved_BNJ & ((outcome_BNJ > 0) == (point_BNJ > 0))).sum((0, 1)),
    }


def sharpe(total: float, squares: float, graphs: float, days: int) -> float:
    """Return the yearly Sharpe ratio of the earnings of so many graphs, each over a horizon of ``days``."""
    if graphs < LEAST:
        return 0.0
    mean = total / graphs
    variance = (squares - graphs * mean * mean) / (graphs - 1)
    return mean / math.sqrt(variance) * math.sqrt(YEAR / days) if variance > _TINY else 0.0
