"""A small panel in Parquet, made by formula: stocks with a signal, a listing, a delisting and gaps."""
# ruff: noqa: N806 - tensors carry their shape

from collections.abc import Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np

STOCKS: Final = 12

Rows = dict[str, list[Any]]


def panel_rows(days: int = 160, horizons: tuple[int, ...] = (1, 5), stocks: int = STOCKS) -> Rows:
    """Return the columns of a panel, rows by day; stock 0 comes late, stock 1 goes, stock 2 has gaps."""
    noise = np.random.default_rng(0)
    signal_DN = noise.standard_normal((days, stocks)).cumsum(0)
    signal_DN = (signal_DN - signal_DN.mean(1, keepdims=True)) / signal_DN.std(1, keepdims=True)
    returns_DN = 0.01 * noise.standard_normal((days, stocks))
    returns_DN[1:] += 0.01 * signal_DN[:-1]
    returns_DN += 0.01 * noise.standard_normal((days, 1))
    names = ["date", "code", "returns_1d", "feat_signal", "feat_noise", "sector"]
    rows: Rows = {name: [] for name in (*names, *(f"target_{days}d" for days in horizons))}
    for day in range(days):
        for stock in range(stocks):
            if is_listed(day, stock, days):
                _add(rows, day, stock, (signal_DN, returns_DN, noise), horizons)
    return rows


def is_listed(day: int, stock: int, days: int) -> bool:
    """Return True if a stock has a row on a day."""
    return (
        (stock != 0 or day >= days // 3) and (stock != 1 or day < days // 2) and (stock != 2 or day % 7 != 3)
    )


def _add(rows: Rows, day: int, stock: int, numbers: tuple[Any, Any, Any], horizons: tuple[int, ...]) -> None:
    signal_DN, returns_DN, noise = numbers
    rows["date"].append(workday(day))
    rows["code"].append(f"{1000 + stock}")
    rows["returns_1d"].append(float(returns_DN[day, stock]))
    rows["feat_signal"].append(float(signal_DN[day, stock]) if (day + stock) % 11 else None)
    rows["feat_noise"].append(float(noise.standard_normal()))
    rows["sector"].append("banks" if stock % 2 else "mines")
    for horizon in horizons:
        later = returns_DN[day + 1 : day + 1 + horizon, stock]
        gone = day + horizon >= len(returns_DN) or not is_listed(day + horizon, stock, len(returns_DN))
        rows[f"target_{horizon}d"].append(None if gone else float(later.sum()))


def workday(number: int) -> date:
    """Return a day of the week from Monday to Friday."""
    return date(2020, 1, 6) + timedelta(days=number // 5 * 7 + number % 5)


def write_panel(path: Path, rows: Mapping[str, Any], row_group_size: int = 500) -> Path:
    """Write columns as a Parquet file, and return its path."""
    import pyarrow as pa
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(dict(rows)), path, row_group_size=row_group_size)
    return path


def panel_directory(directory: Path) -> None:
    """Write a panel in two files, split by date, into a directory."""
    rows = panel_rows()
    half = len(rows["date"]) // 2
    for name, part in (("2020-a", slice(0, half)), ("2020-b", slice(half, None))):
        write_panel(directory / f"{name}.parquet", {column: values[part] for column, values in rows.items()})
