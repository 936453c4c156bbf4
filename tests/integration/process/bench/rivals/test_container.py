"""The hand that freezes containers, over a ``docker`` that says no for a while."""

import os
from pathlib import Path

import pytest

from bench.rivals import container
from bench.support.result import CannotMeasure

DOCKER = """#!/bin/sh
echo x >> "$0.calls"
[ "$(wc -l < "$0.calls")" -ge {works_at} ] || {{ echo "unable to freeze" >&2; exit 1; }}
"""


def docker_that_works_at(call: int, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = directory / "docker"
    program.write_text(DOCKER.format(works_at=call))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    monkeypatch.setattr(container, "FREEZE_AGAIN_S", 0.0)
    return directory / "docker.calls"


def test_a_container_that_cannot_be_frozen_just_now_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = docker_that_works_at(3, tmp_path, monkeypatch)
    container.pause("one")
    assert len(calls.read_text().split()) == 3


def test_one_that_never_can_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = docker_that_works_at(1000, tmp_path, monkeypatch)
    with pytest.raises(CannotMeasure, match="unable to freeze"):
        container.pause("one")
    assert len(calls.read_text().split()) == container.FREEZES
