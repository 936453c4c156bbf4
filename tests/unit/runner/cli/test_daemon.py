import configparser
import json
import re
import sys

import pytest

from tests.fakes.daemon.api import FakeApi
from tests.unit.runner.cli.conftest import Invoke


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_SOCKET", "/nowhere/runner.sock")


def test_stop_asks_the_daemon_to_leave(api: FakeApi, invoke: Invoke) -> None:
    result = invoke("stop")
    assert (result.exit_code, "has stopped; jobs go on" in result.stdout) == (0, True)
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
    result = invoke("version")
    assert result.stdout.count("\n") == 1
    assert result.stderr == "no daemon runs; runner list starts one\n"


def test_the_unit_file_leaves_jobs_alone_when_the_daemon_is_stopped(invoke: Invoke) -> None:
    unit = configparser.ConfigParser(delimiters=("=",), strict=False)  # lists are given in parts
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


def test_the_apparmor_profile_that_is_printed_denies_what_the_page_says(invoke: Invoke) -> None:
    profile = invoke("serve", "--apparmor-profile").stdout
    assert "profile runner-job " in profile
    assert profile.count("{") == profile.count("}")
    for denied in ("deny mount,", "deny capability,", "deny network raw,", "deny network packet,"):
        assert denied in profile


def test_the_apparmor_profile_lets_every_sender_of_signals_through(invoke: Invoke) -> None:
    profile = invoke("serve", "--apparmor-profile").stdout
    rules = re.findall(r"^  signal \(([^)]*)\) peer=(\S+),$", profile, re.MULTILINE)
    senders = {
        name for access, peers in rules if "receive" in access for name in peers.strip("{}").split(",")
    }
    assert senders == {"unconfined", "runc", "crun", "runner-job"}
    assert {peers for access, peers in rules if "send" in access} == {"runner-job"}
