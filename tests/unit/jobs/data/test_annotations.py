"""Annotations: what a file says is read, what it lacks is missing, what is wrong is named at its place."""

import gzip
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from jobs.contract.plans.base import Clean
from jobs.data.annotations import Annotation, Sizes, read_annotations, read_candles
from jobs.training.failures import InvalidSpec
from tests.fakes.workloads.annotations import (
    annotation,
    annotation_directory,
    minute_candles,
    write,
)

SIZES = Sizes(("1s", "1m", "1h", "1d"), 8, 6, 3, 2, 3)

Change = Callable[[dict[str, Any]], Any]


def read(
    directory: Path,
    change: Change = lambda _: None,
    number: int = 2,
    **sizes: Any,
) -> dict[str, Any]:
    content = annotation(number)
    change(content)
    write(directory, number, content)
    [found] = read_annotations(directory, replace(SIZES, **sizes))
    record: dict[str, Any] = json.loads(found.record)
    return record


def complaint(directory: Path, change: Change = lambda _: None, **sizes: Any) -> str:
    with pytest.raises(InvalidSpec) as caught:
        read(directory, change, **sizes)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(f"{directory}/", "")


def test_annotations_are_read_in_the_order_of_their_times(tmp_path: Path) -> None:
    for number in (5, 1, 3):
        write(tmp_path / "anywhere", 9 - number, annotation(number))
    found = read_annotations(tmp_path, SIZES)
    assert [one.path.name[11:13] for one in found] == ["08", "06", "04"]
    assert found[0].known == found[0].at + 1800


def test_a_record_holds_what_the_file_says(tmp_path: Path) -> None:
    record = read(tmp_path)
    assert (record["action"], record["direction"]) == ("buy", 2)
    assert record["price"] == pytest.approx(1.0)
    assert record["angle"] == pytest.approx(math.atan(2.0) / (math.pi / 2))
    assert record["steepness"] == pytest.approx(math.log1p(2.0))
    assert record["technical"] == [0, 0.5, 70.0]  # is_open, macd, rsi
    assert list(record["frames"]) == ["1s", "1h", "1d"]
    assert [len(rows) for rows in record["frames"].values()] == [8, 8, 8]
    assert record["frames"]["1h"][-1] == annotation(2)["market_state"]["ohlcv_1h"][-1][1:]
    assert len(record["order_book"]) == 5
    assert record["pivots"] == [None, None, None]


def test_columns_and_rows_are_two_forms_of_the_same_candles(tmp_path: Path) -> None:
    def columns(content: dict[str, Any]) -> None:
        rows = content["market_state"]["ohlcv_1h"]
        names = ("timestamps", "open", "high", "low", "close", "volume")
        content["market_state"]["ohlcv_1h"] = {
            name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)
        }

    assert read(tmp_path, columns) == read(tmp_path)


def test_candles_of_the_time_after_a_signal_are_left_out_and_counted(tmp_path: Path) -> None:
    """An annotation with a window of minutes around its signal trains on what was known, and no more."""

    def window(content: dict[str, Any]) -> None:
        rows = content["market_state"]["ohlcv_1h"]
        later = [f"2031-01-01T00:0{minute}:00Z" for minute in range(5)]
        content["market_state"]["ohlcv_1h"] = [*rows, *([time, *rows[-1][1:]] for time in later)]

    known = read(tmp_path)
    assert read(tmp_path, window) == known
    [found] = read_annotations(tmp_path, SIZES)
    assert found.later == 5


def labelled(directory: Path, labels: list[Any], **more: Any) -> list[dict[str, Any]]:
    """Return the records of an annotation of five minutes around its signal, with a label for each."""
    content = annotation(2)
    minutes = content["market_state"]["ohlcv_1h"][0][1:]
    times = [f"2025-01-06T06:0{minute}:00Z" for minute in range(5)]
    content |= {"timestamp": "2025-01-06T06:02:30Z", "training_labels": {"labels_1m": labels, **more}}
    content["market_state"]["ohlcv_1m"] = [[time, *minutes[:4], float(n)] for n, time in enumerate(times)]
    write(directory, 2, content)
    found = read_annotations(directory, replace(SIZES, labels=True))
    assert sum(one.later for one in found) == 0
    assert [one.at for one in found] == sorted(one.at for one in found)
    assert len({one.known for one in found}) == 1
    assert found[0].known >= found[-1].at
    return [json.loads(one.record) for one in found]


def test_each_label_of_a_candle_is_a_record_of_the_candles_that_had_closed_by_then(tmp_path: Path) -> None:
    found = labelled(tmp_path, [0, "HOLD", 1, 2, 3])
    assert [one["action"] for one in found] == ["hold", "hold", "buy", "hold", "sell"]
    assert [[row[4] for row in one["frames"]["1m"]] for one in found] == [
        [0.0], [0.0, 1.0], [0.0, 1.0, 2.0], [0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0, 4.0],
    ]  # fmt: skip
    signal, *others = found[2], *found[:2], *found[3:]
    assert signal["price"] is not None
    assert signal["technical"] is not None
    assert [[one["price"], one["technical"], one["order_book"]] for one in others] == [[None] * 3] * 4
    assert len(others[0]["frames"]["1h"]) == len(signal["frames"]["1h"])


@pytest.mark.parametrize(
    ("labels", "fact"),
    [
        ([0, 0, 1, 2], "training_labels.labels_1m has 4 labels for 5 candles of ohlcv_1m; give as many"),
        ([0, 0, 1, 2, 7], "training_labels.labels_1m[4] is 7; it must be 0, 1, 2 or 3, or one of HOLD"),
        ([0, 0, 1, True, 3], "training_labels.labels_1m[3] is true; it must be 0, 1, 2 or 3, or one of HOLD"),
    ],
)
def test_labels_that_do_not_fit_their_candles_are_refused(
    tmp_path: Path, labels: list[Any], fact: str
) -> None:
    with pytest.raises(InvalidSpec) as caught:
        labelled(tmp_path, labels)
    assert fact in str(caught.value)


def test_an_annotation_without_the_labels_that_were_asked_for_is_refused(tmp_path: Path) -> None:
    assert "training_labels has none of labels_1s, labels_1m" in complaint(tmp_path, labels=True)


NOT_NUMBERS = {
    "technical": {"rsi": math.nan, "macd": 1.0, "is_open": None},
    "position": [math.inf, 0.5],
}


def test_indicators_that_are_no_numbers_are_cleaned_as_asked_counted_and_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    content = annotation(2)
    content["market_state"] |= {**NOT_NUMBERS, "order_book": [[math.inf] * 6, [1.0] * 6]}
    write(tmp_path, 2, content)
    [found] = read_annotations(tmp_path, SIZES, Clean(nan=0, inf=None))
    record = json.loads(found.record)
    assert record["technical"] == [0.0, 1.0, 0.0]
    assert (record["position"], record["order_book"]) == (None, [[1.0] * 6])
    assert "clean: NaN: 0.0, infinite: None: 2 numbers were replaced, and 2 count as missing" in (
        capfd.readouterr().out
    )
    with pytest.raises(InvalidSpec, match=r"order_book\[0\]\[0\] is Infinity; it must be a finite number"):
        read_annotations(tmp_path, SIZES, Clean(nan=0))


def test_what_is_given_of_trend_and_pivots_counts(tmp_path: Path) -> None:
    def given(content: dict[str, Any]) -> None:
        content["expected_outcome"] |= {
            "trend": {"angle": -45, "steepness": 0.3, "direction": "DOWN"},
            "pivots": {"L1": 3030.0, "L3": 2970.0},
        }

    record = read(tmp_path, given)
    assert (record["angle"], record["steepness"], record["direction"]) == (-0.5, 0.3, 0)
    assert record["pivots"] == [
        pytest.approx(100 * math.log(1.01)),
        None,
        pytest.approx(100 * math.log(0.99)),
    ]


def test_an_outcome_that_is_not_known_is_missing(tmp_path: Path) -> None:
    record = read(tmp_path, lambda content: content.pop("expected_outcome"))
    assert [record[name] for name in ("price", "angle", "steepness", "direction")] == [None] * 4


def test_a_missing_frame_is_cut_out_of_the_candles_beside_closed_ones_only(tmp_path: Path) -> None:
    annotation_directory(tmp_path)
    found: list[Annotation] = list(read_annotations(tmp_path, SIZES))
    record = json.loads(found[2].record)
    assert list(record["frames"]) == ["1s", "1m", "1h", "1d"]
    table = read_candles(tmp_path / "candles" / "ETH-USDT" / "1m.csv")
    closed = [
        row
        for begin, row in zip(table.begin_N, table.values_NF.tolist(), strict=True)
        if begin + 60 <= found[2].at
    ]
    assert record["frames"]["1m"] == closed[-8:]


def test_pivots_are_found_in_the_candles_of_the_holding_period(tmp_path: Path) -> None:
    annotation_directory(tmp_path)
    found = read_annotations(tmp_path, SIZES)
    records = [json.loads(one.record) for one in found]
    assert all(
        abs(record["pivots"][0]) == pytest.approx(0.3, abs=0.08) for record in records if record["pivots"][0]
    )
    assert any(record["pivots"][0] for record in records)


def test_a_packed_table_and_parquet_hold_the_same_candles(tmp_path: Path) -> None:
    text = minute_candles(2)
    plain, packed, other = (tmp_path / f"1m.{suffix}" for suffix in ("csv", "csv.gz", "parquet"))
    plain.write_text(text)
    packed.write_bytes(gzip.compress(text.encode()))
    names, *rows = [line.split(",") for line in text.splitlines()]
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    typed = {
        name: column if name == "timestamp" else list(map(float, column)) for name, column in columns.items()
    }
    parquet.write_table(pa.table(typed), other)
    tables = [read_candles(path) for path in (plain, packed, other)]
    assert all((one.begin_N == tables[0].begin_N).all() for one in tables)
    assert all((one.values_NF == tables[0].values_NF).all() for one in tables)


def test_a_byte_order_mark_is_no_part_of_the_header_of_candles(tmp_path: Path) -> None:
    (tmp_path / "1m.csv").write_text("\ufeff" + minute_candles(2))
    (tmp_path / "1m.csv.gz").write_bytes(gzip.compress((tmp_path / "1m.csv").read_bytes()))
    sizes = [len(read_candles(tmp_path / name).begin_N) for name in ("1m.csv", "1m.csv.gz")]
    assert sizes == [minute_candles(2).count("\n") - 1] * 2


def test_a_packed_table_of_candles_that_is_damaged_is_refused(tmp_path: Path) -> None:
    packed, whole = tmp_path / "1m.csv.gz", gzip.compress(minute_candles(2).encode())
    packed.write_bytes(whole[:10] + b"\xff" + whole[11:])
    with pytest.raises(InvalidSpec, match=r"1m\.csv\.gz: Error -3 .*; give a readable table"):
        read_candles(packed)


def state(name: str, value: object) -> Change:
    return lambda content: content["market_state"].update({name: value})


def candle(frame: str, row: int, column: int, value: object) -> Change:
    def change(content: dict[str, Any]) -> None:
        content["market_state"][f"ohlcv_{frame}"][row][column] = value

    return change


def outcome(name: str, value: object) -> Change:
    return lambda content: content["expected_outcome"].update({name: value})


BROKEN: list[tuple[Change, str]] = [
    (lambda c: c.pop("symbol"), "annotation_02.json: symbol is missing; add it"),
    (
        lambda c: c.update(timestamp="06.01.2025"),
        'timestamp is "06.01.2025"; write it as 2024-12-31T23:59:00Z',
    ),
    (lambda c: c.update(action="MAYBE"), 'action is "MAYBE"; it must be one of HOLD, BUY and SELL'),
    (lambda c: c.update(market_state=[1]), "market_state is [1]; it must be an object"),
    (
        lambda c: c.update(market_state={}),
        "market_state has none of ohlcv_1s, ohlcv_1m, ohlcv_1h, ohlcv_1d, nor",
    ),
    (state("ohlcv_1h", 5), "market_state.ohlcv_1h is 5; it must be a list"),
    (
        state("ohlcv_1h", [[1, 2]]),
        "market_state.ohlcv_1h[0] has 2 numbers; a candle is [time, open, high, low",
    ),
    (candle("1h", 3, 0, "noon"), 'market_state.ohlcv_1h[3][0] is "noon"; write it as 2024-12-31T23:59:00Z'),
    (candle("1h", 3, 2, 0), "market_state.ohlcv_1h[3][2] is 0; it must be above 0"),
    (candle("1d", 7, 4, math.nan), "market_state.ohlcv_1d[7][4] is NaN; it must be a finite number"),
    (candle("1d", 7, 5, -1), "market_state.ohlcv_1d[7][5] is -1; it must be at least 0"),
    (candle("1s", 1, 2, 1.5), "market_state.ohlcv_1s[1] has a high of 1.5 below its low of "),
    (
        candle("1h", 3, 0, "2020-01-01T00:00:00Z"),
        "ohlcv_1h[3] does not follow the candle before it; sort them",
    ),
    (
        state(
            "ohlcv_1h",
            {"timestamps": ["2025-01-01T00:00:00Z"], "open": []} | {n: [] for n in ("high", "low")},
        ),
        "market_state.ohlcv_1h.close is missing; add it",
    ),
    (state("order_book", [[1.0] * 5]), "order_book[0] has 5 numbers; annotations.order_book says 6"),
    (
        state("order_book", [{"bids": [], "asks": [[1, 2]]}]),
        "order_book[0] has no bid or no ask; give both sides",
    ),
    (
        state("order_book", [{"bids": [[1, 2, 3]], "asks": []}]),
        "order_book[0].bids[0] has 3 numbers; a level is",
    ),
    (state("technical", [1.0, 2.0]), "market_state.technical has 2 numbers; annotations.technical says 3"),
    (state("technical", {"a": 1, "b": "x", "c": 2}), 'technical.b is "x"; it must be a finite number'),
    (state("position", [1, math.inf]), "market_state.position[1] is Infinity; it must be a finite number"),
    (outcome("entry_price", 0), "expected_outcome.entry_price is 0; it must be above 0"),
    (
        outcome("holding_period_seconds", -5),
        "expected_outcome.holding_period_seconds is -5; it must be above 0",
    ),
    (outcome("direction", "SIDE"), 'expected_outcome.direction is "SIDE"; it must be one of LONG, SHORT'),
    (outcome("pivots", {"L1": "high"}), 'expected_outcome.pivots.L1 is "high"; it must be a finite number'),
]


@pytest.mark.parametrize(
    ("change", "fact"), BROKEN, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_broken_annotation_is_refused_at_its_place(tmp_path: Path, change: Change, fact: str) -> None:
    assert fact in complaint(tmp_path, change)


@pytest.mark.parametrize(
    ("content", "fact"),
    [
        (
            b'{"symbol": "ETH/USDT",\n "timestamp" }',
            "annotation_1.json:2:14: Expecting ':' delimiter; correct the",
        ),
        (b"[1, 2]", "annotation_1.json: is [1, 2]; an annotation is an object"),
        (b'{"symbol": "\xff"}', "annotation_1.json: 'utf-8' codec can't decode"),
    ],
)
def test_a_file_that_is_no_annotation_is_refused(tmp_path: Path, content: bytes, fact: str) -> None:
    (tmp_path / "annotation_1.json").write_bytes(content)
    with pytest.raises(InvalidSpec) as caught:
        read_annotations(tmp_path, SIZES)
    assert fact in str(caught.value)


def test_a_directory_without_annotations_and_what_is_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"no annotation_\*\.json below .*; put one file for each"):
        read_annotations(tmp_path, SIZES)
    with pytest.raises(InvalidSpec, match=r"absent: not a directory; give one with annotation_\*\.json"):
        read_annotations(tmp_path / "absent", SIZES)


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (lambda t: t.replace("timestamp", "when"), "1m.csv:1: no column timestamp among when, open, high"),
        (lambda t: t.replace(",2\n", "\n", 1), "1m.csv:3: has not as many fields as the header has"),
        (lambda t: t.replace("2025-01-05T23:02:00Z", "late"), "1m.csv:4: timestamp is 'late'; write it as"),
        (
            lambda t: t.replace("23:02:00Z", "23:01:00Z"),
            "1m.csv:4: does not follow the row before it; sort by",
        ),
        (
            lambda t: t.replace(",3000.0,3001.0", ",3000.0,none"),
            '1m.csv:2: high is "none"; it must be a finite',
        ),
        (
            lambda t: t.replace(",3000.0,3001.0", ",3000.0,1.0"),
            "1m.csv:2: has a high of 1 below its low of 2999; correct it",
        ),
        (lambda t: t.splitlines()[0], "1m.csv: no candles; a table has a row for each"),
        (
            lambda t: t.replace("\n", "\n\n", 2).replace("2025-01-05T23:02:00Z", "late"),
            "1m.csv:6: timestamp is 'late'; write it as",
        ),
        (lambda t: t.replace(",2\n", ",-2\n", 1), "1m.csv:3: volume is -2; it must be at least 0"),
        (lambda t: t.replace(",3000.0,", ",0,", 1), "1m.csv:2: open is 0; it must be above 0"),
        (
            lambda t: t.replace(",3000.0,", ",inf,", 1),
            "1m.csv:2: open is Infinity; it must be a finite",
        ),
        (lambda t: t.replace("volume", "v\x00l", 1), "1m.csv:1: no column volume among timestamp, open"),
        (lambda t: t.replace("open", '"open', 1), "1m.csv:1: no column open, high"),
    ],
)
def test_a_broken_table_of_candles_is_refused_at_its_row(
    tmp_path: Path, change: Callable[[str], str], fact: str
) -> None:
    (tmp_path / "1m.csv").write_text(change(minute_candles(1)))
    with pytest.raises(InvalidSpec) as caught:
        read_candles(tmp_path / "1m.csv")
    assert fact in str(caught.value)


def test_two_tables_of_one_frame_are_refused(tmp_path: Path) -> None:
    annotation_directory(tmp_path)
    folder = tmp_path / "candles" / "ETH-USDT"
    (folder / "1m.csv.gz").write_bytes(b"")
    with pytest.raises(InvalidSpec, match=r"ETH-USDT holds 1m\.csv and 1m\.csv\.gz; keep one of them"):
        read_annotations(tmp_path, SIZES)


def test_bids_and_asks_become_prices_from_the_middle_and_sizes(tmp_path: Path) -> None:
    book = [{"bids": [[99.0, 0.0]], "asks": [[101.0, math.e - 1]]}]
    record = read(tmp_path, state("order_book", book), order_book=4)
    assert record["order_book"] == [
        [pytest.approx(100 * math.log(0.99)), 0, pytest.approx(100 * math.log(1.01)), pytest.approx(1)]
    ]
