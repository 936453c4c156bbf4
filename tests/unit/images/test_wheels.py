"""Wheels are fetched for the base, by the host's pip, once per lock."""

import sys
from pathlib import Path

from images import wheels
from images.recipe import Base
from images.settings import ImageSettings

BASE = Base("sha256:1", "base:1", "3.11", "x86_64", (2, 36))


def test_every_platform_that_the_base_can_load_is_asked_for() -> None:
    chosen = wheels.platforms(BASE)
    assert chosen[0] == "manylinux_2_36_x86_64"
    assert {"manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"} <= set(chosen)
    assert "manylinux_2_37_x86_64" not in chosen


def test_pip_is_this_pythons_and_may_not_execute_a_package(tmp_path: Path) -> None:
    settings = ImageSettings(cache_dir=tmp_path, ca_file=Path("/ca.pem"), pip_options=("--pre",))
    argv = wheels.download_arguments(tmp_path / "lock", tmp_path / "out", BASE, settings)
    assert argv[:5] == [sys.executable, "-I", "-m", "pip", "download"]
    assert {"--only-binary=:all:", "--python-version=3.11", "--cert=/ca.pem"} <= set(argv)
    assert argv[-1] == "--pre"
