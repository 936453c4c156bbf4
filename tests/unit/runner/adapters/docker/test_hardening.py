"""The hardened profile and the check that an engine applied it, both pure."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.adapters.docker.hardening import (
    IMAGE_FORBIDDEN,
    HardeningSettings,
    Json,
    engine_arguments,
    find_differences,
    key_of,
)
from runner.base.errors import Refused
from runner.core.ports.devices import Device
from runner.core.ports.executor import Key, LaunchRequest, Limits, Mount
from runner.core.ports.users import Owner

SETTINGS = HardeningSettings("i1", boot_id="boot")
REQUEST = LaunchRequest(
    key=Key("i1", "j7", 3),
    job_name="tiny",
    owner=Owner(1000, 1001, "ada"),
    image="sha256:1",
    argv=("python", "-m", "jobs"),
    run_dir=Path("/state/jobs/j7"),
    log=Path("/state/jobs/j7/attempts/3/log.txt"),
    limits=Limits(1.5, 2 * 1024**3, shm_bytes=1024**3, pids=100),
    environment={"SEED": "1"},
)
H100 = Device("GPU-1", "nvidia", "H100")
MI300 = Device("GPU-2", "amd", "MI300X", render_node=Path("/dev/dri/renderD129"))


def _config(
    request: LaunchRequest = REQUEST, settings: HardeningSettings = SETTINGS, gids: tuple[int, ...] = ()
) -> Json:
    config = engine_arguments(request, settings, gids)["config"]
    assert isinstance(config, dict)
    return config


def _host(
    request: LaunchRequest = REQUEST, settings: HardeningSettings = SETTINGS, gids: tuple[int, ...] = ()
) -> Json:
    return dict(_config(request, settings, gids)["HostConfig"])


def _environment(request: LaunchRequest = REQUEST, settings: HardeningSettings = SETTINGS) -> dict[str, str]:
    return dict(variable.split("=", 1) for variable in _config(request, settings)["Env"])


def test_the_arguments_are_json_so_that_a_dry_run_can_print_them() -> None:
    arguments = engine_arguments(REQUEST, SETTINGS)
    assert json.loads(json.dumps(arguments)) == arguments
    assert arguments["name"] == "runner-i1-j7-3"


def test_the_job_is_its_owner_by_both_numbers_and_has_no_powers() -> None:
    host = _host()
    assert _config()["User"] == "1000:1001"
    assert (host["CapDrop"], host["CapAdd"], host["Privileged"]) == (["ALL"], [], False)
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    assert host["ReadonlyRootfs"] is True
    assert (host["IpcMode"], host["PidMode"], host["UTSMode"]) == ("private", "", "")


def test_limits_leave_no_swap_and_no_core_files() -> None:
    host = _host()
    assert host["Memory"] == host["MemorySwap"] == 2 * 1024**3
    assert (host["NanoCpus"], host["PidsLimit"], host["ShmSize"]) == (1_500_000_000, 100, 1024**3)
    assert {"Name": "core", "Soft": 0, "Hard": 0} in host["Ulimits"]
    assert "exec" in host["Tmpfs"]["/tmp"].split(",")


def test_an_exit_is_kept_for_us_to_read() -> None:
    host = _host()
    assert (host["AutoRemove"], host["RestartPolicy"]["Name"], host["Init"]) == (False, "no", True)


def test_the_attempt_appends_to_its_own_log() -> None:
    config = _config()
    assert config["Entrypoint"][:2] == ["/bin/sh", "-c"]
    assert config["Entrypoint"][-3:] == ["runner", "/job", "/job/attempts/3/log.txt"]
    assert config["Cmd"] == ["python", "-m", "jobs"]


def test_the_environment_answers_what_libraries_ask_the_password_file() -> None:
    found = _environment()
    assert (found["HOME"], found["USER"], found["LOGNAME"]) == ("/job/home", "ada", "ada")
    assert found["TORCHINDUCTOR_CACHE_DIR"].startswith("/tmp/")
    assert (found["SEED"], found["NVIDIA_VISIBLE_DEVICES"]) == ("1", "void")


def test_a_value_with_a_newline_and_an_equals_sign_arrives_whole() -> None:
    assert _environment(replace(REQUEST, environment={"A": "b=c\nd"}))["A"] == "b=c\nd"


@pytest.mark.parametrize("owner", [Owner(0, 1000, "root"), Owner(1000, 0, "wheel")])
def test_root_is_refused_by_user_and_by_group(owner: Owner) -> None:
    with pytest.raises(Refused, match="never run as root"):
        _config(replace(REQUEST, owner=owner))


@pytest.mark.parametrize(
    "name",
    ["LD_PRELOAD", "LD_LIBRARY_PATH", "NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "DOCKER_HOST"],
)
def test_a_job_may_not_steer_the_loader_or_the_devices(name: str) -> None:
    with pytest.raises(Refused, match=name):
        _config(replace(REQUEST, environment={name: "x"}))


@pytest.mark.parametrize("name", ["", "A=B", "1A", "A B", "A\n"])
def test_a_variable_must_have_the_name_of_one(name: str) -> None:
    with pytest.raises(Refused, match="not a variable"):
        _config(replace(REQUEST, environment={name: "x"}))


@pytest.mark.parametrize("job_id", ["", "../x", "a b", "-x", "a/b"])
def test_a_name_that_could_be_read_as_something_else_is_refused(job_id: str) -> None:
    with pytest.raises(Refused, match="use letters"):
        _config(replace(REQUEST, key=Key("i1", job_id, 1)))


@pytest.mark.parametrize(
    "target", ["/", "/..", "data", "/etc", "/proc/1", "/dev/shm", "/usr/lib", "/data/../etc"]
)
def test_a_mount_may_not_cover_the_system(target: str) -> None:
    with pytest.raises(Refused, match="mount target"):
        _config(replace(REQUEST, mounts=(Mount(Path("/srv"), Path(target)),)))


@pytest.mark.parametrize("target", ["/job", "/job/attempts", "/run", "/run/secrets"])
def test_a_mount_may_not_cover_what_the_runner_mounts(target: str) -> None:
    with pytest.raises(Refused, match="mount target"):
        _config(replace(REQUEST, mounts=(Mount(Path("/srv"), Path(target)),)))


@pytest.mark.parametrize("inner", ["/data/x", "/data/x/y", "//data/x/y"])
def test_a_mount_may_not_lie_in_another_where_the_engine_would_make_its_place(inner: str) -> None:
    targets = ("/data/x-y", "/data/x", inner)
    with pytest.raises(Refused, match=f"{inner.lstrip('/')}': overlaps with another"):
        _config(replace(REQUEST, mounts=tuple(Mount(Path("/srv"), Path(each)) for each in targets)))


def test_mounts_are_private_and_refuse_a_missing_source() -> None:
    mounts = (Mount(Path("/srv/x"), Path("/data/x")), Mount(Path("/k"), Path("/run/secrets/k")))
    host = _host(replace(REQUEST, mounts=mounts))
    assert host["Binds"] == []  # they would create it, as root
    assert [(m["Source"], m["Target"], m["ReadOnly"]) for m in host["Mounts"]] == [
        ("/state/jobs/j7", "/job", False),
        ("/srv/x", "/data/x", True),
        ("/k", "/run/secrets/k", True),
    ]
    assert all(m["BindOptions"] == {"Propagation": "rprivate"} for m in host["Mounts"])


def test_a_log_outside_the_run_directory_is_refused() -> None:
    with pytest.raises(Refused, match="not below"):
        _config(replace(REQUEST, log=Path("/etc/log.txt")))


def test_there_is_no_network_unless_the_site_names_one() -> None:
    assert _host()["NetworkMode"] == "none"
    assert _host(replace(REQUEST, network="lab"))["NetworkMode"] == "lab"


def test_without_a_network_the_engine_makes_none_where_the_loopback_has_its_names() -> None:
    hosts = Path("/state/hosts")
    named = replace(SETTINGS, hosts_file=hosts)
    bind = {"Source": "/state/hosts", "Target": "/etc/hosts", "ReadOnly": True}
    for request, settings, spared in (
        (REQUEST, named, True),
        (REQUEST, SETTINGS, False),
        (replace(REQUEST, network="lab"), named, False),
    ):
        config = engine_arguments(request, settings)["config"]
        assert config["NetworkDisabled"] is spared
        mounts = config["HostConfig"]["Mounts"]
        assert [mount for mount in mounts if bind.items() <= mount.items()] == mounts[1:] * spared


def test_an_engine_may_make_a_network_that_leads_nowhere_all_the_same() -> None:
    asked = engine_arguments(REQUEST, replace(SETTINGS, hosts_file=Path("/state/hosts")))
    inspected = _obeyed(asked)
    del inspected["Config"]["NetworkDisabled"]
    assert not find_differences(asked, inspected)
    inspected["HostConfig"]["NetworkMode"] = "bridge"
    assert find_differences(asked, inspected)


@pytest.mark.parametrize("network", ["host", "container:x", "default"])
def test_a_network_that_is_no_wall_is_refused(network: str) -> None:
    with pytest.raises(Refused, match="network"):
        _config(replace(REQUEST, network=network))


def test_nvidia_comes_in_by_cdi() -> None:
    request = replace(REQUEST, devices=(H100,))
    host = _host(request)
    assert host["DeviceRequests"] == [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=GPU-1"]}]
    assert (host["Runtime"], host["Devices"]) == ("runc", [])
    assert _environment(request)["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_nvidia_comes_in_by_the_hook_where_the_operator_says_so() -> None:
    request, settings = replace(REQUEST, devices=(H100,)), replace(SETTINGS, gpu_injection="hook")
    host = _host(request, settings)
    assert (host["Runtime"], host["DeviceRequests"]) == ("nvidia", [])
    assert _environment(request, settings)["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"
    assert _host(REQUEST, settings)["Runtime"] == "runc"  # a job without a device stays away from the hook
    assert _environment(REQUEST, settings)["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_amd_comes_in_as_two_nodes_and_numeric_groups_but_never_roots() -> None:
    host = _host(replace(REQUEST, devices=(MI300,)), gids=(0, 44, 109))
    assert [device["PathOnHost"] for device in host["Devices"]] == ["/dev/kfd", "/dev/dri/renderD129"]
    assert host["GroupAdd"] == ["44", "109"]
    assert host["DeviceRequests"] == []


def test_a_configured_seccomp_profile_is_sent_as_text() -> None:
    assert "seccomp={}" in _host(settings=replace(SETTINGS, seccomp="{}"))["SecurityOpt"]
    assert "apparmor=runner-job" in _host(settings=replace(SETTINGS, apparmor="runner-job"))["SecurityOpt"]
    assert _host(settings=replace(SETTINGS, user_namespace="host"))["UsernsMode"] == "host"


def test_memory_can_be_pinned_where_the_operator_says_so() -> None:
    limits = _host(settings=replace(SETTINGS, memlock_unlimited=True))["Ulimits"]
    assert {"Name": "memlock", "Soft": -1, "Hard": -1} in limits


# --- What an image sets -------------------------------------------------------------------------------

LAB_IMAGE = (
    "PATH=/usr/bin",
    "LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64",
    'LD_PRELOAD=/opt/it\'s "a" $(touch x).so',
    "LD_EMPTY=",
    "LD_A;touch x=y",
    "NVIDIA_VISIBLE_DEVICES=all",
    "NVIDIA_DRIVER_CAPABILITIES=all",
    "NVIDIA_DISABLE_REQUIRE=0",
    "NVIDIA_REQUIRE_CUDA=cuda>=12.8 brand=tesla,driver>=535",
    "NVIDIA_PRODUCT_NAME=CUDA",
    "AMD_VISIBLE_DEVICES=all",
    "CUDA_VERSION=12.8.1",
)


def _overridden(**environment: str) -> dict[str, str]:
    arguments = engine_arguments(
        replace(REQUEST, environment=environment), SETTINGS, image_variables=LAB_IMAGE
    )
    return dict(variable.split("=", 1) for variable in arguments["config"]["Env"])


def test_hooks_never_see_what_an_image_sets_for_them() -> None:
    found = _overridden()
    seen_by_hooks = {**dict(each.split("=", 1) for each in LAB_IMAGE), **found}
    assert {name: value for name, value in seen_by_hooks.items() if IMAGE_FORBIDDEN.fullmatch(name)} == {
        "LD_LIBRARY_PATH": "",
        "LD_PRELOAD": "",
        "LD_EMPTY": "",
        "LD_A;touch x": "",
        "NVIDIA_VISIBLE_DEVICES": "void",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        "NVIDIA_DISABLE_REQUIRE": "1",
        "NVIDIA_REQUIRE_CUDA": "",
        "NVIDIA_PRODUCT_NAME": "",
        "AMD_VISIBLE_DEVICES": "",
    }
    assert "CUDA_VERSION" not in found


def test_an_image_that_sets_nothing_of_that_is_asked_for_as_before() -> None:
    plain = ("PATH=/usr/bin", "NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_DRIVER_CAPABILITIES=compute,utility")
    assert engine_arguments(REQUEST, SETTINGS, image_variables=plain) == ASKED


# --- What the engine made of it ----------------------------------------------------------------------


def _obeyed(asked: Json) -> Json:
    """Return what an obedient engine would show, with empty values dropped as engines do."""
    config = copy.deepcopy(asked["config"])
    host = {**config.pop("HostConfig"), "CapAdd": None, "Binds": None, "MaskedPaths": ["/proc/kcore"]}
    host |= {"ReadonlyPaths": ["/proc/sys"], "ConsoleSize": [0, 0]}
    config["Env"].append("PATH=/usr/bin")
    config["Healthcheck"]["Interval"] = 10**9  # engines mix the image's in
    config["Labels"]["org.opencontainers.image.title"] = "x"
    mounts = [{"Type": "bind", "Source": m["Source"], "Destination": m["Target"]} for m in host["Mounts"]]
    return {"Config": config, "HostConfig": host, "Mounts": mounts}


ASKED = engine_arguments(REQUEST, SETTINGS)


def test_an_obedient_engine_differs_in_nothing() -> None:
    assert find_differences(ASKED, _obeyed(ASKED)) == []


def _set(part: str, field: str, value: object) -> Callable[[Json], None]:
    def change(inspected: Json) -> None:
        inspected[part][field] = value

    return change


def _append(part: str, field: str, value: object) -> Callable[[Json], None]:
    def change(inspected: Json) -> None:
        inspected[part][field].append(value)

    return change


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (_set("HostConfig", "Privileged", value=True), "HostConfig.Privileged is True"),
        (_set("HostConfig", "CapDrop", None), "HostConfig.CapDrop is None"),
        (_set("HostConfig", "CapAdd", ["SYS_ADMIN"]), "HostConfig.CapAdd"),
        (_set("HostConfig", "SecurityOpt", ["seccomp=unconfined"]), "HostConfig.SecurityOpt"),
        (_set("HostConfig", "ReadonlyRootfs", value=False), "HostConfig.ReadonlyRootfs"),
        (_set("HostConfig", "NetworkMode", "bridge"), "HostConfig.NetworkMode"),
        (_set("HostConfig", "Runtime", "nvidia"), "HostConfig.Runtime"),
        (_set("HostConfig", "Memory", 0), "HostConfig.Memory"),
        (_set("HostConfig", "PidMode", "host"), "HostConfig.PidMode"),
        (_set("HostConfig", "Binds", ["/:/host"]), "HostConfig.Binds"),
        (_set("HostConfig", "Devices", [{"PathOnHost": "/dev/sda"}]), "HostConfig.Devices"),
        (_set("HostConfig", "MaskedPaths", []), "not masked"),
        (_set("HostConfig", "LogConfig", {"Type": "none", "Config": {}}), "HostConfig.LogConfig"),
        (_set("Config", "User", "1000"), "User is '1000'"),
        (_set("Config", "Entrypoint", ["/evil"]), "Entrypoint is"),
        (_set("Config", "Healthcheck", {"Test": ["CMD", "x"]}), "health check"),
        (_set("Config", "Labels", {}), "label runner.instance"),
        (_set("Config", "Volumes", {"/var/x": {}}), "declares the volume /var/x"),
        (_set("Config", "Env", []), "variable HOME differs from the request"),
        (_append("Config", "Env", "LD_PRELOAD=/evil.so"), "image sets LD_PRELOAD"),
        (_append("Config", "Env", "NVIDIA_REQUIRE_CUDA=x"), "image sets NVIDIA_REQUIRE_CUDA"),
    ],
)
def test_a_container_that_differs_from_its_request_is_found(
    change: Callable[[Json], None], complaint: str
) -> None:
    inspected = _obeyed(ASKED)
    change(inspected)
    found = find_differences(ASKED, inspected)
    assert found
    assert any(complaint in line for line in found), found


def test_a_mount_that_was_not_requested_is_found() -> None:
    inspected = _obeyed(ASKED)
    inspected["Mounts"].append({"Type": "bind", "Source": "/", "Destination": "/host"})
    assert find_differences(ASKED, inspected) == ["/ is mounted at /host, which was not requested"]


# --- Whose is it? --------------------------------------------------------------------------------------


def _labels(**changes: Any) -> dict[str, str]:
    return {**_config()["Labels"], **{name.replace("_", "."): value for name, value in changes.items()}}


def _listed(labels: dict[str, str], name: str, **run_directory: str) -> dict[str, Any]:
    mounts = [{"Destination": "/job", **run_directory}] if run_directory else []
    return {"Labels": labels, "Names": [f"/{name}"], "Mounts": mounts}


def test_labels_and_name_together_give_the_key() -> None:
    assert key_of(_listed(_labels(), "runner-i1-j7-3")) == Key("i1", "j7", 3)


def test_a_renamed_container_is_known_by_its_labels_and_its_run_directory() -> None:
    renamed = _listed(_labels(), "renamed", Source="/srv/runner/jobs/j7")
    assert key_of(renamed) == Key("i1", "j7", 3)
    assert key_of(_listed(_labels(), "committed", Source="/srv/runner/jobs/j8")) is None


@pytest.mark.parametrize(
    ("labels", "name"),
    [
        ({}, "runner-i1-j7-3"),
        (_labels(), "somebody-elses"),
        (_labels(runner_attempt="x"), "runner-i1-j7-x"),
        (_labels(runner_job="../x"), "runner-i1-../x-3"),
    ],
)
def test_labels_that_an_image_forged_are_nobodys(labels: dict[str, str], name: str) -> None:
    assert key_of(_listed(labels, name)) is None
