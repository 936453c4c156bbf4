"""Whole hosts of NVIDIA cards, told by a compiled NVML: what there is, how it is, and what goes wrong."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.gpu.hosts import GIB, NvidiaHost, compile_nvml, h100s, mixed, sliced_a100s

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

ASK = """
import dataclasses, json, os, sys
from pathlib import Path
from runner.adapters.gpu.nvidia import NvidiaHealth, NvidiaProbe
probe, health = NvidiaProbe(Path(sys.argv[1])), NvidiaHealth()
first = ()
for text in json.load(sys.stdin):
    Path(os.environ["RUNNER_FAKE_NVML"]).write_text(text)
    devices = probe.devices()
    first = first or devices
    found = health.read(first)
    answer = [[dataclasses.asdict(d) for d in devices], {u: dataclasses.asdict(h) for u, h in found.items()}]
    print(json.dumps(answer))
"""

Json = dict[str, Any]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_nvml(tmp_path_factory.mktemp("nvml"))


def asked(tmp_path: Path, driver: Path, *texts: str) -> list[tuple[dict[str, Json], dict[str, Json]]]:
    """Return devices and healths, by UUID, of one machine at several moments."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(driver), "RUNNER_FAKE_NVML": str(tmp_path / "host")}
    command = [sys.executable, "-W", "error", "-c", ASK, str(tmp_path / "sys")]
    answer = subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True, input=json.dumps(texts)
    )
    lines = [json.loads(line) for line in answer.stdout.splitlines() if line.startswith("[")]
    return [({each["uuid"]: each for each in devices}, healths) for devices, healths in lines]


def at(tmp_path: Path, driver: Path, host: NvidiaHost) -> tuple[dict[str, Json], dict[str, Json]]:
    [found] = asked(tmp_path, driver, host.text())
    return found


def known(health: Json) -> list[Json]:
    """Return what the driver tells of the processes on a device."""
    return [{name: each[name] for name in ("pid", "used_bytes", "draws")} for each in health["processes"]]


def test_eight_h100s_behind_switches_are_one_island(tmp_path: Path, driver: Path) -> None:
    devices, _ = at(tmp_path, driver, h100s())
    assert [each["label"] for each in devices.values()] == [f"GPU-{i}" for i in range(8)]
    assert {each["link_group"] for each in devices.values()} == {"nvlink-0000:17:00"}
    assert {(tuple(each["capability"]), each["kind"]) for each in devices.values()} == {((9, 0), "whole")}


def test_slices_have_a_parent_its_capability_and_no_links_and_pairs_are_islands(
    tmp_path: Path, driver: Path
) -> None:
    devices, healths = at(tmp_path, driver, sliced_a100s())
    assert list(devices) == ["MIG-a0-0", "MIG-a0-1", "MIG-a1-0", "MIG-a1-1", "GPU-a2", "GPU-a3"]
    first = devices["MIG-a0-0"]
    assert (first["label"], first["parent"], first["kind"]) == ("GPU-0:0", "GPU-a0", "slice")
    assert (first["capability"], first["link_group"], first["memory_bytes"]) == ([8, 0], None, 40 * GIB)
    assert devices["GPU-a2"]["link_group"] == devices["GPU-a3"]["link_group"] == "nvlink-0000:37:00"
    assert (healths["MIG-a0-0"]["lost"], healths["MIG-a0-0"]["unusable"]) == (False, None)
    assert healths["MIG-a0-0"]["power_w"] == 70  # of the GPU that it is part of


def test_cards_without_links_are_on_no_island(tmp_path: Path, driver: Path) -> None:
    devices, _ = at(tmp_path, driver, mixed())
    assert {each["link_group"] for each in devices.values()} == {None}
    assert [tuple(each["capability"]) for each in devices.values()] == [(9, 0), (8, 0), (7, 5)]


def test_memory_nodes_come_from_the_kernel(tmp_path: Path, driver: Path) -> None:
    for bus, node in (("0000:17:00", "1"), ("0000:27:00", "-1"), ("0000:37:00", "?")):
        path = tmp_path / f"sys/bus/pci/devices/{bus}.0"
        path.mkdir(parents=True)
        (path / "numa_node").write_text(f"{node}\n")
    devices, _ = at(tmp_path, driver, mixed())
    assert [each["numa"] for each in devices.values()] == [1, 0, None]


def test_a_look_tells_processes_power_heat_errors_and_what_holds_clocks_down(
    tmp_path: Path, driver: Path
) -> None:
    host = mixed()
    host[0].say(procs=f"11:{GIB},12:0", used=2 * GIB, power=651, energy=7200, temp=84, ecc=3, throttle="0x24")
    host[1].say(procs="?", power=None, temp=None, ecc=None, throttle=None)
    _, healths = at(tmp_path, driver, host)
    busy, silent, idle = healths.values()
    assert known(busy) == [
        {"pid": 11, "used_bytes": GIB, "draws": False},
        {"pid": 12, "used_bytes": 0, "draws": False},
    ]
    assert (busy["used_bytes"], busy["power_w"], busy["temperature_c"]) == (2 * GIB, 651, 84)
    assert [each["energy_j"] for each in healths.values()] == [7200, None, None]
    assert (busy["ecc_uncorrectable"], busy["throttled"]) == (3, ["power cap", "heat"])
    unknown = ("processes", "power_w", "temperature_c", "ecc_uncorrectable", "throttled")
    assert {name: silent[name] for name in unknown} == dict.fromkeys(unknown)
    assert (idle["processes"], idle["throttled"]) == ([], [])


def test_more_memory_in_use_than_there_is_costs_no_look_and_is_noted_once(
    tmp_path: Path, driver: Path
) -> None:
    beyond, fine = mixed(), mixed()
    beyond[0].say(used=81 * GIB, procs=f"11:{GIB}")
    fine[0].say(used=20 * GIB)
    looks = [healths["GPU-m0"] for _, healths in asked(tmp_path, driver, *[beyond.text()] * 2, fine.text())]
    assert [(each["used_bytes"], each["memory"]) for each in looks] == [
        (80 * GIB, 1.0),
        (80 * GIB, 1.0),
        (20 * GIB, 0.25),
    ]
    assert [len(each["processes"]) for each in looks] == [1, 1, 0]
    assert len(noted(tmp_path, driver, beyond, beyond, fine, beyond)) == 2


def noted(tmp_path: Path, driver: Path, *hosts: NvidiaHost) -> list[str]:
    """Return what the log says about memory at several moments of one machine."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(driver), "RUNNER_FAKE_NVML": str(tmp_path / "host")}
    command = [sys.executable, "-W", "error", "-c", ASK, str(tmp_path / "sys")]
    texts = json.dumps([host.text() for host in hosts])
    answer = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, input=texts)
    return [line for line in answer.stdout.splitlines() if "nvidia.memory_beyond" in line]


def test_who_only_draws_is_told_apart_from_who_computes(tmp_path: Path, driver: Path) -> None:
    host = mixed()
    host[0].say(procs=f"11:{GIB}", draws=f"7:{GIB // 4},11:{2 * GIB}")
    _, healths = at(tmp_path, driver, host)
    assert known(healths["GPU-m0"]) == [
        {"pid": 7, "used_bytes": GIB // 4, "draws": True},
        {"pid": 11, "used_bytes": 2 * GIB, "draws": False},
    ]


def test_a_driver_from_before_process_lists_leaves_them_unknown(tmp_path: Path) -> None:
    old = compile_nvml(tmp_path / "old", "-DOLD")
    _, healths = at(tmp_path, old, mixed())
    assert [each["lost"] for each in healths.values()] == [False] * 3
    assert [each["processes"] for each in healths.values()] == [None] * 3


def test_a_gpu_that_was_put_into_mig_mode_and_not_divided_is_unusable(tmp_path: Path, driver: Path) -> None:
    before, after = mixed(), mixed()
    after[1].say(mig=1)
    (_, fine), (devices, healths) = asked(tmp_path, driver, before.text(), after.text())
    assert fine["GPU-m1"]["unusable"] is None
    assert "GPU-m1" not in devices
    assert healths["GPU-m1"]["unusable"] == "it is in MIG mode and has no instances"


def test_a_card_that_dies_is_lost_and_is_found_when_it_comes_back(tmp_path: Path, driver: Path) -> None:
    alive, dead, back = mixed(), mixed(), mixed()
    dead[1].kind = "lost"
    looks = asked(tmp_path, driver, alive.text(), dead.text(), back.text())
    assert [healths["GPU-m1"]["lost"] for _, healths in looks] == [False, True, False]
    assert [len(devices) for devices, _ in looks] == [3, 2, 3]
    assert [devices["GPU-m2"]["label"] for devices, _ in looks] == ["GPU-2"] * 3


@pytest.mark.parametrize("code", [9, 18])
def test_a_driver_that_is_away_or_does_not_match_its_library_costs_knowledge_alone(
    tmp_path: Path, driver: Path, code: int
) -> None:
    away = mixed()
    away.trouble = f"error {code} -"
    looks = asked(tmp_path, driver, mixed().text(), away.text(), away.text(), mixed().text())
    assert [len(devices) for devices, _ in looks] == [3, 0, 0, 3]
    assert all(health["lost"] is None for _, healths in looks[1:3] for health in healths.values())
    assert [health["lost"] for health in looks[3][1].values()] == [False] * 3


SAY_WHY = """
import sys
from pathlib import Path
from runner.adapters.gpu.nvidia import NvidiaProbe
probe = NvidiaProbe(Path(sys.argv[1]))
print(len(probe.devices()), probe.problem)
"""


def test_why_a_machine_with_the_driver_lists_no_gpu(tmp_path: Path, driver: Path) -> None:
    def said(trouble: str) -> str:
        (tmp_path / "host").write_text(trouble + h100s(1).text())
        environment = {"LD_LIBRARY_PATH": str(driver), "RUNNER_FAKE_NVML": str(tmp_path / "host")}
        command = [sys.executable, "-c", SAY_WHY, str(tmp_path / "sys")]
        return subprocess.check_output(command, env={**os.environ, **environment}, text=True).splitlines()[-1]

    assert said("error 18 -\n") == "0 None"  # a machine without a card
    card = tmp_path / "sys/bus/pci/devices/0000:17:00.0"
    card.mkdir(parents=True)
    (card / "vendor").write_text("0x10de\n")
    (card / "class").write_text("0x030200\n")
    assert said("error 18 -\n") == "0 RM has detected an NVML/RM version mismatch"
    assert said("") == "1 None"
