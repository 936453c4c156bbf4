"""Output of ``runner images`` without an engine to talk to."""

from pathlib import Path

import pytest

from images.docker_engine import DockerEngine
from images.errors import EngineForbidden
from images.ports import Image
from tests.unit.runner.cli.conftest import Invoke


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nowhere.sock")


def test_an_engine_that_is_down_is_to_be_started(invoke: Invoke) -> None:
    result = invoke("images", "list")
    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr.startswith("the container engine does not answer (")
    assert result.stderr.endswith("; scripts/engine starts one\n")


def test_who_may_not_use_the_engine_is_told_that_they_need_not(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(_: DockerEngine, __: str) -> tuple[Image, ...]:
        raise EngineForbidden("/run/docker.sock: you may not use the container engine")

    monkeypatch.setattr(DockerEngine, "images", forbidden)
    result = invoke("images", "list")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == (
        "/run/docker.sock: you may not use the container engine, which belongs to root and the daemon; "
        "runner submit needs no access to it\n"
    )
