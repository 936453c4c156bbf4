"""The buildx plugin is called by an argument list, with little of our environment."""

import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from images import buildx
from images.cancellation import CancellationToken
from images.errors import BuildFailed
from images.ports import BuildRequest

REQUEST = BuildRequest("runner-cpu:h-1", {"BASE": "b; echo gotcha"}, {"runner.digest": "1"})


def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str) -> None:
    (tmp_path / "docker").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def built(url: str | None = None) -> list[str]:
    with tempfile.TemporaryFile() as context:
        context.write(b"the tar")
        context.seek(0)
        return list(buildx.build(REQUEST, context, url, CancellationToken()))


def test_the_plugin_is_there_when_it_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(monkeypatch, tmp_path, "exit 0")
    assert buildx.is_available()
    program(monkeypatch, tmp_path, "exit 1")
    assert not buildx.is_available()
    monkeypatch.setenv("PATH", "/nowhere")
    assert not buildx.is_available()


def test_the_context_goes_in_and_the_log_comes_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(monkeypatch, tmp_path, 'echo "$*"; cat; echo " to stderr" >&2')
    command, output = built()
    assert "buildx build --builder=default --progress=plain --load --network=none" in command
    assert "--build-arg=BASE=b; echo gotcha" in command
    assert output == "the tar to stderr"


def test_secrets_of_our_environment_stay_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://user:password@example")
    program(monkeypatch, tmp_path, "env")
    lines = built("unix:///engine.sock")
    assert "DOCKER_HOST=unix:///engine.sock" in lines
    assert not [line for line in lines if "password" in line]


def test_a_build_that_nobody_waits_for_ends_with_all_its_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program(monkeypatch, tmp_path, "echo begun; sleep 600 & wait")
    token = CancellationToken()
    with tempfile.TemporaryFile() as context:
        lines = buildx.build(REQUEST, context, None, token)
        assert next(lines) == "begun"
        token.cancel()
        with pytest.raises(BuildFailed, match="begun"):
            list(lines)


def test_a_build_that_nobody_listens_to_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(monkeypatch, tmp_path, "echo $$; exec sleep 600")
    with tempfile.TemporaryFile() as context:
        lines = buildx.build(REQUEST, context, None, CancellationToken())
        pid = next(lines)
        assert isinstance(lines, Generator)
        lines.close()
    assert not Path("/proc", pid).exists()


def test_a_failure_carries_the_programs_last_word(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(monkeypatch, tmp_path, "echo ERROR: no such base; exit 1")
    with pytest.raises(BuildFailed, match="ERROR: no such base"):
        built()
