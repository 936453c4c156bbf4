"""The CUDA of the host's own torch, and whether it runs with the driver; made-up packages and drivers."""

from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from runner.adapters import host_torch
from runner.adapters.host_torch import cuda_of_host, host_problem
from runner.core.ports.devices import Device
from runner.core.ports.executor import Key, LaunchRequest, Limits
from runner.core.ports.users import Owner

BUILT_IN = ("/usr/bin/python3", "-P", "-m", "jobs", "--root", "/x")
GPU = Device("GPU-1", "nvidia", "NVIDIA H100 80GB HBM3", label="GPU-0", capability=(9, 0))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the installed packages, which a test fills."""
    packages: dict[str, str] = {}

    def version(name: str) -> str:
        if name not in packages:
            raise PackageNotFoundError(name)
        return packages[name]

    monkeypatch.setattr(host_torch, "version", version)
    monkeypatch.setattr(host_torch, "driver_version", lambda: "550.54.14")
    return packages


def request(*argv: str, devices: tuple[Device, ...] = (GPU,)) -> LaunchRequest:
    place, owner = Path("/x"), Owner(1, 1, "u")
    return LaunchRequest(
        Key("i1", "j1", 1), "n", owner, "none", argv, place, place, Limits(1.0, 2**30), devices=devices
    )


@pytest.mark.parametrize(
    ("packages", "cuda"),
    [
        ({}, None),
        ({"torch": "2.13.0"}, None),
        ({"torch": "2.13.0+cpu"}, None),
        ({"torch": "2.13.0+cu126"}, (12, 6)),
        ({"torch": "2.13.0+cu130"}, (13, 0)),
        ({"torch": "2.13.0", "nvidia-cuda-runtime": "13.0.96"}, (13, 0)),
        ({"torch": "2.7.1", "nvidia-cuda-runtime-cu12": "12.6.77"}, (12, 6)),
    ],
)
def test_the_cuda_of_the_hosts_torch_is_what_its_packages_say(
    installed: dict[str, str], packages: dict[str, str], cuda: tuple[int, int] | None
) -> None:
    installed.update(packages)
    assert cuda_of_host() == cuda


def test_a_driver_that_is_too_old_for_the_hosts_torch_is_named(installed: dict[str, str]) -> None:
    installed["torch"] = "2.13.0+cu130"
    assert host_problem(request(*BUILT_IN)) == (
        "driver 550.54.14 is too old: the torch of /usr/bin/python3 needs CUDA 13.0; update the driver, or"
        " install a build of torch that fits (docs/operate/gpu-images.md)"
    )


def test_what_fits_and_what_is_not_known_runs(installed: dict[str, str]) -> None:
    installed["torch"] = "2.13.0+cu130"
    assert host_problem(request(*BUILT_IN, devices=())) is None
    assert host_problem(request(*BUILT_IN, devices=(replace(GPU, vendor="amd"),))) is None
    assert host_problem(request("python3", "train.py")) is None
    installed["torch"] = "2.13.0+cu126"
    assert host_problem(request(*BUILT_IN)) is None
    installed["torch"] = "2.13.0+cpu"
    assert host_problem(request(*BUILT_IN)) is None
