"""One suite of ``DeviceHealth`` on the fake, on a compiled NVML and on a tree like AMD's sysfs."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import pytest

from runner.adapters.gpu.amd import AmdHealth
from runner.core.devices.reading import Health, ProcessOnDevice
from runner.core.ports.devices import Device
from tests.fakes.gpu.vitals import FakeHealth

SOURCE = Path(__file__).parents[1] / "fakes/gpu/nvml/nvml.c"
LOOK = """
import dataclasses, json, sys
from runner.adapters.gpu.nvidia import NvidiaHealth
from runner.core.ports.devices import Device
devices = tuple(Device(uuid, "nvidia", "L4") for uuid in sys.argv[1:])
print(json.dumps({uuid: dataclasses.asdict(h) for uuid, h in NvidiaHealth().read(devices).items()}))
"""


class Place(Protocol):
    """Host whose two devices, ``a`` and ``b``, can be put into any state."""

    def be(self, name: str, *, util: int | None = None, used: float | None = None) -> None: ...

    def lose(self, name: str) -> None: ...

    def use(self, name: str, pid: int, amount: int) -> None:
        """Let a process be the only one on a device that is there."""

    def silence(self) -> None:
        """Take the driver away."""

    def read(self) -> Mapping[str, Health]: ...


@dataclass
class FakePlace:
    probe: FakeHealth = field(default_factory=FakeHealth)

    def be(self, name: str, *, util: int | None = None, used: float | None = None) -> None:
        self.probe.healths[name] = Health(
            lost=False, util=util, memory=used, used_bytes=None if used is None else int(used * 1000)
        )

    def lose(self, name: str) -> None:
        self.probe.healths[name] = Health(lost=True)

    def use(self, name: str, pid: int, amount: int) -> None:
        process = ProcessOnDevice(pid, used_bytes=amount)
        self.probe.healths[name] = replace(self.probe.healths[name], processes=(process,))

    def silence(self) -> None:
        self.probe.healths.clear()

    def read(self) -> Mapping[str, Health]:
        return self.probe.read(tuple(Device(name, "fake", "x") for name in "ab"))


@dataclass
class NvmlPlace:
    """Asked in a process of its own: the binding keeps the library that it loaded first."""

    driver: Path
    said: Path
    lines: dict[str, str] = field(default_factory=dict)

    def be(self, name: str, *, util: int | None = None, used: float | None = None) -> None:
        busy = "" if util is None else f" util={util}"
        full = "" if used is None else f" used={int(used * 1000)}"
        memory = "-" if used is None else "1000"
        self.lines[name] = f"gpu {name} {memory} L4\nis {name} bus=00000000:17:00.0{busy}{full}\n"

    def lose(self, name: str) -> None:
        self.lines[name] = f"lost {name} 1000 L4\n"

    def use(self, name: str, pid: int, amount: int) -> None:
        self.lines[name] += f"is {name} procs={pid}:{amount}\n"

    def silence(self) -> None:
        self.lines.clear()

    def read(self) -> Mapping[str, Health]:
        if self.lines:
            lines = sorted("".join(self.lines.values()).splitlines(keepends=True), key=_last)
            self.said.write_text("".join(lines))
        environment = {**os.environ, "LD_LIBRARY_PATH": str(self.driver), "RUNNER_FAKE_NVML": str(self.said)}
        command = [sys.executable, "-W", "error", "-c", LOOK, "a", "b"]
        answer = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        return {uuid: _health(health) for uuid, health in json.loads(answer.stdout).items()}


def _health(said: dict[str, Any]) -> Health:
    processes = said.pop("processes")
    return Health(**said, processes=processes and tuple(ProcessOnDevice(**each) for each in processes))


def _last(line: str) -> bool:
    return line.startswith("is ")


@dataclass
class SysfsPlace:
    root: Path

    def be(self, name: str, *, util: int | None = None, used: float | None = None) -> None:
        about = self._node(name) / "device"
        about.mkdir(parents=True, exist_ok=True)
        (about / "vendor").write_text("0x1002\n")
        if util is not None:
            (about / "gpu_busy_percent").write_text(f"{util}\n")
        if used is not None:
            (about / "mem_info_vram_total").write_text("1000\n")
            (about / "mem_info_vram_used").write_text(f"{int(used * 1000)}\n")

    def lose(self, name: str) -> None:
        shutil.rmtree(self._node(name))

    def use(self, name: str, pid: int, amount: int) -> None:
        kfd = self.root / "class/kfd/kfd"
        for directory in (kfd / f"topology/nodes/{name}", kfd / f"proc/{pid}"):
            directory.mkdir(parents=True)
        (kfd / f"topology/nodes/{name}/properties").write_text(f"drm_render_minor {name}\n")
        (kfd / f"topology/nodes/{name}/gpu_id").write_text(f"7{ord(name)}\n")
        (kfd / f"proc/{pid}/vram_7{ord(name)}").write_text(f"{amount}\n")

    def silence(self) -> None:
        shutil.rmtree(self.root / "class")

    def read(self) -> Mapping[str, Health]:
        devices = [Device(name, "amd", "x", render_node=Path(f"/dev/dri/{name}")) for name in "ab"]
        return AmdHealth(self.root).read(tuple(devices))

    def _node(self, name: str) -> Path:
        return self.root / "class/drm" / name


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("nvml")
    command = ["cc", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run([*command, "-o", str(directory / "libnvidia-ml.so.1"), str(SOURCE)], check=True)
    return directory


@pytest.fixture(params=["fake", "nvml", "sysfs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "fake":
        return FakePlace()
    if request.param == "sysfs":
        return SysfsPlace(tmp_path)
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    return NvmlPlace(request.getfixturevalue("driver"), tmp_path / "devices")


def test_a_device_that_answers_is_not_lost_and_says_how_busy_and_how_full_it_is(place: Place) -> None:
    place.be("a", util=37, used=0.25)
    place.be("b", util=0, used=1.0)
    found = place.read()
    assert [(found[n].lost, found[n].util, found[n].memory) for n in "ab"] == [
        (False, 37, 0.25),
        (False, 0, 1.0),
    ]


def test_what_a_device_does_not_say_is_unknown_and_costs_nothing_else(place: Place) -> None:
    place.be("a", used=0.5)
    place.be("b", util=5)
    found = place.read()
    assert (found["a"].lost, found["a"].util, found["a"].memory) == (False, None, 0.5)
    assert (found["b"].lost, found["b"].util, found["b"].memory) == (False, 5, None)


def test_a_device_that_has_gone_is_lost_and_the_other_one_is_not(place: Place) -> None:
    place.be("a", util=1, used=0.1)
    place.be("b", util=1, used=0.1)
    place.lose("b")
    found = place.read()
    assert (found["a"].lost, found["b"].lost) == (False, True)


def test_who_is_on_a_device_is_told_with_how_much_of_its_memory(place: Place) -> None:
    place.be("a", used=0.5)
    place.be("b", used=0.5)
    place.use("b", 4121, 300)
    found = place.read()
    assert found["b"].processes == (ProcessOnDevice(4121, used_bytes=300),)
    assert not found["a"].processes


def test_how_full_a_device_is_is_known_in_bytes_too(place: Place) -> None:
    place.be("a", used=0.25)
    assert place.read()["a"].used_bytes == 250


def test_nothing_is_known_where_the_driver_itself_has_gone(place: Place) -> None:
    place.be("a", util=1, used=0.1)
    place.silence()
    assert all(health == Health() for health in place.read().values())
