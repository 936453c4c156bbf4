import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes.patience import patience
from tests.unit.runner.cli.conftest import Invoke


@pytest.fixture
def listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Let the next command start a daemon with figures at an address; tell where its log is."""

    def listens(listen: str) -> Path:
        settings = tmp_path / "settings.yaml"
        settings.write_text(f'executor: process\nsystem_wide: false\nmetrics: {{listen: "{listen}"}}\n')
        monkeypatch.delenv("RUNNER_SOCKET", raising=False)
        monkeypatch.setenv("RUNNER_STATE_DIR", str(tmp_path / "state"))
        monkeypatch.setenv("RUNNER_SETTINGS", str(settings))
        return tmp_path / "state" / "daemon.log"

    return listens


def test_a_daemon_that_can_never_have_its_port_says_so_before_it_answers_anybody(
    listens: Callable[[str], Path], invoke: Invoke
) -> None:
    log = listens("..:9835")
    result = invoke("list")
    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr.splitlines()[-1].startswith(
        "the daemon did not start: metrics.listen: ..:9835: cannot listen: "
    )
    assert log.read_text().count("cannot listen") == 1
    assert "daemon.started" not in log.read_text()


def test_a_port_that_somebody_else_has_keeps_no_daemon_from_starting(
    listens: Callable[[str], Path],
) -> None:
    def runner(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "runner.cli.main", *args]
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=patience())

    with socket.create_server(("127.0.0.1", 0)) as taken:
        log = listens(f"127.0.0.1:{taken.getsockname()[1]}")
        found, left = runner("list"), runner("stop")
    assert (found.returncode, left.returncode) == (0, 0), found.stderr + left.stderr
    assert log.read_text().count("metrics.cannot_listen") == 1
    assert log.read_text().count("daemon.stopped") == 1
