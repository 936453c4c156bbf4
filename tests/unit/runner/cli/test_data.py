import json
from pathlib import Path

import pytest

from runner.files.datasets import NAMES
from tests.fakes.daemon.api import FakeApi
from tests.unit.runner.cli.conftest import Invoke


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("RUNNER_SOCKET", raising=False)
    monkeypatch.setenv("RUNNER_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.mark.usefixtures("state")
def test_list_names_every_data_set_and_what_it_costs(invoke: Invoke) -> None:
    rows = [line.split("\t") for line in invoke("data", "list").stdout.splitlines()]
    assert [row[0] for row in rows] == list(NAMES)
    assert {row[1] for row in rows} == {"-"}


def test_what_cannot_be_written_is_not_said_to_be_fetched(state: Path, invoke: Invoke) -> None:
    state.mkdir()
    (state / "data").write_text("in the way of a directory")
    result = invoke("data", "prepare", "sp500-stocks")
    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr == f"{state / 'data'}: File exists\n"


@pytest.mark.usefixtures("state")
def test_an_unknown_name_is_answered_with_the_known_ones(invoke: Invoke) -> None:
    result = invoke("data", "prepare", "wotch")
    assert result.exit_code == 2
    assert "'watch'" in result.stderr


def test_the_daemon_that_answers_says_where_its_data_lie(api: FakeApi, invoke: Invoke) -> None:
    directory = json.loads(invoke("version", "--json").stdout)["daemon"]["state_dir"]
    assert json.loads(invoke("data", "show", "watch", "--json").stdout)["path"].startswith(directory)
    assert api.left.is_set() is False
