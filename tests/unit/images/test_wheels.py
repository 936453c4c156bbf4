"""Wheels are fetched for the base, by the host's pip, once per lock."""

import sys
from pathlib import Path

import pytest

from images import wheels
from images.errors import BuildFailed, HostFault
from images.lock_files import LockFile
from images.log import BuildLog
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


def test_the_index_of_an_accelerator_is_given_to_pip_for_its_lock_alone(tmp_path: Path) -> None:
    settings = ImageSettings(cache_dir=tmp_path, indexes={"cpu": "https://mirror/cpu"})
    cpu, rocm = LockFile("cpu", b"torch==2\n"), LockFile("rocm", b"torch==2+rocm7.2\n")
    assert wheels.settings_of(cpu, settings).pip_options == ("--extra-index-url=https://mirror/cpu",)
    assert wheels.settings_of(rocm, settings).pip_options == (
        "--extra-index-url=https://download.pytorch.org/whl/rocm7.2",
    )
    without = ImageSettings(cache_dir=tmp_path)
    assert wheels.settings_of(cpu, without) == without
    assert wheels.wheel_directory(cpu, BASE, without) != wheels.wheel_directory(cpu, BASE, settings)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("WARNING: Retrying (total=0) after connection broken by 'NewConnectionError'", HostFault),
        ("ERROR: HTTP error 503 while getting https://index/torch.whl", HostFault),
        ("ERROR: No matching distribution found for torch==9", BuildFailed),
    ],
)
def test_an_index_that_is_down_is_no_fault_of_the_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, kind: type[BuildFailed]
) -> None:
    def run(log: BuildLog, *_: object, **_more: object) -> None:
        log.line(said)
        raise BuildFailed("pip: exit code 1")

    monkeypatch.setattr(BuildLog, "run", run)
    lock, settings = LockFile("cpu", b"torch==2\n"), ImageSettings(cache_dir=tmp_path)
    with BuildLog(tmp_path / "log") as log, pytest.raises(BuildFailed) as caught:
        wheels.wheelhouse(lock, BASE, settings, log)
    assert type(caught.value) is kind
    assert said in log.tail()
