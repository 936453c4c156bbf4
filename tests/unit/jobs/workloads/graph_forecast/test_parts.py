"""Losses, ranking metrics and parts of the model, each against what a library or a formula says."""
# ruff: noqa: N806 - tensors carry their shape

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import StudentT as Distribution
from torch.nn.functional import softplus

from jobs.contract.plans.graph_forecast import GraphForecast
from jobs.workloads.graph_forecast.objectives import (
    LEAST_FREEDOM,
    LEAST_SCALE,
    Objective,
    Quantile,
    StudentT,
    objective_of,
)
from jobs.workloads.graph_forecast.ranking import correlations, portfolio_returns, ranking_sums, ranks, sharpe
from jobs.workloads.graph_forecast.selection import FrequencyNormalisation, VariableSelection


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


# --- Losses


def test_the_student_t_loss_is_the_negative_log_likelihood() -> None:
    numbers, outcomes = drawn(5, 4, 3), drawn(5, 4)
    location, wide, free = numbers.unbind(-1)
    known = Distribution(softplus(free) + LEAST_FREEDOM, location, softplus(wide) + LEAST_SCALE)
    assert StudentT().losses(numbers, outcomes).allclose(-known.log_prob(outcomes))


def test_quantiles_rise_and_the_median_alone_costs_the_absolute_error() -> None:
    numbers, outcomes = drawn(50, 5), drawn(50)
    objective = Quantile((0.1, 0.25, 0.5, 0.75, 0.9))
    assert (objective.quantiles(numbers).diff(dim=-1) > 0).all()
    median = Quantile((0.5,))
    assert median.losses(numbers[:, :1], outcomes).allclose((outcomes - numbers[:, 0]).abs())
    inside = objective.inside(numbers, objective.point(numbers))
    assert inside.all()


@pytest.mark.parametrize("loss", ["huber", "quantile", "student_t"])
def test_no_other_constant_costs_less_than_the_usual_one(loss: str) -> None:
    objective: Objective = objective_of(
        GraphForecast.model_validate({"data": "synthetic-stocks", "loss": loss})
    )
    heavy = drawn(4000).pow(3) / 4 + 0.3
    constant_1P = objective.constant([heavy])
    assert constant_1P.shape == (1, objective.numbers)
    best = float(objective.losses(constant_1P.expand(len(heavy), -1), heavy).mean())
    for number in range(objective.numbers):
        for shift in (-0.3, 0.3):
            other = constant_1P.clone()
            other[0, number] += shift
            changed = float(objective.losses(other.expand(len(heavy), -1), heavy).mean())
            assert changed > best - 2e-2 * abs(best)


def test_the_usual_quantiles_are_those_of_the_sample() -> None:
    objective, sample = Quantile((0.1, 0.5, 0.9)), drawn(1000)
    found = objective.quantiles(objective.constant([sample]))[0]
    assert found.allclose(torch.quantile(sample, torch.tensor((0.1, 0.5, 0.9), dtype=torch.float64)))


# --- Rankings


def test_rank_correlation_is_that_of_the_known_nodes_with_ties() -> None:
    forecast, outcome = drawn(2, 30, 1).round(decimals=1), drawn(2, 30, 1).flip(1).round(decimals=1)
    known = torch.ones(2, 30, 1, dtype=torch.bool)
    known[0, 20:] = False
    found = correlations(ranks(forecast, known), ranks(outcome, known), known)
    for graph, count in ((0, 20), (1, 30)):
        pair = [each[graph, :count, 0].numpy() for each in (forecast, outcome)]
        middle = [np.array([((one < x).sum() + (one <= x).sum()) / 2 for x in one]) for one in pair]
        assert float(found[graph, 0]) == pytest.approx(np.corrcoef(middle[0], middle[1])[0, 1])


def test_a_constant_forecast_ranks_nobody() -> None:
    known = torch.ones(3, 8, 2, dtype=torch.bool)
    found = ranking_sums(torch.ones(3, 8, 2), drawn(3, 8, 2), known)
    assert found["rank_ic"].abs().max() < 1e-9
    assert found["earned"].abs().max() < 1e-9


def test_a_portfolio_is_long_and_short_by_rank_and_its_sharpe_ratio_is_that_of_its_earnings() -> None:
    known = torch.ones(1, 3, 1, dtype=torch.bool)
    forecast, outcome = torch.tensor([[[3.0], [1.0], [2.0]]]), torch.tensor([[[0.04], [-0.02], [9.0]]])
    assert float(portfolio_returns(forecast, outcome, known)) == pytest.approx(0.03)
    earned = drawn(40)
    found = sharpe(float(earned.sum()), float(earned.square().sum()), 40, 5)
    assert found == pytest.approx(float(earned.mean() / earned.std()) * (252 / 5) ** 0.5)
    assert sharpe(1.0, 1.0, 1, 1) == 0


def test_hits_are_counted_where_something_moved() -> None:
    forecast, outcome = (
        torch.tensor([[[1.0], [-1.0], [1.0], [2.0]]]),
        torch.tensor([[[0.5], [-2.0], [0.0], [-1.0]]]),
    )
    known = torch.tensor([[[True], [True], [True], [True]]])
    found = ranking_sums(forecast, outcome, known)
    assert (int(found["hit"]), int(found["moved"]), int(found["rose"])) == (2, 3, 1)


# --- Parts of the model


def test_the_strongest_frequencies_are_taken_out_and_nothing_is_lost() -> None:
    time_T = torch.arange(24)
    wave_T = 3 * torch.sin(2 * torch.pi * 2 * time_T / 24 + 0.4)
    noise_T = 0.1 * drawn(24).float()
    windows_MTF = (wave_T + noise_T)[None, :, None]
    left, taken = FrequencyNormalisation(24, 1)(windows_MTF)
    assert (left + taken).allclose(windows_MTF, atol=1e-6)
    assert taken[0, :, 0].allclose(wave_T, atol=0.15)
    assert left.abs().max() < 0.5
    transformed = torch.fft.rfft(left[0, :, 0])
    assert transformed[2].abs() < 1e-4


@pytest.mark.parametrize("window", [7, 8])
def test_all_frequencies_are_the_window(window: int) -> None:
    windows_MTF = drawn(3, window, 2).float()
    left, taken = FrequencyNormalisation(window, window // 2 + 1)(windows_MTF)
    assert taken.allclose(windows_MTF, atol=1e-5)
    assert left.abs().max() < 1e-5


def test_the_weights_of_the_features_add_up_to_one_and_each_network_sees_its_own_feature() -> None:
    torch.manual_seed(0)
    part = VariableSelection(4, 8, 0.0)
    windows_MTF = drawn(3, 5, 4).float()
    assert part(windows_MTF).shape == (3, 5, 8)
    assert part.weights(windows_MTF).sum(-1).allclose(torch.ones(3, 5))
    louder = windows_MTF.clone()
    louder[..., 2] += 1
    changed = (part.networks(louder) - part.networks(windows_MTF)).abs().amax((1, 2)) > 0
    assert changed.tolist() == [False, False, True, False]
