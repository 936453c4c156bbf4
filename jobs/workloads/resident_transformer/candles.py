"""Makes annotations: the state of a market at the close of one day, and the outcome after it.

An annotation is a JSON record in the format of a charting program's export.  The switch ``conversion``
decides whether records are converted to tensors once or at each use.

``market_state`` contains nothing later than the annotated day: its last weekly and monthly candles
are the unfinished ones at that close.  ``expected_outcome`` is the target, which lies after that day.

Shape legend: N days, G periods (weeks, months), W candles of a window, F open-high-low-close-volume, R rows.
"""
# ruff: noqa: N803, N806, N815 - tensors carry their shape

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final

import torch
from torch import Tensor

from jobs.contract.plans.resident_transformer import ResidentTransformer
from jobs.data.tables import Ohlcv
from jobs.training.batches import Batch
from jobs.training.failures import InvalidSpec

TIMEFRAMES: Final = ("1d", "1w", "1m")

ACTIONS: Final = ("hold", "buy", "sell")

PERCENT: Final = 0.01

_USUAL_MOVE: Final = {"1d": 0.01, "1w": 0.022, "1m": 0.046}
"""Log return that counts as 1: about one standard deviation of an index, the root of the days in a candle."""

_LEAST_VOLUME: Final = 0.1
"""Share of the window's mean; a volume that was not recorded (0) counts as this much."""

HELD_OUT: Final = 0.2
"""Share of the days, at their end, that is only evaluated on."""


@dataclass(frozen=True, slots=True)
class Series:
    """One timeframe of one symbol, as it stood at the close of every day.

    ``running_NF[n]`` is the candle that contains day n, computed from its days up to n only;
    ``last_day_G`` holds the last day of each candle.
    """

    running_NF: list[list[float]]
    period_N: list[int]
    last_day_G: list[int]

    def window(self, day: int, candles: int) -> list[int]:
        """Return the days of the newest running candles at the close of a day, oldest first."""
        period = self.period_N[day]
        return [*self.last_day_G[period - candles + 1 : period], day]


def resample(table: Ohlcv, timeframe: str) -> Series:
    """Return the candles of a timeframe: ``1d``, ``1w`` (ISO weeks) or ``1m`` (calendar months)."""
    running: list[list[float]] = []
    period_N: list[int] = []
    last_day_G: list[int] = []
    before: object = None
    for day, (text, candle) in enumerate(zip(table.dates, table.values_NF.tolist(), strict=True)):
        period = _period(date.fromisoformat(text), timeframe)
        if period == before:
            running.append(_joined(running[-1], candle))
            last_day_G[-1] = day
        else:
            running.append(candle)
            last_day_G.append(day)
        period_N.append(len(last_day_G) - 1)
        before = period
    return Series(running, period_N, last_day_G)


def _period(day: date, timeframe: str) -> object:
    match timeframe:
        case "1w":
            return day.isocalendar()[:2]
        case "1m":
            return (day.year, day.month)
        case _:
            return day


def _joined(so_far: list[float], candle: list[float]) -> list[float]:
    _, high, low, close, volume = candle
    return [so_far[0], max(so_far[1], high), min(so_far[2], low), close, so_far[4] + volume]


@dataclass(frozen=True, slots=True)
class AnnotationTexts:
    """Training records and later held-out records, as JSON text."""

    train: tuple[str, ...]
    held_out: tuple[str, ...]
    split_date: str


def annotate(tables: Sequence[tuple[str, Ohlcv]], plan: ResidentTransformer) -> AnnotationTexts:
    """Return annotations of all symbols; the outcome of every training one is known before the split date.

    Training days are ``every`` days apart.  Held-out days are spread evenly; there are at most as many as
    an evaluation uses.

    Raises:
        InvalidSpec: there are too few annotations for a training batch, or for the evaluation batches.
    """
    markets = [_Market(symbol, table, plan) for symbol, table in tables]
    days = sorted((one.dates[day], number, day) for number, one in enumerate(markets) for day in one.days)
    split = days[int(len(days) * (1 - HELD_OUT))][0] if days else ""
    train = [
        one.record(day)
        for one in markets
        for day in one.days[:: plan.every]
        if one.dates[day + plan.horizon] < split
    ]
    later = _evenly([day for day in days if day[0] >= split], plan.eval_batches * plan.batch_size)
    if len(train) < plan.batch_size or len(later) < plan.eval_batches:
        raise InvalidSpec(_too_short(tables, plan, len(train), len(later)))
    return AnnotationTexts(
        tuple(train), tuple(markets[number].record(day) for _, number, day in later), split
    )


def _evenly(days: list[tuple[str, int, int]], wanted: int) -> list[tuple[str, int, int]]:
    if len(days) <= wanted:
        return days
    return [days[index * len(days) // wanted] for index in range(wanted)]


def _too_short(tables: Sequence[tuple[str, Ohlcv]], plan: ResidentTransformer, train: int, later: int) -> str:
    longest = max(len(table.dates) for _, table in tables)
    return (
        f"data: {len(tables)} table(s) of at most {longest} days allow {train} annotations of"
        f" {plan.days} days, {plan.weeks} weeks and {plan.months} months to learn from, and {later} later"
        f" ones; a batch takes {plan.batch_size}, an evaluation at least {plan.eval_batches};"
        " give more days or ask for fewer candles"
    )


class _Market:
    """One symbol, which can be annotated at any of ``days``."""

    def __init__(self, symbol: str, table: Ohlcv, plan: ResidentTransformer) -> None:
        self.symbol = symbol
        self.dates = table.dates
        self._plan = plan
        self._candles = dict(zip(TIMEFRAMES, (plan.days, plan.weeks, plan.months), strict=True))
        self._series = {timeframe: resample(table, timeframe) for timeframe in TIMEFRAMES}
        self._texts = {name: self._rows(series) for name, series in self._series.items()}
        enough = max(_first_day(self._series[name], wanted) for name, wanted in self._candles.items())
        self.days = range(enough, len(self.dates) - plan.horizon)

    def _rows(self, series: Series) -> list[str]:
        return [json.dumps([day, *row]) for day, row in zip(self.dates, series.running_NF, strict=True)]

    def record(self, day: int) -> str:
        """Return one annotation as JSON."""
        windows = (f'"ohlcv_{name}": {self._window(name, day)}' for name in TIMEFRAMES)
        head = {"symbol": self.symbol, "timestamp": self.dates[day], "expected_outcome": self._outcome(day)}
        return f'{json.dumps(head)[:-1]}, "market_state": {{{", ".join(windows)}}}}}'

    def _window(self, name: str, day: int) -> str:
        rows = self._series[name].window(day, self._candles[name])
        return f"[{', '.join(self._texts[name][row] for row in rows)}]"

    def _outcome(self, day: int) -> dict[str, object]:
        rows, plan = self._series["1d"].running_NF, self._plan
        movement = math.log(rows[day + plan.horizon][3] / rows[day][3])
        action = "buy" if movement > plan.threshold else "sell" if movement < -plan.threshold else "hold"
        return {"action": action, "movement": movement, "next_candle": rows[day + 1]}


def _first_day(series: Series, candles: int) -> int:
    """Return the first day at whose close ``candles`` candles exist."""
    if len(series.last_day_G) < candles:
        return len(series.period_N)
    return series.period_N.index(candles - 1)


def convert(records: Sequence[str]) -> Batch:
    """Return annotations as tensors.

    ``1d``, ``1w`` and ``1m`` are float32 (R, W, F): prices as log returns from the previous close, divided
    by ``usual_move``; volume as the logarithm of its ratio to the window's mean.  ``candle`` is float32
    (R, F): the next day's candle, with prices in percent of the last close.  ``action`` is int64 (R).
    """
    rows = [_row(json.loads(record)) for record in records]
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def _row(record: dict[str, dict[str, list[list[float]]]]) -> Batch:
    state, outcome = record["market_state"], record["expected_outcome"]
    windows = {name: _values(state[f"ohlcv_{name}"]) for name in TIMEFRAMES}
    daily_WF = windows["1d"]
    next_F = torch.tensor(outcome["next_candle"], dtype=torch.float64)
    prices = torch.log(next_F[:4] / daily_WF[-1, 3]) / PERCENT
    features = {name: features_of(values_WF, _USUAL_MOVE[name]) for name, values_WF in windows.items()}
    return features | {
        "candle": torch.cat([prices, _volumes(next_F[4:], daily_WF[:, 4])]).float(),
        "action": torch.tensor(ACTIONS.index(str(outcome["action"]))),
    }


def _values(candles: Sequence[Sequence[float]]) -> Tensor:
    return torch.tensor([candle[1:] for candle in candles], dtype=torch.float64)


def features_of(values_WF: Tensor, usual_move: float) -> Tensor:
    """Return prices as log returns from the close before, in usual moves, and relative volumes, float32."""
    before_W1 = torch.cat(
        [values_WF[:1, :1], values_WF[:-1, 3:4]]
    )  # the first candle is relative to its own open
    prices = torch.log(values_WF[:, :4] / before_W1) / usual_move
    return torch.cat([prices, _volumes(values_WF[:, 4:], values_WF[:, 4])], dim=1).float()


def _volumes(volume: Tensor, window_W: Tensor) -> Tensor:
    mean = window_W.mean().clamp_min(1e-9)
    return torch.log((volume / mean).clamp_min(_LEAST_VOLUME))
