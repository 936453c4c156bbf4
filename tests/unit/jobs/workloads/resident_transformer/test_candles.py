"""An annotation knows what was known at its close, and nothing later."""

import json
import math
from datetime import date, timedelta

import pytest
import torch

from jobs.contract.plans.resident_transformer import ResidentTransformer
from jobs.data.tables import Ohlcv
from jobs.training.failures import InvalidSpec
from jobs.workloads.resident_transformer.candles import ACTIONS, annotate, convert, resample

PLAN = ResidentTransformer(
    data="x", days=8, weeks=4, months=2, pool=2, every=3, horizon=3, batch_size=4, eval_batches=2
)


def weekdays(count: int) -> tuple[str, ...]:
    days = (date(2001, 1, 1) + timedelta(days=n) for n in range(2 * count))
    return tuple(str(day) for day in days if day.weekday() < 5)[:count]


def table(count: int, seed: int = 1) -> Ohlcv:
    moves = torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) / 100
    close = 100 * moves.cumsum(0).exp()
    open_ = torch.cat([close[:1], close[:-1]])
    high, low = torch.maximum(open_, close) * 1.01, torch.minimum(open_, close) * 0.99
    volume = 1e6 * (1 + moves.abs())
    return Ohlcv(weekdays(count), torch.stack([open_, high, low, close, volume], dim=1))


def cut(whole: Ohlcv, days: int) -> Ohlcv:
    return Ohlcv(whole.dates[:days], whole.values_NF[:days])


# --- Timeframes


def test_a_week_is_made_of_its_days_so_far() -> None:
    days = table(8)  # a whole week, then Monday to Wednesday
    values = days.values_NF
    weeks = resample(days, "1w")
    assert weeks.last_day_G == [4, 7]
    open_, high, low, close, volume = weeks.running_NF[6]
    assert (open_, close) == (float(values[5, 0]), float(values[6, 3]))
    assert high == float(values[5:7, 1].max())
    assert low == float(values[5:7, 2].min())
    assert volume == pytest.approx(float(values[5:7, 4].sum()))


def test_a_window_is_the_finished_candles_and_the_one_of_today() -> None:
    days = table(60)
    assert resample(days, "1d").window(10, 3) == [8, 9, 10]
    assert resample(days, "1w").window(11, 3) == [4, 9, 11]
    assert [days.dates[day] for day in resample(days, "1m").window(59, 3)] == [
        "2001-01-31",
        "2001-02-28",
        "2001-03-23",
    ]


def test_weeks_do_not_end_with_the_year() -> None:
    days = Ohlcv(("2002-12-30", "2002-12-31", "2003-01-02", "2003-01-06"), table(4).values_NF)
    assert resample(days, "1w").last_day_G == [2, 3]
    assert resample(days, "1m").last_day_G == [1, 3]


# --- No look-ahead


def market_states(records: tuple[str, ...]) -> dict[str, object]:
    read = [json.loads(record) for record in records]
    return {record["timestamp"]: record["market_state"] for record in read}


def test_the_future_changes_nothing_that_is_shown() -> None:
    whole = table(300)
    spoilt = whole.values_NF.clone()
    spoilt[200:] *= 7
    shown = market_states(annotate([("a", whole)], PLAN).train)
    shown_too = market_states(annotate([("a", Ohlcv(whole.dates, spoilt))], PLAN).train)
    before = [day for day in shown if day < whole.dates[200]]
    assert len(before) > 20
    assert all(shown[day] == shown_too[day] for day in before)
    assert any(shown[day] != shown_too[day] for day in shown if day >= whole.dates[200])


def test_no_candle_is_later_than_its_annotation() -> None:
    for day, state in market_states(annotate([("a", table(300))], PLAN).train).items():
        assert isinstance(state, dict)
        assert [len(state[f"ohlcv_{name}"]) for name in ("1d", "1w", "1m")] == [8, 4, 2]
        assert all(candles[-1][0] == day for candles in state.values())
        assert all(candle[0] <= day for candles in state.values() for candle in candles)


def test_held_out_days_come_after_every_outcome_that_was_learnt_from() -> None:
    short, long = cut(table(280, seed=2), 280), table(300)
    annotations = annotate([("a", long), ("b", short)], PLAN)
    dates = list(long.dates)
    train = [json.loads(record)["timestamp"] for record in annotations.train]
    later = [json.loads(record)["timestamp"] for record in annotations.held_out]
    assert all(dates[dates.index(day) + PLAN.horizon] < annotations.split_date for day in train)
    assert min(later) >= annotations.split_date
    assert len(later) == 8
    assert {json.loads(record)["symbol"] for record in annotations.train} == {"a", "b"}


def test_all_held_out_days_are_taken_where_fewer_are_left_than_wanted() -> None:
    few = annotate([("a", table(120))], PLAN.model_copy(update={"eval_batches": 8}))
    assert 8 <= len(few.held_out) < 8 * PLAN.batch_size
    assert len(set(few.held_out)) == len(few.held_out)


def test_too_little_history_is_told_with_what_there_is() -> None:
    with pytest.raises(
        InvalidSpec, match=r"1 table\(s\) of at most 20 days allow 0 .* 8 days, 4 weeks and 2 m"
    ):
        annotate([("a", table(20))], PLAN)
    with pytest.raises(InvalidSpec, match=r"a batch takes 4000, an evaluation at least 2"):
        annotate([("a", table(300))], PLAN.model_copy(update={"batch_size": 4000}))


# --- Tensors


def test_a_record_becomes_returns_volumes_and_outcomes() -> None:
    days = table(300)
    record = annotate([("a", days)], PLAN).train[5]
    batch = convert([record])
    day = days.dates.index(json.loads(record)["timestamp"])
    values = days.values_NF
    assert {name: tuple(tensor.shape) for name, tensor in batch.items()} == {
        "1d": (1, 8, 5),
        "1w": (1, 4, 5),
        "1m": (1, 2, 5),
        "candle": (1, 5),
        "action": (1,),
    }
    last = math.log(float(values[day, 3] / values[day - 1, 3])) / 0.01
    assert float(batch["1d"][0, -1, 3]) == pytest.approx(last, rel=1e-5)
    following = math.log(float(values[day + 1, 1] / values[day, 3])) / 0.01
    assert float(batch["candle"][0, 1]) == pytest.approx(following, rel=1e-5)
    moved = math.log(float(values[day + 3, 3] / values[day, 3]))
    expected = "buy" if moved > 0.01 else "sell" if moved < -0.01 else "hold"
    assert ACTIONS[int(batch["action"])] == expected


def test_a_volume_that_was_not_recorded_stays_finite() -> None:
    days = table(300)
    days.values_NF[::7, 4] = 0
    batch = convert(annotate([("a", days)], PLAN).train)
    assert all(tensor.isfinite().all() for tensor in batch.values())
    silent = Ohlcv(days.dates, days.values_NF * torch.tensor([1.0, 1, 1, 1, 0]))
    assert convert(annotate([("a", silent)], PLAN).train)["1d"].isfinite().all()


def test_records_are_json_of_the_documented_form() -> None:
    record = json.loads(annotate([("a", table(300))], PLAN).held_out[0])
    assert set(record) == {"symbol", "timestamp", "expected_outcome", "market_state"}
    assert set(record["expected_outcome"]) == {"action", "movement", "next_candle"}
    assert len(record["market_state"]["ohlcv_1d"][0]) == 6
