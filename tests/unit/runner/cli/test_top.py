"""``runner top`` in a pipe: one screen, or JSON."""

import json

import pytest

from tests.fakes.daemon.api import FakeApi
from tests.unit.runner.cli.conftest import Invoke
from tests.unit.runner.cli.test_top_screen import an_overview


@pytest.fixture(autouse=True)
def _machine(api: FakeApi) -> None:
    api.answers["overview"] = an_overview()


def test_a_pipe_gets_one_screen_with_everything_and_no_colours(invoke: Invoke) -> None:
    result = invoke("top")
    assert result.exit_code == 0
    assert "used by a foreign process (pid 4121, uid 1007, python)" in result.stdout
    assert "\x1b" not in result.stdout


def test_json_is_what_the_daemon_answered(api: FakeApi, invoke: Invoke) -> None:
    assert json.loads(invoke("top", "--json").stdout) == api.answers["overview"]
