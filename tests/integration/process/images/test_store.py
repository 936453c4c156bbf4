"""An image is built when nothing in the engine has its digest, and only then."""

import shutil
from pathlib import Path

import pytest

from images import wheels
from images.lock_files import LockFile
from images.recipe import Base
from images.settings import ImageSettings, default_dockerfiles
from images.store import ImageStore
from tests.fakes.engine.image_engine import FakeEngine

ROOT = Path(__file__).parents[4]
BASE = Base("sha256:1", "base:1", "3.11", "x86_64", (2, 36))


@pytest.fixture
def settings(tmp_path: Path) -> ImageSettings:
    """Settings with every wheel already there: one file per lock."""
    found = ImageSettings(cache_dir=tmp_path / "cache", dockerfiles=tmp_path)
    for accelerator in ("cpu", "cuda", "rocm"):
        shutil.copy(default_dockerfiles() / f"Dockerfile.{accelerator}", tmp_path)
        lock = (ROOT / "images" / "locks" / f"{accelerator}.txt").read_bytes()
        place = wheels.wheel_directory(LockFile(accelerator, lock), BASE, found)
        place.mkdir(parents=True)
        (place / "torch-2.whl").write_bytes(b"wheel")
    return found


def test_a_base_can_be_made_beforehand(
    settings: ImageSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mmdebstrap").write_text('#!/bin/sh\necho "$@"\n: >"$4"\n')
    (tmp_path / "mmdebstrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    engine = FakeEngine()
    made = ImageStore(settings, engine).bootstrap("ours:1")
    found = engine.image("ours:1")
    assert found is not None
    assert found.id == made
    assert "--variant=minbase" in (settings.cache_dir / "base.log").read_text()
