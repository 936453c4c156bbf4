"""Edges: the same whoever builds them, and those that the rule wants."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from jobs.workloads.graph_forecast.graphs import (
    EdgeRule,
    Graphs,
    LongTable,
    build_days,
    rebuild_day,
    whole_returns,
)

RULE = EdgeRule(neighbours=3, lookback=20, half_life=10.0, shrinkage=0.1, threshold=0.1)


def prices(days: int, assets: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    market = torch.randn(days, 1, generator=generator, dtype=torch.float64)
    noise = torch.randn(days, assets, generator=generator, dtype=torch.float64)
    return (0.01 * (market + noise)).cumsum(0).exp()


def equal(one: Graphs, other: Graphs) -> bool:
    return all(a.equal(b) and a.dtype == b.dtype for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"neighbours": 0},
        {"neighbours": 50},
        {"threshold": 0.5},
        {"shrinkage": 0.0, "half_life": 1000.0},
        {"lookback": 2},
    ],
)
def test_both_builders_give_exactly_the_same_edges(change: dict[str, Any]) -> None:
    rule = dataclasses.replace(RULE, **change)
    returns = whole_returns(prices(60, 8))
    days = range(25, 60)
    together, table = build_days(returns, days, rule), LongTable.of(returns)
    for place, day in enumerate(days):
        one = rebuild_day(table, day, rule)
        assert equal(one, Graphs(*(part[place : place + 1] for part in together))), day


def test_assets_that_never_move_or_move_together_are_no_trouble_to_either_builder() -> None:
    table = prices(40, 6)
    table[:, 1] = 5.0
    table[:, 2] = table[:, 3]  # a tie for everybody
    returns = whole_returns(table)
    rule = dataclasses.replace(RULE, threshold=0.0)
    together = build_days(returns, range(39, 40), rule)
    assert equal(together, rebuild_day(LongTable.of(returns), 39, rule))
    assert together.correlations_DNK.isfinite().all()
    assert together.correlations_DNK[0, 1].eq(0).all()


def test_edges_do_not_depend_on_how_many_days_are_built_together(monkeypatch: pytest.MonkeyPatch) -> None:
    returns = whole_returns(prices(60, 8))
    whole = build_days(returns, range(25, 60), RULE)
    monkeypatch.setattr("jobs.workloads.graph_forecast.graphs.CHUNK_BYTES", 8 * 8 * 20 * 3)
    assert equal(build_days(returns, range(25, 60), RULE), whole)


def test_edges_come_from_the_most_correlated_assets_strongest_first() -> None:
    returns = whole_returns(prices(60, 8))
    rule = EdgeRule(neighbours=7, lookback=40, half_life=1e9, shrinkage=0.0, threshold=0.0)
    neighbours, correlations = build_days(returns, range(59, 60), rule)
    expected = np.atleast_2d(np.corrcoef(returns[20:60].T))
    for node in range(8):
        found = neighbours[0, node].tolist()
        assert sorted(found) == [other for other in range(8) if other != node]
        assert found == sorted(found, key=lambda other: -abs(expected[node, other]))
        assert np.allclose(correlations[0, node].numpy(), expected[node, found], atol=1e-6)


def test_a_weak_correlation_makes_no_edge_and_the_node_lists_itself() -> None:
    returns = whole_returns(prices(60, 8))
    rule = dataclasses.replace(RULE, threshold=0.7)
    neighbours, correlations = build_days(returns, range(59, 60), rule)
    absent = neighbours[0] == torch.arange(8)[:, None]
    assert absent.any()
    assert not absent.all()
    assert correlations[0][absent].eq(0).all()
    assert correlations[0][~absent].abs().ge(0.7).all()


def test_a_day_knows_nothing_of_later_prices() -> None:
    before, after = prices(60, 8), prices(60, 8)
    after[41:] = prices(60, 8, seed=1)[41:]
    one, other = (build_days(whole_returns(each), range(30, 60), RULE) for each in (before, after))
    assert one.neighbours_DNK[:11].equal(other.neighbours_DNK[:11])
    assert one.correlations_DNK[:11].equal(other.correlations_DNK[:11])
    assert not one.correlations_DNK[11:].equal(other.correlations_DNK[11:])


def test_every_sum_is_exact_whatever_its_order() -> None:
    """The largest possible sum of products is still a whole number that float64 can tell from the next."""
    rule = EdgeRule(neighbours=1, lookback=512, half_life=1e9, shrinkage=0.0, threshold=0.0)
    largest = rule.weights().max() * rule.lookback * (2.0**18) ** 2
    assert largest < 2**53
    assert rule.weights().tolist() == [255.0] * 512
