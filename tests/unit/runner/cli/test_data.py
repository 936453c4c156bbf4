import json
from pathlib import Path

import pytest

from jobs.contract import STDLIB, WORKLOADS, kind_of
from runner.files.datasets import NAMES, OWNERS
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
    assert [row[4] for row in rows] == [each.workload for each in OWNERS if each.here in NAMES]
    assert rows[0][5].startswith("MobilePoser: ")


@pytest.mark.usefixtures("state")
def test_list_says_for_each_workload_what_its_owner_would_bring(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("data", "console"):
        monkeypatch.setattr(f"runner.cli.{module}.on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    below = invoke("data", "list").stdout.split("\n\n")[1].splitlines()
    assert {line.split()[0] for line in below[1:]} == {kind_of(plan) for plan in WORKLOADS}
    assert {each.here for each in OWNERS} == {*NAMES, STDLIB}
    [said] = [json.loads(line) for line in invoke("data", "list", "--json").stdout.splitlines()][:1]
    assert (said["workload"], said["owners_set"]) == ("imu_stream", OWNERS[0].owners)


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


def test_tokenize_says_what_it_made_and_overwrites_nothing(tmp_path: Path, invoke: Invoke) -> None:
    text, output = tmp_path / "text.txt", tmp_path / "made.json"
    text.write_text("viele Worte, viele Verse\n" * 9)
    result = invoke("data", "tokenize", str(text), "-o", str(output), "--vocabulary", "260")
    assert result.stdout == f"{output}: 260 tokens, from 1 file(s) of 225 B\n"
    again = invoke("data", "tokenize", str(text), "-o", str(output))
    assert again.exit_code == 2
    assert again.stderr.startswith(f"{output}: exists already; remove it")
