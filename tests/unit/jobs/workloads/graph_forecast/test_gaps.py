"""Graphs of stocks with gaps: without gaps the known edges, with gaps those of the shared days."""
# ruff: noqa: N806 - tensors carry their shape

import numpy as np
import pytest
import torch

from jobs.workloads.graph_forecast.gaps import GappedReturns, build_gapped_days, rebuild_gapped_day
from jobs.workloads.graph_forecast.graphs import RETURN_UNIT, EdgeRule, Graphs, build_days

DAYS, STOCKS = 60, 9
RULES = [EdgeRule(3, 20, 10.0, 0.1, 0.1), EdgeRule(4, 12, 30.0, 0.0, 0.0), EdgeRule(20, 20, 5.0, 0.1, 0.0)]


def returns(gaps: float) -> GappedReturns:
    generator = torch.Generator().manual_seed(1)
    noise_DN = torch.randn(DAYS, STOCKS, generator=generator) + torch.randn(DAYS, 1, generator=generator)
    missing_DN = torch.rand(DAYS, STOCKS, generator=generator) < gaps
    missing_DN[:35, 0] = True
    missing_DN[30:, 1] = True
    if not gaps:
        missing_DN = torch.zeros_like(missing_DN)
    return GappedReturns.of((0.01 * noise_DN).masked_fill(missing_DN, torch.nan))


def equal(one: Graphs, other: Graphs) -> bool:
    return all(a.equal(b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("rule", RULES)
def test_without_gaps_the_edges_are_those_of_the_other_builder(rule: EdgeRule) -> None:
    days, whole = range(25, DAYS), returns(0)
    assert equal(build_gapped_days(whole, days, rule), build_days(whole.returns_DN, days, rule))


@pytest.mark.parametrize("rule", RULES)
def test_a_graph_that_is_rebuilt_has_the_same_bits(rule: EdgeRule) -> None:
    gapped, days = returns(0.2), range(25, DAYS)
    together, table = build_gapped_days(gapped, days, rule), gapped.table()
    for number, day in enumerate(days):
        alone = rebuild_gapped_day(table, day, rule)
        assert equal(alone, Graphs(*(one[number : number + 1] for one in together)))


def test_a_stock_that_is_absent_today_or_shares_too_few_days_has_no_edge() -> None:
    gapped = returns(0.05)
    graphs = build_gapped_days(gapped, range(25, DAYS), EdgeRule(8, 20, 1e9, 0.1, 0.0))
    for number, day in enumerate(range(25, DAYS)):
        neighbours = graphs.neighbours_DNK[number]
        for stock in range(STOCKS):
            heard = {other for other in neighbours[stock].tolist() if other != stock}
            for other in heard:
                seen_DN = gapped.known_DN[day - 19 : day + 1]
                shared = seen_DN[:, stock] & seen_DN[:, other]
                assert shared[-1]
                assert shared.sum() >= 10
    assert (graphs.neighbours_DNK[5, 1:, :] != 0).all()  # stock 0 is listed ten days later


def test_a_correlation_is_that_of_the_days_both_have() -> None:
    gapped = returns(0.2)
    rule = EdgeRule(STOCKS - 1, 40, 1e9, 0.0, 0.0)
    graphs = build_gapped_days(gapped, range(59, 60), rule)
    for stock in range(2, STOCKS):
        for place, other in enumerate(graphs.neighbours_DNK[0, stock].tolist()):
            if other == stock:
                continue
            both = gapped.known_DN[20:60, stock] & gapped.known_DN[20:60, other]
            pair = gapped.returns_DN[20:60][both][:, [stock, other]] * RETURN_UNIT
            expected = np.corrcoef(pair.T)[0, 1]
            assert float(graphs.correlations_DNK[0, stock, place]) == pytest.approx(expected, abs=1e-6)


def test_places_of_no_stock_are_never_known() -> None:
    part = returns(0.2).of_stocks(np.array([3, 5, STOCKS, STOCKS]), STOCKS)
    assert not part.known_DN[:, 2:].any()
    assert part.known_DN[:, 0].any()
    graphs = build_gapped_days(part, range(25, 30), RULES[1])
    assert (graphs.neighbours_DNK[:, 2] == 2).all()
