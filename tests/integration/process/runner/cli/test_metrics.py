"""Pictures of ``runner plot``: the drawing library looks for fonts with a program of its own."""

from pathlib import Path

import pytest

from tests.fakes.daemon.api import FakeApi
from tests.unit.runner.cli.conftest import Invoke
from tests.unit.runner.cli.test_metrics import LOSS


@pytest.fixture(autouse=True)
def _job(api: FakeApi) -> None:
    api.curves[api.add("train")["id"]] = {"loss": LOSS}


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_a_picture_is_written(invoke: Invoke, tmp_path: Path, suffix: str) -> None:
    target = tmp_path / f"loss.{suffix}"
    result = invoke("plot", "train", "-o", str(target))
    assert result.stderr == f"wrote {target}\n"
    assert target.read_bytes()[:5] in {b"<?xml", b"\x89PNG\r"}


def test_a_picture_needs_a_directory(invoke: Invoke, tmp_path: Path) -> None:
    result = invoke("plot", "train", "-o", str(tmp_path / "no" / "loss.svg"))
    assert result.exit_code == 2
    assert "cannot be written: No such file" in result.stderr
