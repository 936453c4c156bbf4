"""Price tables: what is read is what was written, and what is wrong is named."""

import gzip
from collections.abc import Mapping
from datetime import date, datetime
from pathlib import Path

import pytest
import torch

from jobs.data.tables import find_table, read_ohlcv, read_prices
from jobs.training.failures import InvalidSpec

WIDE = """date,AAA,"B, B"
2024-01-02,1.5,10
2024-01-03,1.25,11
2024-01-05,1.75,12.5
"""

LONG = """Date,Open,High,Low,Close,Adj Close,Volume
2024-01-02,1,3,0.5,2,1.9,100
2024-01-03,2,4,1,3,2.9,0
"""


def written(directory: Path, text: str, name: str = "prices.csv") -> Path:
    path = directory / name
    path.write_text(text)
    return path


def parquet(directory: Path, columns: Mapping[str, object], name: str = "prices.parquet") -> Path:
    import pyarrow as pa
    from pyarrow import parquet as format_

    path = directory / name
    format_.write_table(pa.table(columns), path)
    return path


def complaint(path: Path, *, long: bool = False) -> str:
    with pytest.raises(InvalidSpec) as caught:
        (read_ohlcv if long else read_prices)(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_wide_table_has_a_column_for_each_asset(tmp_path: Path) -> None:
    prices = read_prices(written(tmp_path, WIDE))
    assert prices.dates == ("2024-01-02", "2024-01-03", "2024-01-05")
    assert prices.assets == ("AAA", "B, B")
    assert prices.values_NA.equal(torch.tensor([[1.5, 10], [1.25, 11], [1.75, 12.5]], dtype=torch.float64))


def test_a_long_table_is_read_by_the_names_of_its_columns(tmp_path: Path) -> None:
    candles = read_ohlcv(written(tmp_path, LONG))
    assert candles.dates == ("2024-01-02", "2024-01-03")
    expected = [[1, 3, 0.5, 2, 100], [2, 4, 1, 3, 0]]
    assert candles.values_NF.equal(torch.tensor(expected, dtype=torch.float64))


def test_a_packed_file_holds_the_same_table(tmp_path: Path) -> None:
    plain, packed = written(tmp_path, WIDE), tmp_path / "packed.csv.gz"
    packed.write_bytes(gzip.compress(WIDE.encode()))
    assert read_prices(packed).values_NA.equal(read_prices(plain).values_NA)


def test_a_byte_order_mark_is_no_part_of_the_header(tmp_path: Path) -> None:
    plain, packed = written(tmp_path, "\ufeff" + WIDE), tmp_path / "packed.csv.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_prices(packed).assets == read_prices(plain).assets == ("AAA", "B, B")


@pytest.mark.parametrize(
    "dates",
    [
        ["2024-01-02", "2024-01-03", "2024-01-05"],
        [date(2024, 1, 2), date(2024, 1, 3), date(2024, 1, 5)],
        [datetime(2024, 1, 2), datetime(2024, 1, 3, 12), datetime(2024, 1, 5)],  # noqa: DTZ001 - as files have them
    ],
)
def test_parquet_holds_the_same_table_whatever_its_dates_are(tmp_path: Path, dates: list[object]) -> None:
    path = parquet(tmp_path, {"date": dates, "AAA": [1.5, 1.25, 1.75], "B, B": [10.0, 11.0, 12.5]})
    one, other = read_prices(path), read_prices(written(tmp_path, WIDE))
    assert (one.dates, one.assets) == (other.dates, other.assets)
    assert one.values_NA.equal(other.values_NA)


def test_whole_numbers_in_parquet_are_prices_too(tmp_path: Path) -> None:
    path = parquet(tmp_path, {"date": ["2024-01-02"], "AAA": [3]})
    assert read_prices(path).values_NA.tolist() == [[3.0]]


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet"])
def test_a_few_days_are_those_of_the_whole_table(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"prices.{kind}"
    if kind == "parquet":
        parquet(tmp_path, {"date": ["2024-01-02", "2024-01-03", "2024-01-05"], "AAA": [1.5, 1.25, 1.75]})
    elif kind == "csv":
        path.write_text(WIDE)
    else:
        path.write_bytes(gzip.compress(WIDE.encode()))
    whole, part = read_prices(path), read_prices(path, 1, 2)
    assert part.dates == whole.dates[1:]
    assert part.values_NA.equal(whole.values_NA[1:])


def test_a_directory_stands_for_the_one_table_in_it(tmp_path: Path) -> None:
    path = written(tmp_path, WIDE)
    written(tmp_path, "{}", "manifest.json")
    assert find_table(tmp_path) == path
    assert find_table(path) == path


def test_a_directory_without_or_with_several_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"no \.csv, \.csv\.gz, \.parquet file in .*; put one"):
        find_table(tmp_path)
    written(tmp_path, WIDE, "a.csv")
    written(tmp_path, WIDE, "b.csv")
    with pytest.raises(InvalidSpec, match=r"holds 2 tables, a\.csv and b\.csv .*; name the file"):
        find_table(tmp_path)


@pytest.mark.parametrize(
    ("was", "becomes", "message"),
    [
        ("date,", "day,", ":1: the first column is 'day'; it must be date"),
        ('"B, B"', "AAA", ":1: column 'AAA' stands there twice; every asset needs a name of its own"),
        ("AAA", "", ":1: a column has no name; every asset needs a name of its own"),
        ("1.25", "nan", ":3: AAA is nan, which is not finite; fill it or take the row out"),
        ("1.25", "1e999", ":3: AAA is inf, which is not finite; fill it or take the row out"),
        ("1.25", "", ":3: AAA is empty; fill it or take the row out"),
        ("12.5", "n/a", ":4: B, B is 'n/a', which is no number; fill it or take the row out"),
        ("1.25", "0", ":3: AAA is 0; a price must be positive"),
        ("10", "-10", ":2: B, B is -10; a price must be positive"),
        (",12.5", "", ":4: 2 fields where the header has 3; the file may be cut off"),
        ("2024-01-03", "03.01.2024", ":3: date is '03.01.2024'; write it as 2024-12-31"),
        ("2024-01-03", "20240103", ":3: date is '20240103'; write it as 2024-12-31"),
        ("2024-01-05", "2024-01-03", ":4: 2024-01-03 follows 2024-01-03; sort by date, each day once"),
    ],
)
def test_what_is_wrong_in_a_wide_table_is_named(tmp_path: Path, was: str, becomes: str, message: str) -> None:
    path = written(tmp_path, WIDE.replace(was, becomes))
    assert complaint(path) == f"data: {path}{message}"


@pytest.mark.parametrize(
    ("was", "becomes", "message"),
    [
        (
            "Volume",
            "Size",
            (
                ":1: no column volume among Date, Open, High, Low, Close, Adj Close, Size;"
                " a table of candles has date, open, high, low, close, volume"
            ),
        ),
        ("2,4,1,3", "2,4,1,0", ":3: Close is 0; a price must be positive, and a volume not negative"),
        ("1.9,100", "1.9,-1", ":2: Volume is -1; a price must be positive, and a volume not negative"),
        ("2,4,1,3", "2,4,5,3", ":3: High is 4, and low is above it; correct the row"),
    ],
)
def test_what_is_wrong_in_a_long_table_is_named(tmp_path: Path, was: str, becomes: str, message: str) -> None:
    path = written(tmp_path, LONG.replace(was, becomes))
    assert complaint(path, long=True) == f"data: {path}{message}"


def test_a_table_without_rows_or_without_anything_is_refused(tmp_path: Path) -> None:
    assert "no rows" in complaint(written(tmp_path, "date,AAA\n"))
    assert "the first column is empty" in complaint(written(tmp_path, ""))
    assert "no column but date" in complaint(written(tmp_path, "date\n2024-01-02\n"))
    assert "no column date, open" in complaint(written(tmp_path, ""), long=True)


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    assert "unknown kind of table" in complaint(written(tmp_path, WIDE, "prices.xlsx"))
    assert "No such file" in complaint(tmp_path / "nothing.csv")
    path = tmp_path / "binary.csv"
    path.write_bytes(b"date,AAA\n\xff\xfe,1\n")
    assert "it must be CSV in UTF-8" in complaint(path)


def test_a_packed_file_that_is_damaged_is_refused(tmp_path: Path) -> None:
    packed = tmp_path / "prices.csv.gz"
    whole = gzip.compress(WIDE.encode())
    packed.write_bytes(whole[:10] + b"\xff" + whole[11:])
    assert f"data: {packed}: Error -3 while decompressing" in complaint(packed)


def test_a_cut_off_file_is_refused(tmp_path: Path) -> None:
    packed = tmp_path / "prices.csv.gz"
    packed.write_bytes(gzip.compress(WIDE.encode())[:-12])
    assert f"data: {packed}: " in complaint(packed)
    assert "written to its end" in complaint(packed)
    whole = parquet(tmp_path, {"date": ["2024-01-02"], "AAA": [1.0]})
    whole.write_bytes(whole.read_bytes()[:-10])
    assert "write the Parquet file again" in complaint(whole)


def test_a_missing_or_a_wrong_value_in_parquet_is_named_by_its_row(tmp_path: Path) -> None:
    path = parquet(tmp_path, {"date": ["2024-01-02", "2024-01-03"], "AAA": [1.0, None]})
    assert complaint(path) == f"data: {path}:2: AAA is nan, which is not finite; fill it or take the row out"
    path = parquet(tmp_path, {"date": ["2024-01-02"], "AAA": ["1.0"]})
    assert complaint(path) == f"data: {path}: AAA is a column of string; prices must be numbers"
