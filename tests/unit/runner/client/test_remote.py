"""Messages of a client about hosts and the daemons there."""

import os
from pathlib import Path

import pytest

from runner.base.errors import Unavailable, UsageError
from runner.client.autostart import remote_host
from runner.client.remote import RemoteHost, check_version, hosts_file, parse_host, read_hosts


def test_a_daemon_of_another_version_says_what_to_upgrade() -> None:
    with pytest.raises(Unavailable, match=r"API 2, this command 1; upgrade the runner of this machine"):
        check_version("gpu1", {"version": "0.9.0", "api": 2})
    with pytest.raises(Unavailable, match=r"upgrade the runner of gpu1"):
        check_version("gpu1", {"version": "0.0.1"})
    check_version("gpu1", {"version": "0.2.0", "api": 1})


def test_an_address_has_a_user_a_port_and_a_command() -> None:
    url = "ssh://ada@gpu1:2222?command=/opt/runner/bin/runner"
    assert parse_host(url, {}) == RemoteHost(url, "ada@gpu1", 2222, "/opt/runner/bin/runner")
    assert parse_host("ssh://gpu1", {"RUNNER_REMOTE_COMMAND": "x"}) == RemoteHost(
        "ssh://gpu1", "gpu1", None, "x"
    )
    assert parse_host("ssh://gpu1", {}).ssh("c", "-T") == ["ssh", "-S", "c", "-T", "gpu1"]


@pytest.mark.parametrize(
    "url", ["ssh://", "http://gpu1", "ssh://gpu1/path", "ssh://-oX=y", "ssh://a b", "ssh://a?cmd=x"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        parse_host(url, {})


def test_the_host_is_that_of_the_variable_else_the_one_in_use(tmp_path: Path) -> None:
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert remote_host(environ) is None
    path = Path(hosts_file(environ))
    path.parent.mkdir()
    path.write_text('{"hosts": {"gpu1": "ssh://gpu1"}, "use": "gpu1"}')
    assert remote_host(environ) == "gpu1"
    assert remote_host({**environ, "RUNNER_HOST": ""}) is None
    assert remote_host({**environ, "RUNNER_HOST": "gpu2"}) == "gpu2"
    assert remote_host({**environ, "RUNNER_STATE_DIR": "/x"}) is None
    assert parse_host("gpu1", environ).destination == "gpu1"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"hosts": 7}'])
def test_a_damaged_file_of_hosts_is_named(tmp_path: Path, content: str) -> None:
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    Path(hosts_file(environ)).parent.mkdir()
    Path(hosts_file(environ)).write_text(content)
    with pytest.raises(UsageError, match=os.path.basename(hosts_file(environ))):  # noqa: PTH119
        read_hosts(environ)
