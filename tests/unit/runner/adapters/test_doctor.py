"""Facts collected from made-up file systems."""

from pathlib import Path

import pytest

from runner.adapters import doctor
from runner.adapters.doctor import FactCollector, groups_of_this_process
from runner.core.doctor import AmdFacts, NvidiaFacts


def tree(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def gpu(root: Path, address: str, vendor: str, kind: str = "0x030200") -> None:
    device = root / "sys/bus/pci/devices" / address
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    (device / "class").write_text(f"{kind}\n")


@pytest.fixture
def _no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "describe_driver", lambda: NvidiaFacts(nvml_error="not loaded"))


@pytest.mark.usefixtures("_no_driver")
def test_gpus_on_the_bus_and_their_nodes_are_found(tmp_path: Path) -> None:
    gpu(tmp_path, "0000:17:00.0", "0x10de")
    gpu(tmp_path, "0000:18:00.0", "0x10de", "0x020000")  # no display device
    tree(
        tmp_path,
        sys__module__nvidia__version="570.86.10\n",
        dev__nvidia0="",
        dev__nvidiactl="",
        dev__other="",
    )
    facts = FactCollector(tmp_path).nvidia()
    assert (facts.on_bus, facts.driver, facts.nvml_error) == (1, "570.86.10", "not loaded")
    assert [node.path for node in facts.nodes] == ["/dev/nvidia0", "/dev/nvidiactl"]
    assert all(node.accessible for node in facts.nodes)


def test_amds_driver_and_nodes_are_found(tmp_path: Path) -> None:
    gpu(tmp_path, "0000:17:00.0", "0x1002", "0x120000")
    (tmp_path / "sys/module/amdgpu").mkdir(parents=True)
    (tmp_path / "sys/module/amdgpu/version").write_text("6.14.14\n")
    tree(tmp_path, dev__kfd="", dev__dri__renderD128="", dev__dri__card0="")
    facts = FactCollector(tmp_path).amd()
    assert (facts.on_bus, facts.driver, facts.version, facts.gpus) == (1, True, "6.14.14", ())
    assert facts.kfd is not None
    assert [node.path for node in facts.render] == ["/dev/dri/renderD128"]


def test_an_empty_machine_has_nothing(tmp_path: Path) -> None:
    collector = FactCollector(tmp_path / "none", tmp_path / "state")
    assert collector.amd() == AmdFacts()
    host = collector.host()
    assert (host.cgroup, host.shm_bytes, host.inotify_watches, host.clock_synchronized) == (None,) * 4
    assert host.disk_free_bytes is not None


@pytest.mark.parametrize(("files", "version"), [({"cgroup.controllers": ""}, 2), ({"memory/tasks": ""}, 1)])
def test_the_version_of_cgroups_is_seen(tmp_path: Path, files: dict[str, str], version: int) -> None:
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert FactCollector(tmp_path).host().cgroup == version


@pytest.mark.parametrize(
    ("path", "known"),
    [("systemd/timesync/synchronized", True), ("chrony/x", True), ("systemd/timesync/x", False)],
)
def test_a_time_service_says_whether_the_clock_is_kept(tmp_path: Path, path: str, known: bool) -> None:  # noqa: FBT001
    file = tmp_path / "run" / path
    file.parent.mkdir(parents=True)
    file.touch()
    assert FactCollector(tmp_path).host().clock_synchronized is known


def test_limits_are_read(tmp_path: Path) -> None:
    tree(tmp_path, proc__sys__fs__inotify__max_user_watches="8192\n", dev__shm__x="")
    host = FactCollector(tmp_path).host()
    assert host.inotify_watches == 8192
    assert host.shm_bytes


def test_this_process_has_a_group() -> None:
    assert groups_of_this_process()
