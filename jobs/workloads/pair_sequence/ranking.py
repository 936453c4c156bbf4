"""Ranks many texts by pairs of them, by the model of Bradley and Terry, and compares orders.

Shape legend: M texts.
"""
# ruff: noqa: N803, N806 - tensors carry their shape

from typing import Final

import torch
from torch import Tensor

ROUNDS: Final = 200
"""Most rounds of the fit; it ends earlier when no strength changes by more than ``CLOSE``."""

CLOSE: Final = 1e-9

PRIOR: Final = 0.1
"""Wins and losses against a text of strength 1 that everyone begins with: no strength is 0 or infinite."""


def bradley_terry(wins_MM: Tensor) -> Tensor:
    """Return the logarithms of the strengths, shape (M,), with a mean of 0.

    ``wins_MM[i, j]`` says how often i was preferred to j, in whole or in parts.  The fit is the minorisation
    and maximisation of D. R. Hunter, "MM algorithms for generalized Bradley-Terry models", Annals of
    Statistics 32 (2004), with a little prior that keeps it finite.
    """
    wins_MM = wins_MM.double()
    games_MM = wins_MM + wins_MM.T
    won_M = wins_MM.sum(dim=1) + PRIOR
    strength_M = torch.ones(len(wins_MM), dtype=torch.float64)
    for _ in range(ROUNDS):
        together_MM = strength_M[:, None] + strength_M[None, :]
        before_M = strength_M
        strength_M = won_M / ((games_MM / together_MM).sum(dim=1) + 2 * PRIOR / (strength_M + 1))
        strength_M = strength_M / strength_M.log().mean().exp()
        if float((strength_M / before_M - 1).abs().max()) < CLOSE:
            break
    return strength_M.log()


def rank_correlation(one_M: Tensor, other_M: Tensor) -> float:
    """Return Spearman's rank correlation; 0 if one side has the same value throughout."""
    ranks_2M = torch.stack([_ranks(one_M), _ranks(other_M)])
    away_2M = ranks_2M - ranks_2M.mean(dim=1, keepdim=True)
    spread = float(away_2M.square().sum(dim=1).prod().sqrt())
    return float((away_2M[0] * away_2M[1]).sum()) / spread if spread else 0.0


def _ranks(values_M: Tensor) -> Tensor:
    """Return the ranks from 0; equal values share the mean of theirs."""
    _, group_M, sizes = values_M.unique(sorted=True, return_inverse=True, return_counts=True)
    ends = sizes.cumsum(0)
    return (ends - sizes + (sizes - 1) / 2).double()[group_M]
