"""Reach of a file by other users."""

import os
import sys
from pathlib import Path

import pytest

from runner.base import reach
from runner.base.reach import closed_installation, closed_to_users


def test_a_directory_on_the_way_that_is_closed_is_named(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "python/bin").mkdir(parents=True)
    home.chmod(0o700)
    assert closed_to_users(home / "python/bin/python3") in {home, *tmp_path.parents, tmp_path}
    assert closed_to_users(Path("/usr/bin")) is None


def test_the_interpreter_behind_the_links_of_an_environment_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "root"
    (home / "bin").mkdir(parents=True)
    (home / "bin/python3.11").touch()
    (home / "bin/python3.11").chmod(0o755)
    home.chmod(0o700)
    (tmp_path / "python").symlink_to(home / "bin/python3.11")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert closed_installation() == home
    monkeypatch.setattr(sys, "executable", "/usr/bin/env")
    monkeypatch.setattr(reach, "__file__", "/etc/passwd")  # which none may execute
    assert closed_installation() is None
    monkeypatch.setattr(sys, "executable", str(home / "bin/env"))
    (home / "bin/env").symlink_to("/usr/bin/env")  # an environment in it, of a Python outside
    assert closed_installation() == home
    monkeypatch.setattr(sys, "executable", "/usr/bin/env")
    monkeypatch.setattr(reach, "__file__", str(home / "checkout/runner/base/reach.py"))
    assert closed_installation() == home


def test_the_group_of_root_lets_no_user_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "opt"
    place.mkdir()
    stat = Path.stat

    def of_group(gid: int) -> None:
        entry = os.stat_result((0o040750, 0, 0, 2, 0, gid, 0, 0, 0, 0))
        monkeypatch.setattr(Path, "stat", lambda path: entry if path == place else stat(Path("/")))

    of_group(0)
    assert closed_to_users(place) == place
    of_group(1234)
    assert closed_to_users(place) is None
