"""``runner doctor`` and the log of a daemon, with a stand-in for NVML and a made-up tree of AMD."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runner.adapters import doctor as collecting
from runner.adapters.doctor import FactCollector
from runner.core.doctor import NvidiaFacts, examine
from scripts.docs.machines import AMD, MACHINES, STAND_IN
from tests.fakes.daemon.service import until
from tests.fakes.gpu.hosts import Card, NvidiaHost, compile_nvml, mi300xs
from tests.fakes.gpu.site import site

compiles = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


def stand_in() -> NvidiaHost:
    """Return the two cards of the page ``provenance/machines.md``."""
    h100 = Card("GPU-a", "NVIDIA H100 80GB HBM3")
    h100.say(bus="00000000:17:00.0", cap="9.0", persist=0, ecc=0, remapped=0)
    v100 = Card("GPU-b", "Tesla V100-SXM2-16GB")
    v100.say(bus="00000000:27:00.0", cap="7.0", persist=1, ecc=3, remapped=2)
    return NvidiaHost([h100, v100], trouble="driver 580.65.06 13000")


def said_of_nvidia(lines: list[dict[str, str]]) -> list[tuple[str, str, str, str]]:
    about = ("NVIDIA", "NVML", "/dev/nvidia", "GPU-")
    keys = ("verdict", "subject", "fact", "advice")
    return [
        (each[keys[0]], each[keys[1]], each[keys[2]], each[keys[3]])
        for each in lines
        if each["subject"].startswith(about)
    ]


@compiles
@pytest.mark.skipif(Path("/sys/module/nvidia").exists(), reason="there is a real driver")
def test_the_command_says_of_the_stand_in_what_its_page_says(tmp_path: Path) -> None:
    library, said = compile_nvml(tmp_path / "driver"), tmp_path / "host"
    stand_in().write(said)
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(library),
        "RUNNER_FAKE_NVML": str(said),
        "RUNNER_STATE_DIR": str(tmp_path / "state"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "runner.cli.main", "doctor", "--json"],
        env=environment, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 4, done.stderr
    found = said_of_nvidia([json.loads(line) for line in done.stdout.splitlines()])
    page = [(each.verdict, each.subject, each.fact, each.advice) for each in examine(MACHINES["stand-in"])]
    assert found == [line for line in page if line[1].startswith(("NVIDIA", "NVML", "/dev/nvidia", "GPU-"))]


@compiles
@pytest.mark.skipif(Path("/sys/module/nvidia").exists(), reason="there is a real driver")
def test_a_daemon_warns_of_the_machine_when_it_starts(tmp_path: Path) -> None:
    with site(tmp_path, stand_in()) as made:

        def warned() -> list[dict[str, str]]:
            lines = [line for line in made.daemon.daemon_log().splitlines() if '"doctor.' in line]
            return [json.loads(line) for line in lines]

        found = until(
            lambda: [each for each in warned() if each["subject"].startswith("GPU-1")][1:] and warned(),
            "the daemon has looked at the machine",
            more=made.daemon.log_tail,
        )
    said = {(each["event"], each["level"], each["subject"], each["fact"]) for each in found}
    model = "Tesla V100-SXM2-16GB"
    assert ("doctor.problem", "error", "/dev/nvidia*", "there are none") in said
    fact = "3 uncorrectable memory errors since the driver was loaded"
    assert ("doctor.warning", "warning", f"GPU-1 {model}", fact) in said
    assert all(each["advice"] for each in found)


def test_a_made_up_tree_of_amd_gives_the_machine_of_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "describe_driver", lambda: NvidiaFacts(nvml_error="no NVML"))
    mi300xs(tmp_path / "sys", 1)
    for path in ("sys/module/amdgpu", "sys/bus/pci/devices/0000:83:00.0", "dev/dri"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "sys/bus/pci/devices/0000:83:00.0/vendor").write_text("0x1002\n")
    (tmp_path / "sys/bus/pci/devices/0000:83:00.0/class").write_text("0x120000\n")
    for node in ("dev/kfd", "dev/dri/renderD128"):
        (tmp_path / node).touch(mode=0o660)
        (tmp_path / node).chmod(0o660)
    collector = FactCollector(tmp_path)
    found = collector.amd()
    assert collector.nvidia() == NvidiaFacts()
    assert (found.on_bus, found.driver) == (AMD.on_bus, AMD.driver)
    assert found.gpus == AMD.gpus
    assert found.kfd is not None
    assert AMD.kfd is not None
    assert (found.kfd.path, found.kfd.by_group) == (AMD.kfd.path, AMD.kfd.by_group)
    assert [(each.path, each.by_group) for each in found.render] == [("/dev/dri/renderD128", True)]
    (tmp_path / "dev/kfd").chmod(0o600)
    closed = collector.amd().kfd
    assert closed is not None
    assert not closed.by_group


def test_the_facts_of_the_page_are_those_of_a_machine_without_nodes() -> None:
    assert (STAND_IN.on_bus, STAND_IN.nodes, STAND_IN.toolkit) == (0, (), None)
