from pathlib import Path

import pytest

from runner.adapters.gpu.amd import AmdProbe
from runner.core.ports.devices import Device


class Sysfs:
    """A tree of files like the kernel's."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.probe = AmdProbe(root / "sys", root / "dev")

    def gpu(self, minor: int, *, vendor: str = "0x1002", **files: str) -> None:
        self._write(f"class/drm/renderD{minor}/device", {"vendor": vendor, **files})

    def compute(self, number: int, **properties: int) -> None:
        text = "".join(f"{name} {value}\n" for name, value in properties.items())
        self._write(f"class/kfd/kfd/topology/nodes/{number}", {"properties": text})

    def _write(self, directory: str, files: dict[str, str]) -> None:
        path = self.root / "sys" / directory
        path.mkdir(parents=True)
        for name, text in files.items():
            (path / name).write_text(f"{text}\n")


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    return Sysfs(tmp_path)


def test_a_gpu_is_listed_with_the_node_that_a_container_needs(sysfs: Sysfs, tmp_path: Path) -> None:
    sysfs.gpu(
        128, unique_id="18f08b8b1c2e3d4f", product_name="Instinct MI300X", mem_info_vram_total="206141652992"
    )
    sysfs.compute(0, cpu_cores_count=64, drm_render_minor=0)
    sysfs.compute(1, drm_render_minor=128, gfx_target_version=90402)
    node = tmp_path / "dev/dri/renderD128"
    assert sysfs.probe.devices() == (
        Device("GPU-18f08b8b1c2e3d4f", "amd", "Instinct MI300X", 206141652992, node, label="GPU-0"),
    )


def test_absent_files_cost_only_their_own_field(sysfs: Sysfs) -> None:
    sysfs.gpu(128)
    sysfs.compute(1, drm_render_minor=128, gfx_target_version=110501)
    [device] = sysfs.probe.devices()
    assert (device.uuid, device.name, device.memory_bytes) == ("PCI-device", "AMD gfx1151", None)


def test_the_serial_number_of_the_compute_driver_stands_in(sysfs: Sysfs) -> None:
    sysfs.gpu(129)
    sysfs.compute(1, drm_render_minor=129, unique_id=0x18F08B8B1C2E3D4F)
    [device] = sysfs.probe.devices()
    assert (device.uuid, device.name) == ("GPU-18f08b8b1c2e3d4f", "AMD GPU")


def test_the_memory_of_an_apu_is_its_share_of_the_hosts(sysfs: Sysfs) -> None:
    sysfs.gpu(128, mem_info_vram_total=str(512 * 1024**2), mem_info_gtt_total=str(64 * 1024**3))
    sysfs.compute(1, drm_render_minor=128)
    assert [device.memory_bytes for device in sysfs.probe.devices()] == [64 * 1024**3]


def test_other_vendors_and_displays_without_compute_are_left_out(sysfs: Sysfs) -> None:
    sysfs.gpu(128, vendor="0x10de")
    sysfs.gpu(129)
    assert sysfs.probe.devices() == ()


def test_a_machine_without_graphics_has_no_devices(sysfs: Sysfs) -> None:
    assert sysfs.probe.devices() == ()
