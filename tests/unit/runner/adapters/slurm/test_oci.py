"""Every wall that a container engine is asked for is a wall of the container on a node."""

import json
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from runner.adapters.docker.hardening import HardeningSettings, engine_arguments
from runner.adapters.slurm.oci import (
    CAPABILITIES,
    INIT,
    MACHINES,
    MASKED,
    NAMESPACES,
    READ_ONLY,
    NodeSettings,
    configuration,
    seccomp_filter,
)
from runner.core.ports.executor import Key, LaunchRequest, Limits, Mount
from runner.core.ports.users import Owner
from runner.files.settings.model import SHIPPED_SECCOMP

SECCOMP = SHIPPED_SECCOMP["runner"].read_text()
HARDENING = HardeningSettings("abc", hosts_file=Path("/shared/hosts"))
REQUEST = LaunchRequest(
    Key("abc", "7", 1),
    "tiny",
    Owner(1001, 1002, "ada"),
    "sha256:abc",
    ("python", "-c", "print('a b')"),
    Path("/shared/jobs/7"),
    Path("/shared/jobs/7/attempts/1/log.txt"),
    Limits(2.0, 2**30, shm_bytes=2**20, tmp_bytes=2**21),
)

MOUNTS = some.lists(
    some.builds(
        Mount,
        some.sampled_from([Path("/shared/a"), Path("/shared/it's")]),
        some.sampled_from([Path("/data/x"), Path("/data/y/z"), Path("/run/secrets/s"), Path("/code")]),
        some.booleans(),
    ),
    max_size=4,
    unique_by=lambda mount: mount.target,
)


def made(request: LaunchRequest, image: tuple[str, ...] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
    asked = engine_arguments(request, HARDENING)
    return asked, configuration(asked, Path("/images/i/rootfs"), image, NodeSettings(seccomp=SECCOMP))


@given(
    uid=some.integers(1, 2**31),
    gid=some.integers(1, 2**31),
    limits=some.builds(
        Limits,
        some.just(1.0),
        some.integers(2**20, 2**40),
        some.integers(2**20, 2**40),
        some.just(64),
        some.integers(2**20, 2**40),
    ),
    mounts=MOUNTS,
)
def test_every_wall_of_the_engine_is_a_wall_on_a_node(
    uid: int, gid: int, limits: Limits, mounts: list[Mount]
) -> None:
    request = replace(REQUEST, owner=Owner(uid, gid, "ada"), limits=limits, mounts=tuple(mounts))
    asked, config = made(request)
    host, process, linux = asked["config"]["HostConfig"], config["process"], config["linux"]
    assert f"{process['user']['uid']}:{process['user']['gid']}" == asked["config"]["User"]
    assert linux["uidMappings"] == [{"containerID": uid, "hostID": uid, "size": 1}]
    assert linux["gidMappings"] == [{"containerID": gid, "hostID": gid, "size": 1}]
    assert (host["CapDrop"], host["CapAdd"], host["Privileged"]) == (["ALL"], [], False)
    assert process["capabilities"] == {name: [] for name in CAPABILITIES}
    assert "no-new-privileges:true" in host["SecurityOpt"]
    assert process["noNewPrivileges"] is True
    assert config["root"] == {"path": "/images/i/rootfs", "readonly": host["ReadonlyRootfs"]}
    assert host["NetworkMode"] == "none"
    assert {each["type"] for each in linux["namespaces"]} == set(NAMESPACES)
    assert (linux["maskedPaths"], linux["readonlyPaths"]) == (list(MASKED), list(READ_ONLY))
    assert linux["seccomp"]["defaultAction"] == "SCMP_ACT_ERRNO"
    by_target = {each["destination"]: each for each in config["mounts"]}
    assert f"size={host['ShmSize']}" in by_target["/dev/shm"]["options"]
    assert by_target["/tmp"]["options"] == host["Tmpfs"]["/tmp"].split(",")
    for each in host["Mounts"]:
        bound = by_target[each["Target"]]
        assert bound["source"] == each["Source"]
        assert {"rprivate", "nosuid", "nodev"} <= set(bound["options"])
        assert ("ro" in bound["options"]) is each["ReadOnly"]
    limit = {(each["type"], each["soft"], each["hard"]) for each in process["rlimits"]}
    assert limit == {
        (f"RLIMIT_{each['Name'].upper()}", each["Soft"], each["Hard"]) for each in host["Ulimits"]
    }
    assert json.loads(json.dumps(config)) == config


def test_a_container_that_shares_the_network_of_its_node_has_all_other_walls() -> None:
    asked, alone = made(REQUEST)
    node = NodeSettings(seccomp=SECCOMP)
    shared = configuration(asked, Path("/images/i/rootfs"), (), node, shares_network=True)
    kinds = {each["type"] for each in shared["linux"]["namespaces"]}
    assert kinds == set(NAMESPACES) - {"network"}
    [system] = [each for each in shared["mounts"] if each["destination"] == "/sys"]
    assert system["type"] == "bind"
    assert {"ro", "nosuid", "noexec", "nodev"} <= set(system["options"])
    assert shared["process"] == alone["process"]
    assert {**shared["linux"], "namespaces": []} == {**alone["linux"], "namespaces": []}


def test_the_program_runs_below_an_init_with_the_variables_of_image_and_job() -> None:
    asked, config = made(replace(REQUEST, environment={"A": "job"}), ("A=image", "B=image", "PATH=/opt/bin"))
    process = config["process"]
    assert process["args"] == [INIT, "-s", "--", *asked["config"]["Entrypoint"], *REQUEST.argv]
    assert process["cwd"] == asked["config"]["WorkingDir"]
    assert {"A=job", "B=image", "PATH=/opt/bin"} <= set(process["env"])
    assert "A=image" not in process["env"]
    assert any(each.startswith("NVIDIA_VISIBLE_DEVICES=void") for each in process["env"])


def test_mount_points_below_data_and_secrets_are_made_in_memory_and_before_the_mounts() -> None:
    mounts = (Mount(Path("/a"), Path("/data/x")), Mount(Path("/b"), Path("/run/secrets/s")))
    _, config = made(replace(REQUEST, mounts=mounts))
    order = [each["destination"] for each in config["mounts"]]
    assert order.index("/data") < order.index("/data/x")
    assert order.index("/run/secrets") < order.index("/run/secrets/s")
    assert "/data" not in [each["destination"] for each in made(REQUEST)[1]["mounts"]]


def test_no_system_call_needs_a_capability_that_nobody_has() -> None:
    profile = {
        "defaultAction": "SCMP_ACT_ERRNO",
        "syscalls": [
            {"names": ["read"], "action": "SCMP_ACT_ALLOW"},
            {"names": ["mount"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_ADMIN"]}},
            {"names": ["s390"], "action": "SCMP_ACT_ALLOW", "includes": {"arches": ["s390"]}},
            {"names": ["not_here"], "action": "SCMP_ACT_ALLOW", "excludes": {"arches": ["amd64"]}},
            {
                "names": ["personality"],
                "action": "SCMP_ACT_ALLOW",
                "args": [{"index": 0, "value": 8, "op": "SCMP_CMP_EQ"}],
            },
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38},
        ],
    }
    made_of = seccomp_filter(profile, "x86_64")
    assert [rule["names"] for rule in made_of["syscalls"]] == [["read"], ["personality"], ["clone3"]]
    assert made_of["syscalls"][1]["args"] == [{"index": 0, "value": 8, "valueTwo": 0, "op": "SCMP_CMP_EQ"}]
    assert made_of["syscalls"][2]["errnoRet"] == 38
    assert made_of["architectures"] == list(MACHINES["x86_64"][1])


@pytest.mark.parametrize("machine", sorted(MACHINES))
def test_the_shipped_profile_denies_what_it_does_not_name(machine: str) -> None:
    found = seccomp_filter(json.loads(SECCOMP), machine)
    allowed = {name for rule in found["syscalls"] for name in rule["names"]}
    assert {"read", "write", "mmap"} <= allowed
    assert not {"mount", "ptrace_peek", "kexec_load", "bpf"} & allowed
    assert found["defaultErrnoRet"] == 1


def test_without_a_profile_there_is_no_filter_and_a_limit_without_end_is_left_out() -> None:
    asked = engine_arguments(REQUEST, replace(HARDENING, memlock_unlimited=True))
    config = configuration(asked, Path("/r"), (), NodeSettings(init=str(PurePosixPath("/opt/tini"))))
    assert "seccomp" not in config["linux"]
    assert "RLIMIT_MEMLOCK" not in {each["type"] for each in config["process"]["rlimits"]}
    assert config["mounts"][6]["source"] == "/opt/tini"
