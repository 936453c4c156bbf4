import gzip
import json
import os
import stat
from pathlib import Path

import pytest

from runner.adapters.datasets.store import Damaged, Download, prepare, remove, verify
from runner.base.errors import Refused, Unavailable
from runner.files.datasets import DATA_SETS, DataSet, dataset_dir, is_prepared
from tests.fakes.engine.wheels import FakeIndex

INNER = "skfolio/datasets/data/sp500_dataset.csv.gz"
PRICES = b"Date,AAPL,XOM\n1990-01-02,0.264,4.125\n"


@pytest.fixture
def index(tmp_path: Path) -> FakeIndex:
    folder = tmp_path / "an index; with spaces"
    folder.mkdir()
    return FakeIndex(folder)


@pytest.fixture
def stocks(index: FakeIndex) -> DataSet:
    return index.offer(DATA_SETS["sp500-stocks"], {INNER: gzip.compress(PRICES, mtime=0)})


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.name != ".lock")


def test_a_prepared_data_set_says_where_it_comes_from_and_what_it_holds(
    index: FakeIndex, stocks: DataSet, state: Path
) -> None:
    assert not is_prepared(state, "sp500-stocks")
    assert prepare(state, stocks, index.fetch)
    assert is_prepared(state, "sp500-stocks")
    manifest = verify(dataset_dir(state, "sp500-stocks"))
    assert (dataset_dir(state, "sp500-stocks") / "prices.csv").read_bytes() == PRICES.replace(
        b"Date", b"date"
    )
    assert set(manifest["files"]) == {"prices.csv"}
    assert (state / "data" / ".lock").stat().st_mode & 0o777 == 0o600  # nobody else can hold it
    assert (manifest["licence"], manifest["note"]) == (stocks.licence, "example data, not for trading")
    assert everything(state / "data") == [
        "sp500-stocks", "sp500-stocks/manifest.json", "sp500-stocks/prices.csv",
    ]  # fmt: skip


def test_pip_is_asked_for_one_pinned_wheel_and_nothing_it_would_execute(
    index: FakeIndex, stocks: DataSet, state: Path, tmp_path: Path
) -> None:
    prepare(state, stocks, Download(index.fetch.python, ca_file=tmp_path / "ca.pem"))
    (line,) = index.asked()
    assert line.endswith(" skfolio==1.12.2")
    assert line.startswith("-I -m pip download ")
    assert {"--no-deps", "--only-binary=:all:", f"--cert={tmp_path / 'ca.pem'}"} <= set(line.split())


def test_the_same_wheel_gives_the_same_bytes_everywhere(
    index: FakeIndex, stocks: DataSet, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        prepare(tmp_path / name, stocks, index.fetch)
    one, other = (
        (dataset_dir(tmp_path / name, "sp500-stocks") / "manifest.json").read_bytes() for name in "ab"
    )
    assert one == other


def test_a_data_set_that_is_there_is_verified_and_not_fetched_again(
    index: FakeIndex, stocks: DataSet, state: Path
) -> None:
    prepare(state, stocks, index.fetch)
    assert not prepare(state, stocks, index.fetch)
    assert len(index.asked()) == 1


def test_a_damaged_data_set_is_made_anew(index: FakeIndex, stocks: DataSet, state: Path) -> None:
    prepare(state, stocks, index.fetch)
    file = dataset_dir(state, "sp500-stocks") / "prices.csv"
    file.write_bytes(b"date,AAPL\n")
    with pytest.raises(Damaged, match=r"prices\.csv: content differs"):
        verify(file.parent)
    assert prepare(state, stocks, index.fetch)
    verify(file.parent)


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_job_of_any_uid_may_read_it_whatever_the_umask(
    index: FakeIndex, stocks: DataSet, state: Path, umask: int
) -> None:
    before = os.umask(umask)
    try:
        prepare(state, stocks, index.fetch)
    finally:
        os.umask(before)
    place = dataset_dir(state, "sp500-stocks")
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (place.parent, place, *place.iterdir())}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o755}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o644}


def test_other_content_than_was_recorded_is_refused_and_leaves_nothing(
    index: FakeIndex, stocks: DataSet, state: Path
) -> None:
    index.offer(stocks, {INNER: gzip.compress(PRICES.replace(b"0.264", b"0.265"), mtime=0)})
    with pytest.raises(Refused, match="not the content that was recorded"):
        prepare(state, stocks, index.fetch)
    assert everything(state / "data") == []


def test_a_file_of_another_size_is_not_even_unpacked(index: FakeIndex, stocks: DataSet, state: Path) -> None:
    index.offer(stocks, {INNER: b"0" * 1_000_000})
    with pytest.raises(Refused, match=r"1000000 bytes, expected"):
        prepare(state, stocks, index.fetch)


def test_a_wheel_without_the_file_is_refused(index: FakeIndex, stocks: DataSet, state: Path) -> None:
    index.offer(stocks, {"other": b""})
    with pytest.raises(Refused, match="holds no skfolio"):
        prepare(state, stocks, index.fetch)


def test_what_is_no_zip_file_is_refused(index: FakeIndex, stocks: DataSet, state: Path) -> None:
    index.wheel(stocks).write_bytes(b"<html>")
    with pytest.raises(Refused, match="is not a wheel"):
        prepare(state, stocks, index.fetch)


def test_what_pip_says_is_passed_on(index: FakeIndex, stocks: DataSet, state: Path) -> None:
    index.wheel(stocks).unlink()
    with pytest.raises(Unavailable, match=r"skfolio==1\.12\.2: pip cannot get it: ERROR: No matching"):
        prepare(state, stocks, index.fetch)
    assert everything(state / "data") == []


def test_without_pip_the_interpreter_says_so(stocks: DataSet, state: Path, tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text('#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n')
    bare.chmod(0o755)
    with pytest.raises(Unavailable, match="No module named pip"):
        prepare(state, stocks, Download(str(bare)))


def test_an_interrupted_preparation_is_swept_by_the_next(
    index: FakeIndex, stocks: DataSet, state: Path
) -> None:
    left = state / "data" / ".partial-killed" / "fresh"
    left.mkdir(parents=True)
    (left / "prices.csv").write_text("half")
    prepare(state, stocks, index.fetch)
    assert not left.parent.exists()


def test_a_removed_data_set_is_gone_as_a_whole(index: FakeIndex, stocks: DataSet, state: Path) -> None:
    prepare(state, stocks, index.fetch)
    assert remove(state, "sp500-stocks")
    assert not is_prepared(state, "sp500-stocks")
    assert everything(state / "data") == []
    assert not remove(state, "sp500-stocks")


def test_manifests_are_json_that_any_language_reads(index: FakeIndex, stocks: DataSet, state: Path) -> None:
    prepare(state, stocks, index.fetch)
    raw = (dataset_dir(state, "sp500-stocks") / "manifest.json").read_text()
    assert json.loads(raw)["files"]["prices.csv"]["bytes"] == len(PRICES)
