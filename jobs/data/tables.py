"""Reads and validates tables of daily prices: CSV (plain or ``.gz``) and Parquet.

There are two layouts; the function that is called selects one:

- *wide*, ``read_prices(path)``: the first column is the date, every other column the price of an asset;
- *long*, ``read_ohlcv(path)``: columns date, open, high, low, close and volume of one asset, in any
  order and any case; other columns are ignored.

Both return the dates as ISO text, oldest first, and the numbers as one float64 tensor.  Dates must
increase, prices must be positive and finite, and volumes must not be negative.  An error names the file,
the row and the column of the invalid value; the row is the line of a CSV file, or the row number of a
Parquet table.  This module computes no returns, candles or splits: the workloads do.

``find_table(path)`` returns the only table in a directory.  ``read_prices`` can also read a few days of
a table, which is what ``conversion: each_use`` does for every use.
"""
# ruff: noqa: N815 - tensors carry their shape: N days, A assets, F open-high-low-close-volume

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jobs.training.failures import InvalidSpec

SUFFIXES: Final = (".csv", ".csv.gz", ".parquet")

DATE: Final = "date"

OHLCV: Final = ("open", "high", "low", "close", "volume")


@dataclass(frozen=True, slots=True)
class Prices:
    """A wide table: ``values_NA`` holds the positive price of each asset on each day, float64."""

    dates: tuple[str, ...]
    assets: tuple[str, ...]
    values_NA: Tensor


@dataclass(frozen=True, slots=True)
class Ohlcv:
    """A long table of one asset: ``values_NF`` is float64, its columns those of ``OHLCV``."""

    dates: tuple[str, ...]
    values_NF: Tensor


def find_table(path: Path) -> Path:
    """Return the path itself, or the only table in a directory.

    Raises:
        InvalidSpec: the directory holds no table, or more than one.
    """
    if not path.is_dir():
        return path
    found = sorted(one for one in path.iterdir() if one.name.endswith(SUFFIXES))
    if len(found) == 1:
        return found[0]
    if found:
        raise InvalidSpec(
            f"data: {path} holds {len(found)} tables, {found[0].name} and {found[1].name} among them;"
            " name the file that is meant"
        )
    raise InvalidSpec(f"data: no {', '.join(SUFFIXES)} file in {path}; put one price table there")


def read_prices(path: Path, first: int = 0, count: int | None = None) -> Prices:
    """Return a wide table, or ``count`` of its days, beginning with day number ``first``.

    Raises:
        InvalidSpec: the table cannot be read, or its content is invalid.
    """
    table = _read(path, first, count, lambda header: _every_column(path, header))
    _refuse(table, table.values <= 0, "is {value:g}; a price must be positive")
    return Prices(table.dates, table.columns, torch.from_numpy(table.values))


def read_ohlcv(path: Path) -> Ohlcv:
    """Return a long table.

    Raises:
        InvalidSpec: the table cannot be read, or its content is invalid.
    """
    table = _read(path, 0, None, lambda header: _named_columns(path, header))
    values = table.values
    wrong = values <= 0
    wrong[:, -1] = values[:, -1] < 0
    _refuse(table, wrong, "is {value:g}; a price must be positive, and a volume not negative")
    below = np.zeros_like(wrong)
    below[:, 1] = values[:, 1] < values[:, 2]
    _refuse(table, below, "is {value:g}, and low is above it; correct the row")
    return Ohlcv(table.dates, torch.from_numpy(values))


@dataclass(frozen=True, slots=True)
class _Table:
    path: Path
    columns: tuple[str, ...]
    dates: tuple[str, ...]
    values: NDArray[np.float64]
    first: int  # the number of the first row in error messages

    def place(self, row: int) -> str:
        return f"data: {self.path}:{self.first + row}"


_Choose = Callable[[Sequence[str]], tuple[int, tuple[int, ...]]]
"""From a header to the places of the date and of the wanted columns."""


def _read(path: Path, first: int, count: int | None, choose: _Choose) -> _Table:
    if not path.name.endswith(SUFFIXES):
        raise InvalidSpec(f"data: {path}: unknown kind of table; it must end in {', '.join(SUFFIXES)}")
    read = _parquet if path.suffix == ".parquet" else _csv
    try:
        table = read(path, first, count, choose)
    except (OSError, EOFError, zlib.error) as error:
        fact = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise InvalidSpec(f"data: {path}: {fact}; give a readable table, written to its end") from error
    _check_dates(table)
    _refuse(table, ~np.isfinite(table.values), "is {value}, which is not finite; fill it or take the row out")
    return table


def _every_column(path: Path, header: Sequence[str]) -> tuple[int, tuple[int, ...]]:
    names = [name.strip() for name in header]
    if not names or names[0].lower() != DATE:
        found = repr(names[0]) if names else "empty"
        raise InvalidSpec(f"data: {path}:1: the first column is {found}; it must be date")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or "" in names:
        fact = f"column {twice[0]!r} stands there twice" if twice else "a column has no name"
        raise InvalidSpec(f"data: {path}:1: {fact}; every asset needs a name of its own")
    if len(names) == 1:
        raise InvalidSpec(f"data: {path}:1: no column but date; add one for each asset")
    return 0, tuple(range(1, len(names)))


def _named_columns(path: Path, header: Sequence[str]) -> tuple[int, tuple[int, ...]]:
    names = [name.strip().lower() for name in header]
    missing = [name for name in (DATE, *OHLCV) if name not in names]
    if missing:
        raise InvalidSpec(
            f"data: {path}:1: no column {', '.join(missing)} among {', '.join(header) or 'none'};"
            f" a table of candles has {DATE}, {', '.join(OHLCV)}"
        )
    return names.index(DATE), tuple(names.index(name) for name in OHLCV)


def _csv(path: Path, first: int, count: int | None, choose: _Choose) -> _Table:
    try:
        with _opened(path) as stream:
            header = next(csv.reader(islice(stream, 1)), [])
            place, wanted = choose(header)
            stop = None if count is None else first + count
            rows = csv.reader(islice(stream, first, stop), strict=True)
            return _from_text(path, header, (place, wanted), rows, first + 2)
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidSpec(f"data: {path}: {error}; it must be CSV in UTF-8") from error


def _opened(path: Path) -> io.TextIOBase:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _from_text(
    path: Path, header: list[str], chosen: tuple[int, tuple[int, ...]], rows: Iterator[list[str]], first: int
) -> _Table:
    place, wanted = chosen
    names = tuple(header[column].strip() for column in wanted)
    dates, values = [], []
    for line, fields in enumerate(rows, first):
        if len(fields) != len(header):
            fact = f"{len(fields)} fields where the header has {len(header)}"
            raise InvalidSpec(f"data: {path}:{line}: {fact}; the file may be cut off")
        dates.append(fields[place])
        try:
            values.append([float(fields[column]) for column in wanted])
        except ValueError as error:
            raise _no_number(f"data: {path}:{line}", names, [fields[c] for c in wanted]) from error
    array = np.array(values, dtype=np.float64).reshape(len(values), len(wanted))
    return _Table(path, names, tuple(dates), array, first)


def _no_number(where: str, names: Sequence[str], fields: Sequence[str]) -> InvalidSpec:
    for name, text in zip(names, fields, strict=True):
        try:
            float(text)
        except ValueError:
            fact = f"is {text!r}, which is no number" if text.strip() else "is empty"
            return InvalidSpec(f"{where}: {name} {fact}; fill it or take the row out")
    raise AssertionError(where)  # only called for a row that float() rejected


def _parquet(path: Path, first: int, count: int | None, choose: _Choose) -> _Table:
    import pyarrow as pa  # noqa: PLC0415 - a large import that only Parquet files need
    from pyarrow import parquet  # noqa: PLC0415

    try:
        found = parquet.read_table(path)
    except pa.ArrowInvalid as error:
        text = " ".join(str(error).split())
        raise InvalidSpec(f"data: {path}: {text}; write the Parquet file again") from error
    place, wanted = choose(found.column_names)
    part = found.slice(first, count)
    names = tuple(found.column_names[column].strip() for column in wanted)
    for name, column in zip(names, wanted, strict=True):
        kind = found.schema.field(column).type
        if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
            raise InvalidSpec(f"data: {path}: {name} is a column of {kind}; prices must be numbers")
    values = [part.column(column).to_numpy().astype(np.float64) for column in wanted]  # null becomes NaN
    dates = tuple(_iso(value) for value in part.column(place).to_pylist())
    return _Table(path, names, dates, np.stack(values, axis=1), first + 1)


def _iso(value: Any) -> str:  # noqa: ANN401 - any value of a Parquet date column
    """Return the day of a date or a timestamp; the later check reports a value that is neither."""
    return value.strftime("%Y-%m-%d") if isinstance(value, date) else str(value)


def _check_dates(table: _Table) -> None:
    if not table.dates:
        raise InvalidSpec(f"data: {table.path}: no rows; a price table has one for each day")
    for row, text in enumerate(table.dates):
        if not _is_iso(text):
            raise InvalidSpec(f"{table.place(row)}: date is {text!r}; write it as 2024-12-31")
    for row, (before, day) in enumerate(pairwise(table.dates), 1):
        if day <= before:
            raise InvalidSpec(f"{table.place(row)}: {day} follows {before}; sort by date, each day once")


def _is_iso(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _refuse(table: _Table, wrong: NDArray[np.bool_], fact: str) -> None:
    """Raise ``InvalidSpec`` for the first value that is marked as wrong, if there is one."""
    if not wrong.any():
        return
    row, column = np.unravel_index(int(wrong.argmax()), wrong.shape)
    text = fact.format(value=float(table.values[row, column]))
    raise InvalidSpec(f"{table.place(int(row))}: {table.columns[column]} {text}")
