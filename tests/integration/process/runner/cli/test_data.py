import gzip
import json
from pathlib import Path

import pytest

from runner.adapters.datasets.store import prepare
from runner.files.datasets import DATA_SETS, is_prepared
from tests.fakes.engine.wheels import FakeIndex
from tests.unit.runner.cli.conftest import Invoke


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("RUNNER_SOCKET", raising=False)
    monkeypatch.setenv("RUNNER_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def prepared(state: Path, tmp_path: Path) -> Path:
    index = FakeIndex(tmp_path)
    table = gzip.compress(b"Date,AAPL\n1990-01-02,0.264\n", mtime=0)
    prepare(state, index.offer(DATA_SETS["sp500-stocks"], {"sp500.csv.gz": table}), index.fetch)
    return state


@pytest.mark.usefixtures("prepared")
def test_list_says_what_is_prepared(invoke: Invoke) -> None:
    answers = [json.loads(line) for line in invoke("data", "list", "--json").stdout.splitlines()]
    assert [one["name"] for one in answers if one["prepared"]] == ["sp500-stocks"]


def test_preparing_what_is_there_verifies_it_and_prints_the_terms(prepared: Path, invoke: Invoke) -> None:
    result = invoke("data", "prepare", "sp500-stocks", "sp500-stocks")
    assert result.exit_code == 0
    said, terms = result.stdout.splitlines()
    assert said == f"sp500-stocks: is prepared, verified: {prepared / 'data' / 'sp500-stocks'}"
    assert "example data, not for trading" in terms
    assert "BSD-3-Clause" in terms


def test_prepare_fetches_with_this_interpreters_pip(
    state: Path, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = FakeIndex(tmp_path)
    monkeypatch.setattr("sys.executable", index.fetch.python)
    result = invoke("data", "prepare", "sp500-stocks")
    assert (result.exit_code, len(index.asked())) == (4, 1)
    assert "fetching skfolio==1.12.2 (1.5 MB)" in result.stderr
    assert "pip cannot get it" in result.stderr
    assert not is_prepared(state, "sp500-stocks")


@pytest.mark.usefixtures("prepared")
def test_show_prints_source_licence_and_place(invoke: Invoke) -> None:
    text = invoke("data", "show", "sp500-stocks").stdout
    assert "prepared        yes" in text
    assert "skfolio 1.12.2" in text
    facts = json.loads(invoke("data", "show", "watch", "--json").stdout)
    assert (facts["prepared"], facts["note"]) == (False, "")


def test_remove_takes_it_away_and_complains_the_second_time(prepared: Path, invoke: Invoke) -> None:
    assert invoke("data", "remove", "sp500-stocks").exit_code == 0
    assert not is_prepared(prepared, "sp500-stocks")
    again = invoke("data", "remove", "sp500-stocks")
    assert (again.exit_code, "not prepared" in again.stderr) == (2, True)
