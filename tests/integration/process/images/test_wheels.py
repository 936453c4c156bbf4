"""Wheels are fetched for the base, by the host's pip, once per lock."""

from pathlib import Path

import pytest

from images import wheels
from images.errors import BuildFailed
from images.lock_files import LockFile
from images.log import BuildLog
from images.recipe import Base
from images.settings import ImageSettings

BASE = Base("sha256:1", "base:1", "3.11", "x86_64", (2, 36))
NO_INDEX = ("--no-index", "--isolated")


def test_an_empty_lock_needs_no_index_and_is_fetched_once(tmp_path: Path) -> None:
    settings = ImageSettings(cache_dir=tmp_path, pip_options=NO_INDEX)
    with BuildLog(tmp_path / "log.txt") as log:
        place = wheels.wheelhouse(LockFile("cpu", b"# nothing\n"), BASE, settings, log)
        assert wheels.wheelhouse(LockFile("cpu", b"# nothing\n"), BASE, settings, log) == place
        assert wheels.wheelhouse(LockFile("cpu", b"# another\n"), BASE, settings, log) != place
    assert "already in" in (tmp_path / "log.txt").read_text()


def test_what_pip_says_is_in_the_log_and_nothing_half_done_stays(tmp_path: Path) -> None:
    settings = ImageSettings(cache_dir=tmp_path, pip_options=NO_INDEX)
    with BuildLog(tmp_path / "log.txt") as log, pytest.raises(BuildFailed, match="exit code 1"):
        wheels.wheelhouse(LockFile("cpu", b"no-such-thing==1\n"), BASE, settings, log)
    assert "No matching distribution found for no-such-thing==1" in (tmp_path / "log.txt").read_text()
    assert list((tmp_path / "wheelhouse").iterdir()) == []


def test_a_file_in_the_working_directory_is_not_run_in_place_of_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root builds images in a directory that somebody else may write to."""
    for name in ("pip.py", "sitecustomize.py", "usercustomize.py"):
        (tmp_path / name).write_text(f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).touch()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    settings = ImageSettings(cache_dir=tmp_path / "cache", pip_options=NO_INDEX)
    with BuildLog(tmp_path / "log.txt") as log:
        wheels.wheelhouse(LockFile("cpu", b"# nothing\n"), BASE, settings, log)
    assert not (tmp_path / "ran").exists()
