"""Panels in Parquet: every row has its place, what is missing is a mask, and what is wrong is named."""

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from jobs.contract.plans.base import Clean
from jobs.data.panels import Columns, PanelFiles, open_panel
from jobs.training.failures import InvalidSpec
from tests.fakes.workloads.panels import Rows, is_listed, panel_directory, panel_rows, workday, write_panel

WANTED = Columns("date", "code", ("feat_*",), ("target_1d", "target_5d"), "returns_1d", "target_*d")

DAYS = 30


def rows() -> Rows:
    return panel_rows(days=DAYS)


def panel(path: Path, change: Callable[[Rows], Any] = lambda _rows: None, **wanted: Any) -> PanelFiles:
    found = rows()
    change(found)
    return open_panel(write_panel(path / "panel.parquet", found), replace(WANTED, **wanted))


def complaint(path: Path, change: Callable[[Rows], Any] = lambda _rows: None, **wanted: Any) -> str:
    with pytest.raises(InvalidSpec) as caught:
        panel(path, change, **wanted).read()
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(f"{path}/", "")


def set_value(column: str, row: int, value: object) -> Callable[[Rows], None]:
    def change(found: Rows) -> None:
        found[column][row - 1] = value

    return change


def test_a_panel_has_a_place_for_each_stock_and_day(tmp_path: Path) -> None:
    found = panel(tmp_path)
    values = found.read()
    assert found.dates == tuple(str(workday(day)) for day in range(DAYS))
    assert found.codes == tuple(str(1000 + stock) for stock in range(12))
    assert found.columns.features == ("feat_signal", "feat_noise")
    given = rows()
    for row in (0, 7, 100, len(given["date"]) - 1):
        place = found.dates.index(str(given["date"][row])), found.codes.index(given["code"][row])
        assert values.returns_DN[place].item() == pytest.approx(given["returns_1d"][row])
        assert values.features_DNF[place][1].item() == pytest.approx(given["feat_noise"][row])


def test_numbers_that_are_none_are_cleaned_as_asked_counted_and_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def spoil(found: Rows) -> None:
        found["feat_noise"][4] = float("nan")
        found["feat_noise"][5] = 1e300
        found["feat_signal"][6] = float("-inf")
        found["target_1d"][7] = found["returns_1d"][8] = float("inf")

    opened = panel(tmp_path, spoil)
    (tmp_path / "usual").mkdir()
    usual = replace(panel(tmp_path / "usual"), clean=Clean(nan=0, inf=None)).read()
    capfd.readouterr()
    cleaned = replace(opened, clean=Clean(nan=0, inf=None))
    values = cleaned.read()
    told = capfd.readouterr().out
    given = rows()
    spoil(given)
    nan, inf = "is NaN", "is infinite"

    def kind(value: float | None) -> str:
        if value is None or math.isnan(value):
            return nan
        return inf if abs(value) > 1e39 else ""

    features = [kind(each) for each in (*given["feat_signal"], *given["feat_noise"])]
    later = [kind(each) for name in ("target_1d", "target_5d", "returns_1d") for each in given[name]]
    replaced, missing = features.count(nan), features.count(inf) + len(later) - later.count("")
    assert features.count(inf) == 2
    fact = f"{replaced:,} numbers were replaced, and {missing:,} count as missing"
    assert f"clean: NaN: 0.0, infinite: None: {fact}" in told

    def place(row: int) -> tuple[int, int]:
        return opened.dates.index(str(given["date"][row])), opened.codes.index(given["code"][row])

    assert values.features_DNF[place(4)][1] == 0
    assert values.features_DNF[place(5)][1].isnan()
    assert values.features_DNF[place(6)][0].isnan()
    assert values.targets_DNJ[place(7)][0].isnan()
    assert values.returns_DN[place(8)].isnan()
    touched = torch.zeros_like(values.listed_DN)
    for row in range(4, 9):
        touched[place(row)] = True
    assert torch.equal(
        values.features_DNF[~touched].nan_to_num(9), usual.features_DNF[~touched].nan_to_num(9)
    )
    day = place(4)[0]
    part = cleaned.excerpt(day, 1)
    assert torch.equal(part.features_DNF[0].nan_to_num(9), values.features_DNF[day].nan_to_num(9))
    assert "clean" not in capfd.readouterr().out
    numbers = replace(opened, clean=Clean(inf=3)).read()
    assert numbers.features_DNF[place(6)][0] == 3
    assert numbers.targets_DNJ[place(7)][0].isnan()


def test_listings_delistings_gaps_and_missing_numbers_are_masks(tmp_path: Path) -> None:
    values = panel(tmp_path).read()
    listed = torch.tensor([[is_listed(day, stock, DAYS) for stock in range(12)] for day in range(DAYS)])
    assert values.listed_DN.equal(listed)
    assert values.returns_DN.isnan().equal(~listed)
    missing = values.features_DNF[..., 0].isnan()
    assert (missing & listed).any()
    assert values.targets_DNJ[-1].isnan().all()
    assert values.targets_DNJ[-5:, :, 1].isnan().all()


def test_files_of_a_directory_are_one_panel_in_whatever_order_their_rows_are(tmp_path: Path) -> None:
    panel_directory(tmp_path / "some" / "files")
    given = panel_rows()
    backwards = {name: column[::-1] for name, column in given.items()}
    one = open_panel(tmp_path / "some", WANTED)
    other = open_panel(write_panel(tmp_path / "one.parquet", backwards, row_group_size=100), WANTED)
    assert (one.dates, one.codes) == (other.dates, other.codes)
    for name in ("features_DNF", "targets_DNJ", "returns_DN", "listed_DN"):
        assert torch.equal(*(getattr(each.read(), name).nan_to_num(9.0) for each in (one, other)))


def test_a_directory_that_is_named_as_a_file_is_read_for_its_files(tmp_path: Path) -> None:
    (tmp_path / "panel.parquet").mkdir()
    (part,) = open_panel(write_panel(tmp_path / "panel.parquet" / "part-0.parquet", rows()), WANTED).files
    assert open_panel(tmp_path, WANTED).files == (part,)


@pytest.mark.parametrize(
    ("form", "code"),
    [
        (str, str),
        (lambda day: datetime(day.year, day.month, day.day, 15), int),  # noqa: DTZ001 - as files have them
    ],
)
def test_a_part_is_what_the_whole_says_whatever_the_types_are(
    tmp_path: Path, form: Callable[[Any], Any], code: Callable[[Any], Any]
) -> None:
    def change(found: Rows) -> None:
        found["date"] = [form(day) for day in found["date"]]
        found["code"] = [code(one) for one in found["code"]]

    found = panel(tmp_path, change)
    whole, part = found.read(), found.excerpt(10, 6)
    assert part.listed_DN.equal(whole.listed_DN[10:16])
    assert part.features_DNF.nan_to_num(9).equal(whole.features_DNF[10:16].nan_to_num(9))
    assert part.targets_DNJ.nan_to_num(9).equal(whole.targets_DNJ[10:16].nan_to_num(9))


def test_features_are_named_or_fit_patterns_and_targets_never_do(tmp_path: Path) -> None:
    everything = panel(tmp_path, features=("*",), targets=("target_1d",)).columns
    assert everything.features == ("returns_1d", "feat_signal", "feat_noise")
    named = panel(tmp_path, features=("FEAT_noise", "feat_*")).columns
    assert named.features == ("feat_noise", "feat_signal")
    assert panel(tmp_path, date="Date", code="CODE").columns.date == "date"


BROKEN: list[tuple[Callable[[Rows], Any], dict[str, Any], str]] = [
    (
        lambda r: r.pop("date"),
        {},
        "panel.parquet: no column 'date' for panel.date; there are code, returns_1d",
    ),
    (lambda r: r.pop("target_5d"), {}, "panel.parquet: no column 'target_5d' for panel.target"),
    (lambda _: None, {"features": ("alpha_*",)}, "no column of numbers fits 'alpha_*'; there are date, code"),
    (lambda _: None, {"features": ("sector",)}, "panel.parquet: sector is a column of string; it must hold"),
    (
        lambda _: None,
        {"features": ("target_1d",)},
        "target_1d is a target, which is known only later; take it",
    ),
    (lambda _: None, {"features": ("code",)}, "code is the date or the code; take it out of panel.features"),
    (set_value("date", 17, None), {}, "panel.parquet:17: date is missing; write it as 2024-12-31"),
    (
        lambda r: r.update(date=[str(day) for day in r["date"][:-1]] + ["31/12/2024"]),
        {},
        "date is '31/12/2024'; write it as 2024-12-31",
    ),
    (lambda r: r.update(date=[20200106] * len(r["date"])), {}, "date is a column of int64; write dates"),
    (set_value("code", 5, " "), {}, "panel.parquet:5: code is empty; every row names its stock"),
    (lambda r: r.update(code=[1.5] * len(r["code"])), {}, "code is a column of double; codes are text or"),
    (
        set_value("code", 3, "1001"),
        {},
        "panel.parquet:3: 1001 has a row for 2020-01-06 in panel.parquet:1 already; keep one of them",
    ),
    (
        set_value("feat_noise", 55, float("inf")),
        {},
        "panel.parquet:55: feat_noise is inf, beyond what float32 holds; write null where a value is",
    ),
    (
        set_value("target_1d", 9, -1e300),
        {},
        "panel.parquet:9: target_1d is -1e+300, beyond what float32 holds",
    ),
    (
        lambda r: r.update(feat_noise=pa.nulls(len(r["date"]), pa.float64())),
        {},
        "feat_noise has no number in any row; leave it out",
    ),
]


def test_a_panel_without_rows_is_refused(tmp_path: Path) -> None:
    parquet.write_table(pa.table(rows()).slice(0, 0), tmp_path / "panel.parquet")
    with pytest.raises(InvalidSpec, match=r"panel\.parquet: no rows; a panel has one for each stock and day"):
        open_panel(tmp_path, WANTED)


@pytest.mark.parametrize(("change", "wanted", "fact"), BROKEN)
def test_a_broken_panel_is_refused_at_its_place(
    tmp_path: Path, change: Callable[[Rows], Any], wanted: dict[str, Any], fact: str
) -> None:
    assert fact in complaint(tmp_path, change, **wanted)


def test_an_infinite_number_in_a_later_row_group_and_file_is_named_by_its_row(tmp_path: Path) -> None:
    write_panel(tmp_path / "a.parquet", rows())
    later = panel_rows(days=60)
    fresh = [place for place, day in enumerate(later["date"]) if str(day) > str(workday(DAYS - 1))]
    rest = {name: [column[place] for place in fresh] for name, column in later.items()}
    rest["returns_1d"][250] = float("-inf")
    write_panel(tmp_path / "b.parquet", rest, row_group_size=100)
    with pytest.raises(InvalidSpec, match=r"b\.parquet:251: returns_1d is -inf, beyond what float32 holds"):
        open_panel(tmp_path, WANTED).read()


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (
            lambda r: r.pop("feat_noise"),
            "b.parquet: no column feat_noise, which a.parquet has; write it, null",
        ),
        (
            lambda r: r.update(feat_noise=[1] * len(r["date"])),
            "b.parquet: feat_noise is a column of int64, and of double in a.parquet; write all",
        ),
    ],
)
def test_files_of_a_panel_have_the_same_columns(tmp_path: Path, change: Any, fact: str) -> None:
    write_panel(tmp_path / "a.parquet", rows())
    other = rows()
    change(other)
    write_panel(tmp_path / "b.parquet", other)
    with pytest.raises(InvalidSpec) as caught:
        open_panel(tmp_path, WANTED)
    assert fact in str(caught.value)


def test_a_file_that_is_cut_off_or_no_parquet_and_a_directory_without_any(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"no \.parquet file below .*; put the panel's files there"):
        open_panel(tmp_path, WANTED)
    whole = write_panel(tmp_path / "panel.parquet", rows())
    whole.write_bytes(whole.read_bytes()[:-100])
    with pytest.raises(InvalidSpec, match=r"panel\.parquet: .*; write the Parquet file again, to its end"):
        open_panel(whole, WANTED)
    with pytest.raises(InvalidSpec, match=r"absent\.parquet: no such file or directory"):
        open_panel(tmp_path / "absent.parquet", WANTED)


@pytest.mark.parametrize("written", ["%Y%m%d", "%Y/%m/%d", "%Y-%m-%d %H:%M:%S", "Asia/Tokyo"])
def test_days_are_read_as_they_are_written(tmp_path: Path, written: str) -> None:
    def as_written(day: date) -> object:
        midnight = datetime(day.year, day.month, day.day, tzinfo=ZoneInfo("Asia/Tokyo"))
        return midnight if written == "Asia/Tokyo" else midnight.strftime(written)

    def rewrite(found: Rows) -> None:
        found["date"] = [as_written(day) for day in found["date"]]

    found = panel(tmp_path, rewrite)
    assert found.dates == tuple(str(workday(day)) for day in range(DAYS))
    whole, part = found.read(), found.excerpt(7, 3)
    assert torch.equal(part.listed_DN, whole.listed_DN[7:10])
    assert torch.equal(part.features_DNF.nan_to_num(9), whole.features_DNF[7:10].nan_to_num(9))
