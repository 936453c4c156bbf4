import gzip
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.adapters.datasets.store import Damaged, Download, prepare, verify
from runner.base.errors import Refused, Unavailable
from runner.files.datasets import DATA_SETS, DataSet
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


@pytest.mark.parametrize("manifest", ["", "[]", "{}", '{"files": {"prices.csv": 1}}'])
def test_a_bad_manifest_is_damage(tmp_path: Path, manifest: str) -> None:
    (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(Damaged):
        verify(tmp_path)


def test_a_disk_that_cannot_be_written_is_not_the_users_fault(
    index: FakeIndex, stocks: DataSet, state: Path
) -> None:
    state.write_text("a file where the state belongs")
    with pytest.raises(Unavailable):
        prepare(state, stocks, index.fetch)


@pytest.fixture
def somebody_else() -> Iterator[None]:
    """Root may write everywhere: be nobody in particular for a moment."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65532)
    yield
    os.seteuid(before)


def test_who_may_not_write_is_told_what_to_ask_the_administrator(
    stocks: DataSet, state: Path, request: pytest.FixtureRequest
) -> None:
    state.mkdir(mode=0o555)
    request.getfixturevalue("somebody_else")
    begun: list[bool] = []
    with pytest.raises(Refused, match="ask the administrator to type: runner data prepare sp500-stocks"):
        prepare(state, stocks, Download("never started"), lambda: begun.append(True))
    assert begun == []


def test_every_registered_file_has_a_size_and_a_digest() -> None:
    members = [member for chosen in DATA_SETS.values() for member in chosen.members]
    assert all(member.bytes > 0 and len(member.sha256) == 64 for member in members)


def test_market_data_says_that_it_is_no_advice() -> None:
    assert {name for name, one in DATA_SETS.items() if "trading" in one.note} == {
        "sp500-stocks", "index-ohlcv",
    }  # fmt: skip
