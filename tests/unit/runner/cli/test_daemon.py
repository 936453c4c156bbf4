import configparser
import json
import socket
import sys
from pathlib import Path

import pytest

from tests.fakes.api import FakeApi
from tests.unit.runner.cli.conftest import Invoke


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_SOCKET", "/nowhere/runner.sock")


def test_a_daemon_that_cannot_have_its_port_says_so_before_it_answers_anybody(
    tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        settings = tmp_path / "settings.yaml"
        settings.write_text(f'executor: process\nmetrics: {{listen: "{listen}"}}\n')
        monkeypatch.delenv("RUNNER_SOCKET", raising=False)
        monkeypatch.setenv("RUNNER_STATE_DIR", str(tmp_path / "state"))
        monkeypatch.setenv("RUNNER_SETTINGS", str(settings))
        result = invoke("list")
    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr.splitlines()[-1].startswith(
        f"the daemon did not start: metrics.listen: {listen}: cannot listen: "
    )
    assert (tmp_path / "state" / "daemon.log").read_text().count("cannot listen") == 1
    assert "daemon.started" not in (tmp_path / "state" / "daemon.log").read_text()


def test_stop_asks_the_daemon_to_leave(api: FakeApi, invoke: Invoke) -> None:
    result = invoke("stop")
    assert (result.exit_code, "leaves; jobs go on" in result.stdout) == (0, True)
    assert api.left.is_set()
    assert "stopped" in json.loads(invoke("stop", "--json").stdout)


@pytest.mark.usefixtures("nobody")
def test_stop_without_a_daemon_starts_none_and_is_no_error(invoke: Invoke) -> None:
    result = invoke("stop")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "nothing to stop" in result.stderr


def test_version_is_that_of_both_sides(api: FakeApi, invoke: Invoke) -> None:
    api.add()
    lines = invoke("version").stdout.splitlines()
    assert lines[0] == invoke("--version").stdout.strip()
    assert lines[1].endswith("fake): 1 running")
    assert json.loads(invoke("version", "--json").stdout)["daemon"]["api"] == 1


@pytest.mark.usefixtures("nobody")
def test_version_without_a_daemon_starts_none(invoke: Invoke) -> None:
    assert json.loads(invoke("version", "--json").stdout)["daemon"] is None
    assert invoke("version").stdout.count("\n") == 1


def test_the_unit_file_leaves_jobs_alone_when_the_daemon_is_stopped(invoke: Invoke) -> None:
    unit = configparser.ConfigParser(delimiters=("=",))
    unit.optionxform = str  # type: ignore[assignment, method-assign]  # the documented way to keep case
    unit.read_string(invoke("serve", "--systemd-unit").stdout)
    service = unit["Service"]
    assert service["KillMode"] == "process"
    assert service["ExecStart"] == (
        f"{sys.executable} -P -m runner.cli.main serve"
        " --socket /run/runner/runner.sock --state-dir /var/lib/runner"
    )
    assert (service["RuntimeDirectory"], service["StateDirectory"]) == ("runner", "runner")
    assert service["RuntimeDirectoryPreserve"] == "yes"
