"""Days: nothing later than the day is seen, nothing earlier than the next is to be forecast."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from jobs.contract.plans.graph_forecast import GraphForecast
from jobs.data.tables import Prices
from jobs.training.failures import InvalidSpec
from jobs.workloads.graph_forecast.days import (
    CALM,
    FeatureScaler,
    excerpt,
    feature_count,
    features_of,
    history,
    known,
    outcomes_of,
    split_days,
    synthetic_prices,
)

PLAN = GraphForecast(
    data="somewhere", window=5, scales=(3, 30), horizons=(1, 4), lookback=10, batch_size=2, eval_batches=3
)


def prices(rows: int = 120, assets: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    steps = 0.02 * torch.randn(rows, assets, generator=generator, dtype=torch.float64)
    return 50 * steps.cumsum(0).exp()


def table_of(values: Tensor, path: Path) -> Path:
    rows = ["date,A,B,C,D"]
    for day, row in enumerate(values.tolist()):
        rows.append(f"{2000 + day // 28}-01-{day % 28 + 1:02d}," + ",".join(map(repr, row)))
    path.write_text("\n".join(rows) + "\n")
    return path


def test_features_are_what_their_names_say() -> None:
    values = prices()
    features = features_of(values, PLAN.scales)
    past, row = history(PLAN.scales), 77
    assert features.shape == (120 - past, 4, feature_count(PLAN.scales))
    returns = values.log().diff(dim=0)
    latest = returns[row - 1]
    three = returns[row - 3 : row]
    expected = [
        latest,
        latest.abs(),
        three.sum(0) / 3**0.5,
        torch.log(CALM + three.square().mean(0).sqrt()),
    ]
    assert features[row - past, :, :4].allclose(torch.stack(expected, dim=-1))


def test_outcomes_are_what_their_names_say() -> None:
    values, past, row = prices(), history(PLAN.scales), 77
    outcomes = outcomes_of(values, PLAN.horizons, past)
    assert outcomes.shape == (120 - past - 4, 4, 2, 2)
    returns = values.log().diff(dim=0)
    recent = CALM + returns[row - 20 : row].square().mean(0).sqrt()
    ahead = returns[row : row + 4]
    volatility = torch.log((CALM + ahead.square().mean(0).sqrt()) / recent)
    gain = ahead.sum(0) / (2 * recent)
    assert outcomes[row - past, :, 0, 1].allclose(volatility)
    assert outcomes[row - past, :, 1, 1].allclose(gain)


def test_features_do_not_change_with_what_comes_later_and_outcomes_do() -> None:
    before, after, past = prices(), prices(), history(PLAN.scales)
    after[80:] *= 1.1
    one, other = (features_of(each, PLAN.scales) for each in (before, after))
    assert one[: 80 - past].equal(other[: 80 - past])
    assert not one[80 - past].equal(other[80 - past])
    one, other = (outcomes_of(each, PLAN.horizons, past) for each in (before, after))
    assert one[: 76 - past].equal(other[: 76 - past])
    assert not one[79 - past, :, 0, 0].equal(other[79 - past, :, 0, 0])


def test_no_training_outcome_lies_in_the_held_out_days() -> None:
    split = split_days(400, PLAN)
    assert split.train.stop - 1 + max(PLAN.horizons) < split.held_out.start
    assert split.held_out.stop + max(PLAN.horizons) == 400
    assert len(split.held_out) == pytest.approx(0.2 * (split.held_out.stop - split.train.start), abs=1)
    assert split.train.start == history(PLAN.scales) + PLAN.window - 1


def test_a_long_lookback_puts_the_first_day_off() -> None:
    assert split_days(400, PLAN.model_copy(update={"lookback": 100})).train.start == 100


def test_too_few_days_are_refused_with_what_to_lower() -> None:
    with pytest.raises(InvalidSpec, match=r"50 days leave .* to train on .*lower eval_batches or batch_size"):
        split_days(50, PLAN)


def test_one_day_out_of_the_file_is_that_day_of_the_whole_table_to_the_bit(tmp_path: Path) -> None:
    values = prices()
    table = table_of(values, tmp_path / "prices.csv")
    scale = FeatureScaler.of(features_of(values, PLAN.scales))
    whole = known(Prices((), (), values), PLAN, scale)
    split = split_days(len(values), PLAN)
    for day in (split.train.start, split.train.stop - 1, split.held_out.stop - 1):
        alone, of_all = excerpt(table, day, PLAN, scale), whole.windows(torch.tensor([day]), PLAN.window)
        assert alone["features"].shape == (1, 4, 5, feature_count(PLAN.scales))
        assert alone["features"].equal(of_all["features"])
        assert alone["outcomes"].equal(of_all["outcomes"])


def test_features_are_measured_in_their_own_spread() -> None:
    features = features_of(prices(), PLAN.scales)
    scaled = FeatureScaler.of(features).apply(features)
    assert scaled.dtype == torch.float32
    assert scaled.mean((0, 1)).abs().max() < 1e-5
    assert scaled.std((0, 1)).allclose(torch.ones(scaled.shape[-1]), atol=1e-2)


def test_made_up_prices_depend_on_the_seed_alone_and_have_spells() -> None:
    plan = PLAN.model_copy(update={"synthetic_days": 500, "synthetic_assets": 6})
    one, other = synthetic_prices(plan, 1), synthetic_prices(plan, 1)
    assert one.values_NA.equal(other.values_NA)
    assert not one.values_NA.equal(synthetic_prices(plan, 2).values_NA)
    assert len(one.dates) == len(set(one.dates)) == 500
    assert list(one.dates) == sorted(one.dates)
    size = one.values_NA.log().diff(dim=0).abs().mean(1)
    today, tomorrow = size[:-1] - size.mean(), size[1:] - size.mean()
    assert float((today * tomorrow).mean() / size.var()) > 0.2
    assert math.isfinite(float(one.values_NA.sum()))
