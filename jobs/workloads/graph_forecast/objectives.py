"""Losses of a forecast: of one number, of quantiles, or of a Student-t distribution.

An objective says how many numbers the model gives for each outcome (P), how they are read, and what they
cost.  It also knows the best *constant* numbers, those of the trivial predictor: the ones that forecast
every node alike, fitted to the outcomes of the training days.
"""
# ruff: noqa: N806 - tensors carry their shape

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from jobs.contract.plans.graph_forecast import GraphForecast

LEAST_FREEDOM: Final = 2.0
"""Degrees of freedom are above this: the variance of a Student-t distribution exists."""

LEAST_SCALE: Final = 1e-3
"""Smallest scale, in deviations of the outcome: a certain forecast would make the loss infinite."""

_FREEDOMS: Final = (2.5, 3.0, 4.0, 5.0, 8.0, 12.0, 30.0)
_ROUNDS: Final = 60


class Objective(Protocol):
    """Meaning of the numbers of a forecast, and their loss."""

    @property
    def numbers(self) -> int:
        """P, the numbers that the model gives for each outcome."""

    def losses(self, forecast: Tensor, outcomes: Tensor) -> Tensor:
        """Return the loss of each outcome; ``forecast`` has the shape of the outcomes, and P after it."""

    def point(self, forecast: Tensor) -> Tensor:
        """Return the one number that ranks the nodes: mean, median or location."""

    def constant(self, samples: Sequence[Tensor]) -> Tensor:
        """Return the best constant forecast (J, P) from the training outcomes of each horizon, float64."""


@dataclass(frozen=True, slots=True)
class Huber:
    """Huber loss (delta 1) of one number."""

    numbers: int = 1

    def losses(self, forecast: Tensor, outcomes: Tensor) -> Tensor:
        return F.huber_loss(forecast[..., 0], outcomes, reduction="none")

    def point(self, forecast: Tensor) -> Tensor:
        return forecast[..., 0]

    def constant(self, samples: Sequence[Tensor]) -> Tensor:
        return torch.stack([each.mean()[None] for each in samples])


@dataclass(frozen=True, slots=True)
class Quantile:
    """Mean pinball loss over the levels; the quantiles rise by construction."""

    levels: tuple[float, ...]

    @property
    def numbers(self) -> int:
        return len(self.levels)

    def quantiles(self, forecast: Tensor) -> Tensor:
        """Return the quantiles: the first number, then steps that are positive."""
        first, *rises = forecast.unbind(-1)
        return torch.stack(list(accumulate([first, *map(F.softplus, rises)])), dim=-1)

    def losses(self, forecast: Tensor, outcomes: Tensor) -> Tensor:
        return self.pinball(self.quantiles(forecast), outcomes)

    def inside(self, forecast: Tensor, outcomes: Tensor) -> Tensor:
        """Return which outcomes lie between the lowest and the highest quantile."""
        quantiles = self.quantiles(forecast)
        return (outcomes >= quantiles[..., 0]) & (outcomes <= quantiles[..., -1])

    def pinball(self, quantiles: Tensor, outcomes: Tensor) -> Tensor:
        """Return twice the mean pinball loss, which is the absolute error for the level 0.5 alone."""
        level_P = torch.tensor(self.levels, device=quantiles.device)
        above = outcomes[..., None] - quantiles
        return 2 * torch.maximum(level_P * above, (level_P - 1) * above).mean(-1)

    def point(self, forecast: Tensor) -> Tensor:
        return self.quantiles(forecast)[..., self.levels.index(0.5)]

    def constant(self, samples: Sequence[Tensor]) -> Tensor:
        level_P = torch.tensor(self.levels, dtype=torch.float64)
        steps = []
        for each in samples:
            quantiles_P = torch.quantile(each, level_P)
            rises = quantiles_P.diff().clamp_min(1e-6)
            steps.append(torch.cat([quantiles_P[:1], rises + torch.log(-torch.expm1(-rises))]))  # of softplus
        return torch.stack(steps)


@dataclass(frozen=True, slots=True)
class StudentT:
    """Negative log likelihood of a Student-t distribution: location, scale and degrees of freedom."""

    numbers: int = 3

    def losses(self, forecast: Tensor, outcomes: Tensor) -> Tensor:
        location, wide, free = forecast.unbind(-1)
        scale, freedom = F.softplus(wide) + LEAST_SCALE, F.softplus(free) + LEAST_FREEDOM
        return _student_t(outcomes - location, scale, freedom)

    def point(self, forecast: Tensor) -> Tensor:
        return forecast[..., 0]

    def constant(self, samples: Sequence[Tensor]) -> Tensor:
        return torch.stack([_fitted(each) for each in samples])


def _student_t(distance: Tensor, scale: Tensor, freedom: Tensor) -> Tensor:
    half = (freedom + 1) / 2
    normed = (
        torch.lgamma(freedom / 2) - torch.lgamma(half) + 0.5 * torch.log(math.pi * freedom) + torch.log(scale)
    )
    return normed + half * torch.log1p((distance / scale).square() / freedom)


def _fitted(sample: Tensor) -> Tensor:
    """Return the raw numbers of the likeliest distribution: expectation-maximisation for each freedom.

    Lange, Little, Taylor: Robust statistical modeling using the t distribution, 1989.
    """
    best, numbers = math.inf, torch.zeros(3, dtype=torch.float64)
    for freedom in _FREEDOMS:
        location, scale = sample.median(), (sample - sample.median()).abs().median().clamp_min(1e-6)
        for _ in range(_ROUNDS):
            weight = (freedom + 1) / (freedom + ((sample - location) / scale).square())
            location = (weight * sample).sum() / weight.sum()
            scale = (weight * (sample - location).square()).mean().sqrt().clamp_min(2 * LEAST_SCALE)
        free = torch.tensor(freedom, dtype=torch.float64)
        loss = float(_student_t(sample - location, scale, free).mean())
        if loss < best:
            best = loss
            numbers = torch.stack([location, _before(scale - LEAST_SCALE), _before(free - LEAST_FREEDOM)])
    return numbers


def _before(value: Tensor) -> Tensor:
    """Return the inverse of softplus."""
    return value + torch.log(-torch.expm1(-value))


def objective_of(plan: GraphForecast) -> Objective:
    """Return the objective that a plan names."""
    match plan.loss:
        case "huber":
            return Huber()
        case "quantile":
            return Quantile(plan.quantiles)
        case "student_t":
            return StudentT()
