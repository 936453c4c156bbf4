"""A daemon's socket that answers, and the command line pointed at it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from runner.cli.main import cli
from tests.fakes.daemon.api import FakeApi

Invoke = Callable[..., Result]


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApi]:
    monkeypatch.setenv("RUNNER_SOCKET", str(tmp_path / "runner.sock"))
    with FakeApi(tmp_path / "runner.sock") as api:
        yield api


@pytest.fixture
def invoke() -> Invoke:
    """Call the command line in this process: ``invoke("show", "train")``."""

    def call(*args: str) -> Result:
        result = CliRunner().invoke(cli, args, prog_name="runner")
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "train.yaml"
    path.write_text("name: train\n")
    return path
