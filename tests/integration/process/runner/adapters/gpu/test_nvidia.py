"""The probe against a real shared library that answers as a driver would, read from a file."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[5] / "fakes/gpu/nvml/nvml.c"
LIST = """
import json
from runner.adapters.gpu.nvidia import NvidiaProbe
devices = NvidiaProbe().devices()
print(json.dumps([[d.uuid, d.vendor, d.name, d.memory_bytes, *["unified"] * d.unified] for d in devices]))
"""

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


def _library(directory: Path, *flags: str) -> Path:
    directory.mkdir()
    output = directory / "libnvidia-ml.so.1"
    command = ["cc", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", *flags]
    subprocess.run([*command, "-o", str(output), str(SOURCE)], check=True)
    return directory


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _library(tmp_path_factory.mktemp("nvml") / "driver")


def _devices(tmp_path: Path, driver: Path, text: str | None) -> list[list[object]]:
    """Ask the probe in a process of its own: the binding keeps the library that it loaded first."""
    said = tmp_path / "devices"
    if text is not None:
        said.write_text(text)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(driver), "RUNNER_FAKE_NVML": str(said)}
    command = [sys.executable, "-W", "error", "-c", LIST]
    answer = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return list(json.loads(answer.stdout.splitlines()[-1]))


def test_gpus_are_listed_with_uuid_name_and_memory(tmp_path: Path, driver: Path) -> None:
    text = "gpu GPU-1 85899345920 NVIDIA H100 80GB HBM3\ngpu GPU-2 25769803776 NVIDIA L4\n"
    assert _devices(tmp_path, driver, text) == [
        ["GPU-1", "nvidia", "NVIDIA H100 80GB HBM3", 85899345920],
        ["GPU-2", "nvidia", "NVIDIA L4", 25769803776],
    ]


def test_a_gpu_in_mig_mode_is_lent_by_instance(tmp_path: Path, driver: Path) -> None:
    text = (
        "gpu GPU-1 80 A100\nmig MIG-1 10 A100 MIG 1g.10gb\nmig MIG-2 20 A100 MIG 2g.20gb\ngpu GPU-2 24 L4\n"
    )
    assert [device[0] for device in _devices(tmp_path, driver, text)] == ["MIG-1", "MIG-2", "GPU-2"]


def test_a_gpu_without_memory_of_its_own_has_that_of_the_host(tmp_path: Path, driver: Path) -> None:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    found = _devices(tmp_path, driver, "gpu GPU-1 - GB10\n")
    assert found == [["GPU-1", "nvidia", "GB10", memory, "unified"]]


def test_a_lost_gpu_does_not_hide_the_others(tmp_path: Path, driver: Path) -> None:
    assert [d[0] for d in _devices(tmp_path, driver, "lost x - x\ngpu GPU-2 24 L4\n")] == ["GPU-2"]


def test_a_gpu_without_a_uuid_cannot_be_lent(tmp_path: Path, driver: Path) -> None:
    assert _devices(tmp_path, driver, "gpu - 24 L4\n") == []


def test_an_old_driver_without_mig_is_enough(tmp_path: Path) -> None:
    old = _library(tmp_path / "old", "-DOLD")
    assert _devices(tmp_path, old, "gpu GPU-1 24 P100\n") == [["GPU-1", "nvidia", "P100", 24]]


def test_a_driver_that_is_not_loaded_means_no_devices(tmp_path: Path, driver: Path) -> None:
    assert _devices(tmp_path, driver, None) == []


def test_a_machine_without_the_library_has_no_devices(tmp_path: Path) -> None:
    if any(shutil.which(name) for name in ("nvidia-smi",)):
        pytest.skip("this machine has a driver")
    assert _devices(tmp_path, tmp_path, "gpu GPU-1 24 L4\n") == []


HEALTH = """
import dataclasses, json, os, sys
from pathlib import Path
from runner.adapters.gpu.nvidia import NvidiaHealth
from runner.core.ports.devices import Device
probe = NvidiaHealth()
for text in json.loads(sys.argv[1]):
    said = Path(os.environ["RUNNER_FAKE_NVML"])
    said.write_text(text) if text else said.unlink(missing_ok=True)
    found = probe.read((Device("GPU-1", "nvidia", "L4"), Device("MIG-1", "nvidia", "L4")))
    print(json.dumps({uuid: dataclasses.asdict(health) for uuid, health in found.items()}))
"""


def _healths(tmp_path: Path, driver: Path, *texts: str) -> list[dict[str, dict[str, object]]]:
    """Let one probe look once at each of these machines, one after the other."""
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(driver),
        "RUNNER_FAKE_NVML": str(tmp_path / "devices"),
    }
    command = [sys.executable, "-W", "error", "-c", HEALTH, json.dumps(texts)]
    answer = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return [json.loads(line) for line in answer.stdout.splitlines() if line.startswith("{")]


SLICED = "gpu GPU-1 1000 L4\nmig MIG-1 100 1g\nis GPU-1 bus=00000000:17:00.0"


def test_what_must_be_done_about_a_device_is_said_of_its_slices_too(tmp_path: Path, driver: Path) -> None:
    [found] = _healths(tmp_path, driver, f"{SLICED} recovery=2\n")
    assert {uuid: health["recovery"] for uuid, health in found.items()} == {
        "GPU-1": "node_reboot",
        "MIG-1": "node_reboot",
    }


def test_an_error_that_asks_for_a_reset_is_a_recovery_action(tmp_path: Path, driver: Path) -> None:
    [found] = _healths(tmp_path, driver, f"{SLICED} error=16\n")
    assert (found["GPU-1"]["recovery"], found["GPU-1"]["util"]) == ("gpu_reset", None)


def test_a_device_that_is_lost_in_the_middle_of_a_look_is_lost(tmp_path: Path, driver: Path) -> None:
    [found] = _healths(tmp_path, driver, f"{SLICED} error=15\n")
    assert found["GPU-1"]["lost"] is True


def test_xids_are_reported_from_the_second_look_on_and_only_once(tmp_path: Path, driver: Path) -> None:
    looks = _healths(tmp_path, driver, SLICED, f"{SLICED} xid=94\n", f"{SLICED} xid=94\n")
    assert [found["GPU-1"]["xids"] for found in looks] == [None, [94], []]
    assert [found["MIG-1"]["xids"] for found in looks] == [None, [94], []]


def test_nobody_listens_to_a_device_that_does_not_let_them(tmp_path: Path, driver: Path) -> None:
    looks = _healths(tmp_path, driver, *["gpu GPU-1 1000 L4\n"] * 2)
    assert [found["GPU-1"]["xids"] for found in looks] == [None, None]


def test_a_driver_that_goes_and_comes_is_asked_anew(tmp_path: Path, driver: Path) -> None:
    before, away, _, after = _healths(tmp_path, driver, SLICED, "", "", SLICED)
    assert (before["GPU-1"]["lost"], after["GPU-1"]["lost"]) == (False, False)
    assert all(health["lost"] is None for health in away.values())
