"""Whole hosts of AMD devices, as trees like the kernel's."""

from pathlib import Path

import pytest

from runner.adapters.gpu.amd import AmdHealth, AmdProbe
from runner.core.devices.reading import Health, ProcessOnDevice
from runner.core.ports.devices import Device
from tests.fakes.gpu.hosts import GIB, Sysfs, mi300xs, strix_halo


def devices(root: Path) -> tuple[Device, ...]:
    return AmdProbe(root, root / "dev").devices()


def health(root: Path, number: int = 0) -> Health:
    found = devices(root)
    return AmdHealth(root).read(found)[found[number].uuid]


def test_eight_mi300x_are_one_island_on_two_memory_nodes(tmp_path: Path) -> None:
    mi300xs(tmp_path)
    found = devices(tmp_path)
    assert [each.label for each in found] == [f"GPU-{i}" for i in range(8)]
    assert {each.link_group for each in found} == {"xgmi-1"}
    assert [each.numa for each in found] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert {(each.memory_bytes, each.unified, each.kind) for each in found} == {(192 * GIB, False, "whole")}


def test_links_to_processors_join_nobody(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    for _ in range(2):
        sysfs.gpu({}, {"gfx_target_version": 90402}, links=(0,))
    assert [each.link_group for each in devices(tmp_path)] == [None, None]


def test_an_apu_computes_in_memory_of_the_host(tmp_path: Path) -> None:
    strix_halo(tmp_path)
    [device] = devices(tmp_path)
    assert (device.name, device.memory_bytes, device.unified) == ("AMD gfx1151", 120 * GIB, True)
    assert (device.link_group, device.numa) == (None, 0)
    assert (health(tmp_path).used_bytes, health(tmp_path).memory) == (5 * GIB, 5 / 120)


def test_a_look_tells_memory_power_heat_and_errors(tmp_path: Path) -> None:
    mi300xs(tmp_path, 2)
    found = health(tmp_path)
    assert (found.used_bytes, found.power_w, found.temperature_c) == (300 * 1024**2, 140.0, 38.0)
    assert (found.ecc_uncorrectable, found.util, found.throttled) == (0, 0.0, None)


def test_power_is_also_known_under_its_other_name(tmp_path: Path) -> None:
    sysfs = strix_halo(tmp_path)
    assert (health(tmp_path).power_w, health(tmp_path).ecc_uncorrectable) == (None, None)
    (tmp_path / "class/drm/renderD128/device/hwmon/hwmon4").mkdir(parents=True)
    (tmp_path / "class/drm/renderD128/device/hwmon/hwmon4/power1_input").write_text("9000000\n")
    assert (health(tmp_path).power_w, health(tmp_path).energy_j) == (9.0, None)
    (tmp_path / "class/drm/renderD128/device/hwmon/hwmon4/energy1_input").write_text("7500000\n")
    assert health(tmp_path).energy_j == 7.5
    assert sysfs.count == 1


def test_who_has_memory_or_queues_uses_a_device_and_who_only_opened_the_driver_does_not(
    tmp_path: Path,
) -> None:
    sysfs = mi300xs(tmp_path, 2)
    assert health(tmp_path).processes is None  # no such directory: nobody knows
    sysfs.use(0, 4121, 3 * GIB)
    sysfs.use(1, 4122, 0)
    sysfs.use(1, 4123, 0, queues=0)
    assert health(tmp_path, 0).processes == (ProcessOnDevice(4121, used_bytes=3 * GIB),)
    assert health(tmp_path, 1).processes == (ProcessOnDevice(4122, used_bytes=0),)


def test_render_nodes_are_counted_as_numbers(tmp_path: Path) -> None:
    sysfs = mi300xs(tmp_path, 8)
    sysfs.count = 72
    sysfs.gpu({"unique_id": "ff"}, {"gfx_target_version": 90402})
    assert devices(tmp_path)[-1].uuid == "GPU-ff"


@pytest.mark.parametrize("text", ["", "many", "-"])
def test_what_is_no_number_is_unknown(tmp_path: Path, text: str) -> None:
    mi300xs(tmp_path, 1).say(0, mem_info_vram_used=text, gpu_busy_percent=text)
    found = health(tmp_path)
    assert (found.used_bytes, found.memory, found.util, found.lost) == (None, None, None, False)


@pytest.mark.parametrize("serials", [True, False])
def test_the_partitions_of_a_card_are_devices_of_their_own(tmp_path: Path, *, serials: bool) -> None:
    sysfs = mi300xs(tmp_path, 2)
    sysfs.divide(1, 8, serials)
    found = devices(tmp_path)
    assert [each.label for each in found] == ["GPU-0", *(f"GPU-1:{part}" for part in range(8))]
    assert len({each.uuid for each in found}) == 9
    assert [each.render_node.name for each in found if each.render_node] == [
        f"renderD{number}" for number in range(128, 137)
    ]
    whole, *parts = found
    assert (whole.kind, whole.memory_bytes, whole.parent) == ("whole", 192 * GIB, None)
    shared = {(each.kind, each.memory_bytes, each.parent, each.name, each.numa) for each in parts}
    assert shared == {("slice", 24 * GIB, "GPU-00000000a0000002", "AMD Instinct MI300X OAM", 0)}
    sysfs.use(3, 4711, 5 * GIB)
    health = AmdHealth(tmp_path).read(found)
    used = [
        (each.used_bytes, len(each.processes or ()))
        for each in map(health.get, (d.uuid for d in parts))
        if each
    ]
    assert used == [(0, 0), (0, 0), (5 * GIB, 1), *[(0, 0)] * 5]
    assert {(each.power_w, each.temperature_c, each.lost) for each in health.values()} == {
        (140.0, 38.0, False)
    }
