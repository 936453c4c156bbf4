"""The facts about an engine from its own words, and what is asked of it then."""

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from runner.adapters.docker.engine import in_force, read_engine, report_engine
from runner.adapters.docker.hardening import HardeningSettings
from runner.core.doctor import EngineFacts

WANTED = HardeningSettings("store", apparmor="runner-job")
DOCKER: dict[str, Any] = {"Components": [{"Name": "Engine"}, {"Name": "containerd"}]}
PODMAN: dict[str, Any] = {"Components": [{"Name": "Podman Engine"}, {"Name": "Conmon"}]}


@pytest.mark.parametrize(
    ("options", "version", "seen"),
    [
        (["name=apparmor", "name=seccomp,profile=default"], DOCKER, EngineFacts(apparmor=True)),
        (["name=userns"], DOCKER, EngineFacts(maps_users=True)),
        (["name=seccomp,profile=default", "name=rootless"], DOCKER, EngineFacts(rootless=True)),
        (["name=rootless"], PODMAN, EngineFacts(rootless=True, podman=True)),
        (None, {"Components": None}, EngineFacts()),
    ],
)
def test_what_an_engine_offers_is_read_from_its_own_words(
    options: list[str] | None, version: dict[str, Any], seen: EngineFacts
) -> None:
    assert read_engine({"SecurityOptions": options}, version) == seen


def test_a_profile_is_asked_for_where_the_host_has_apparmor_and_missed_aloud_elsewhere() -> None:
    with_it, without = EngineFacts(apparmor=True), EngineFacts()
    assert in_force(WANTED, with_it) == WANTED
    assert in_force(WANTED, without).apparmor is None
    with capture_logs() as log:
        report_engine(with_it, WANTED)
    assert [each["event"] for each in log] == ["engine.isolation"]
    with capture_logs() as log:
        report_engine(without, WANTED)
    assert [each["event"] for each in log] == ["engine.isolation", "engine.no_apparmor"]


def test_jobs_get_the_users_of_the_host_where_the_engine_maps_them_and_the_log_says_so() -> None:
    plain, maps = HardeningSettings("store"), EngineFacts(maps_users=True)
    assert in_force(plain, EngineFacts()).user_namespace == "engine"
    assert in_force(plain, maps).user_namespace == "host"
    with capture_logs() as log:
        report_engine(maps, plain)
    assert (log[-1]["event"], log[-1]["chosen"]) == ("engine.maps_users", "user_namespace: host")
    with capture_logs() as log:
        report_engine(maps, HardeningSettings("store", user_namespace="host"))
    assert len(log) == 1


@pytest.mark.parametrize(
    ("engine", "name"),
    [
        (EngineFacts(rootless=True), "rootless Docker"),
        (EngineFacts(podman=True), "Podman"),
        (EngineFacts(podman=True, rootless=True), "Podman"),
    ],
)
def test_an_engine_without_support_is_refused_in_one_line_with_the_next_step(
    engine: EngineFacts, name: str
) -> None:
    assert engine.refusal is not None
    assert engine.refusal.startswith(f"{name} is not supported: ")
    assert "executor: process" in engine.refusal
    assert "\n" not in engine.refusal


@pytest.mark.parametrize("engine", [EngineFacts(), EngineFacts(maps_users=True), EngineFacts("is down")])
def test_docker_of_root_is_supported_in_all_its_forms(engine: EngineFacts) -> None:
    assert engine.refusal is None


def _specify(root: Path, name: str, text: str) -> str:
    place = root / "etc/cdi" / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    return str(place)


def test_specifications_are_known_by_their_kind_and_a_bad_file_does_not_end_the_look(tmp_path: Path) -> None:
    bad = _specify(tmp_path, "a.yaml", "kind: [nvidia.com/gpu\n")
    no = _specify(tmp_path, "b.json", "[]")
    management = "kind: management.nvidia.com/gpu\ndevices:\n- name: all\n"
    _specify(tmp_path, "management.nvidia.com-gpu.yaml", management)
    _specify(tmp_path, "nic.yaml", "kind: example.com/nic\n# beside nvidia.com/gpu\n")
    _specify(tmp_path, "notes.txt", "kind: nvidia.com/gpu\n")
    good = _specify(tmp_path, "nvidia.yaml", "kind: nvidia.com/gpu\ndevices:\n- name: GPU-h0\n- name: 0\n")
    (tmp_path / "etc/cdi/gone.yaml").symlink_to("nowhere")
    seen = read_engine({}, DOCKER, tmp_path)
    assert (seen.cdi_files, seen.cdi_devices) == ((good,), ("0", "GPU-h0"))
    assert seen.cdi_unreadable == (bad, no, str(tmp_path / "etc/cdi/gone.yaml"))


def test_unusual_specifications_are_read_and_no_broken_one_hides_another(tmp_path: Path) -> None:
    _specify(tmp_path, "a.json", '{"kind":\t"nvidia.com/gpu",\n\t"devices": [{"name": "GPU-a"}]}')
    anchors = "%YAML 1.1\n---\nkind: &k nvidia.com/gpu\nannotations: {of: *k}\ndevices:\n"
    slices = "- {name: 1:0, annotations: {x: y}, containerEdits: &e {intelRdt: {closID: a}}}\n"
    _specify(
        tmp_path, "b.yaml", f"{anchors}{slices}- <<: {{containerEdits: *e}}\n  name: 010\n- {{name: all}}\n"
    )
    _specify(tmp_path, "c.yaml", "kind: nvidia.com/gpu\ndevices:\n")
    bad = {
        _specify(tmp_path, "d.json", "[" * 100_000),
        _specify(tmp_path, "e.yaml", "[" * 20_000),
        _specify(tmp_path, "f.yaml", "kind: nvidia.com/gpu\n---\nkind: nvidia.com/gpu\n"),
        _specify(tmp_path, "g.yaml", "kind: nvidia.com/gpu\ndevices: {name: all}\n"),
    }
    seen = read_engine({}, DOCKER, tmp_path)
    assert seen.cdi_devices == ("010", "1:0", "GPU-a", "all")
    assert set(seen.cdi_unreadable) == bad


def test_what_the_engine_has_discovered_counts_before_the_files(tmp_path: Path) -> None:
    _specify(tmp_path, "nvidia.yaml", "kind: nvidia.com/gpu\ndevices:\n- name: GPU-stale\n")
    ids = ["nvidia.com/gpu=GPU-h0", "example.com/nic=GPU-no"]
    info = {"DiscoveredDevices": [{"Source": "cdi", "ID": each} for each in ids]}
    assert read_engine(info, DOCKER, tmp_path).cdi_devices == ("GPU-h0",)


def test_the_disk_the_store_the_cgroups_and_the_swap_are_the_engines_own_words(tmp_path: Path) -> None:
    (tmp_path / "srv/docker").mkdir(parents=True)
    info = {
        "DockerRootDir": "/srv/docker",
        "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]],
        "CgroupVersion": "2",
        "CgroupDriver": "systemd",
        "SwapLimit": False,
    }
    seen = read_engine(info, DOCKER, tmp_path)
    assert (seen.place, seen.containerd_store, seen.cgroup, seen.swap_limit) == (
        "/srv/docker", True, "version 2 by systemd", False,
    )  # fmt: skip
    assert seen.free_bytes
    assert read_engine({"DockerRootDir": "/on/another/machine"}, DOCKER, tmp_path).free_bytes is None
