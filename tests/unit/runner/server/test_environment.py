"""The environment of the daemon."""

import os

import pytest
from click.testing import CliRunner

from runner.cli.main import cli
from runner.server.environment import remove_unknown

INSTRUCTIONS = {
    "FORWARDED_ALLOW_IPS": "*",
    "WEB_CONCURRENCY": "8",
    "SSLKEYLOGFILE": "/tmp/keys",
    "PROMETHEUS_MULTIPROC_DIR": "/tmp/figures",
    "OTEL_PROPAGATORS": "none",
    "FASTAPI_OTEL_AUTO_CONFIGURE": "true",
    "PYDANTIC_DISABLE_PLUGINS": "__all__",
    "PYTHONPATH": "/tmp",
    "LD_PRELOAD": "/tmp/evil.so",
    "NETRC": "/tmp/netrc",
}
ORDINARY = {"PATH": "/bin", "HOME": "/root", "RUNNER_SETTINGS": "/x", "PIP_INDEX_URL": "y", "LC_ALL": "C"}


def test_a_variable_that_only_a_library_would_read_is_removed() -> None:
    environ = {**INSTRUCTIONS, **ORDINARY}
    assert set(remove_unknown(environ)) == set(INSTRUCTIONS)
    assert environ == ORDINARY


def test_the_daemon_loads_its_libraries_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {**INSTRUCTIONS, **ORDINARY})
    seen: list[dict[str, str]] = []

    def daemon(*_: object) -> int:
        seen.append(dict(os.environ))
        return 0

    monkeypatch.setattr("runner.server.main.serve", daemon)
    monkeypatch.setattr("gc.disable", lambda: None)
    CliRunner().invoke(cli, ["serve"])
    assert seen == [ORDINARY]


def test_the_cluster_of_a_users_own_daemon_is_kept() -> None:
    environ = {"SLURM_CONF": "/etc/site/slurm.conf", "SLURM_JOB_ID": "7"}
    assert remove_unknown(environ) == ("SLURM_JOB_ID",)
    assert environ == {"SLURM_CONF": "/etc/site/slurm.conf"}
