import pytest
from click.shell_completion import BashComplete

from runner.cli.main import COMMANDS, cli
from runner.cli.parameters import complete_names
from tests.fakes.daemon.api import FakeApi
from tests.unit.runner.cli.conftest import Invoke


def completed(*words: str) -> list[str]:
    found = BashComplete(cli, {}, "runner", "_RUNNER_COMPLETE").get_completions(list(words[:-1]), words[-1])
    return [item.value for item in found]


def test_an_unknown_shell_is_a_usage_error(invoke: Invoke) -> None:
    assert invoke("completion", "tcsh").exit_code == 2


def test_commands_and_options_complete() -> None:
    assert set(completed("")) == set(COMMANDS)
    assert completed("submit", "--fo") == ["--follow"]


def test_names_of_jobs_complete_through_the_daemon(api: FakeApi) -> None:
    api.add("train-a")
    api.add("train-b")
    api.add("other")
    assert completed("show", "tr") == ["train-a", "train-b"]
    assert completed("cancel", "other", "o") == ["other"]
    assert completed("events", "train-a") == ["train-a"]


def test_completion_is_silent_without_a_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_SOCKET", "/nowhere/runner.sock")
    assert completed("show", "tr") == []
    assert complete_names.__doc__ is not None
