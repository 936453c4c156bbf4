"""The one function that turns an attempt into engine arguments, and the check that the engine obeyed.

Both are pure.  The result is the raw body of ``POST /containers/create``, so that what
is printed by a dry run, what is sent and what is inspected afterwards speak one language.
Dangerous fields are always sent, with their safe value: an option that is left out takes
the default of whoever configured the engine, and one that is sent can be compared.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal, TypeAlias

from runner.adapters.launch import attempt_environment, attempt_name, launch_script, supervised_entry_script
from runner.base.errors import Refused
from runner.core.ports.devices import Device
from runner.core.ports.executor import Key, LaunchRequest, Limits, Mount

Json: TypeAlias = dict[str, Any]

JOB_DIR: Final = PurePosixPath("/job")

LABEL_INSTANCE: Final = "runner.instance"
LABEL_JOB: Final = "runner.job"
LABEL_ATTEMPT: Final = "runner.attempt"
LABEL_UID: Final = "runner.uid"
LABEL_NAME: Final = "runner.name"
LABEL_BOOT: Final = "runner.boot"

SYSTEM_DIRS: Final = frozenset(
    "bin boot dev etc lib lib32 lib64 libx32 proc root run sbin sys usr var".split()  # noqa: SIM905 - a word list
)
"""First components of paths that a mount would take away from the image or the kernel."""

IMAGE_FORBIDDEN: Final = re.compile(r"LD_.*|NVIDIA_.*|AMD_VISIBLE_DEVICES")
"""An image that sets these speaks to injection hooks that run as root, before the job does."""


MERGED: Final = frozenset({"HostConfig", "Env", "Labels", "Healthcheck"})
"""Fields into which an engine mixes what the image says; each has a comparison of its own."""

WAIVED: Final = frozenset({"NetworkDisabled"})
"""Fields that an engine may pass over: the wall is ``HostConfig.NetworkMode``, which is compared."""

LOOPBACK: Final = b"""\
127.0.0.1 localhost
::1 localhost ip6-localhost ip6-loopback
"""
"""What ``HardeningSettings.hosts`` holds: all that there is to be named without a network."""


@dataclass(frozen=True, slots=True)
class HardeningSettings:
    """What an operator may decide about every container."""

    instance: str
    """Of the store; part of every name and label."""
    runtime: str = "runc"
    """Always sent, so that an engine whose default runtime injects every GPU does not."""
    gpu_injection: Literal["cdi", "hook"] = "cdi"
    """CDI survives ``systemctl daemon-reload``; the hook is for engines older than 25."""
    seccomp: str | None = None
    """A profile as JSON text; None: the engine's built-in default, which denies NUMA calls."""
    memlock_unlimited: bool = False
    """Pinned memory without a limit; fails at start where the engine may not raise limits itself."""
    open_files: int = 16384
    """Must not exceed the engine's own hard limit."""
    hosts: Path | None = None
    """A file with ``LOOPBACK``.  Where there is one, a container without a network has the kernel's empty
    namespace, and the engine is spared making one of its own: that takes half of the time of a start."""
    boot_id: str = ""
    """Of this boot of the host; tells an exit that was seen from one that a power cut invented."""


def engine_arguments(
    request: LaunchRequest, settings: HardeningSettings, device_gids: tuple[int, ...] = ()
) -> Json:
    """Return ``{"name": ..., "config": ...}``: the name and the body of the create call, JSON-able.

    Args:
        request: The attempt.
        settings: The operator's.
        device_gids: Groups that own AMD device nodes on the host, as numbers: names resolve in the image.

    Raises:
        Refused: uid or gid 0; a forbidden variable, mount target or network; a log outside the run directory.
    """
    launch_script(request)
    owner = request.owner
    hosts = settings.hosts if request.network is None else None
    return {
        "name": attempt_name(request.key),
        "config": {
            "Image": request.image,
            "Entrypoint": list(supervised_entry_script(request.directory or JOB_DIR, _log(request))),
            "Cmd": list(request.argv),
            "WorkingDir": str(JOB_DIR),
            "User": f"{owner.uid}:{owner.gid}",  # one number alone takes groups from the image
            "Env": [f"{name}={value}" for name, value in _environment(request, settings).items()],
            "Labels": _labels(request, settings),
            "StopSignal": "SIGTERM",
            "Healthcheck": {"Test": ["NONE"]},  # an image's own would run beside the job
            "Tty": False,
            "OpenStdin": False,
            "NetworkDisabled": hosts is not None,
            "HostConfig": {
                **_walls(request, settings),
                **_limits(request.limits, settings),
                **_devices(request.devices, settings, device_gids),
                "Mounts": [_bind(Mount(request.run_dir, Path(JOB_DIR), read_only=False))]
                + [_bind(_checked(mount)) for mount in request.mounts]
                + ([] if hosts is None else [_bind(Mount(hosts, Path("/etc/hosts")))]),
            },
        },
    }


def describe_difference(asked: Json, inspected: Json) -> list[str]:
    """Return what a created container has other than was asked, one line each; empty when it obeys."""
    config = asked["config"]
    host = inspected["HostConfig"]
    found = [
        f"HostConfig.{field} is {host.get(field)!r} where {value!r} was asked"
        for field, value in config["HostConfig"].items()
        if not _same(value, host.get(field))
    ]
    found += [
        f"{field} is {inspected['Config'].get(field)!r} where {value!r} was asked"
        for field, value in config.items()
        if field not in MERGED | WAIVED and not _same(value, inspected["Config"].get(field))
    ]
    if "MaskedPaths" in host and not (host["MaskedPaths"] and host.get("ReadonlyPaths")):
        found.append("kernel paths are not masked")
    return found + list(_from_the_image(asked, inspected))


def key_of(labels: Mapping[str, str], name: str) -> Key | None:
    """Return the key of a container of ours; None if the labels do not belong to the name.

    Labels can be forged by an image, a name cannot: the engine knows every name once.
    """
    try:
        key = Key(labels[LABEL_INSTANCE], labels[LABEL_JOB], int(labels[LABEL_ATTEMPT]))
        return key if attempt_name(key) == name else None
    except (KeyError, ValueError, Refused):
        return None


def _environment(request: LaunchRequest, settings: HardeningSettings) -> dict[str, str]:
    hooked = [device.uuid for device in request.devices if device.vendor == "nvidia"]
    visible = ",".join(hooked) if settings.gpu_injection == "hook" else ""
    return {
        **attempt_environment(request, JOB_DIR / "home", PurePosixPath("/tmp")),  # noqa: S108 - a private tmpfs
        "NVIDIA_VISIBLE_DEVICES": visible or "void",  # an image may say "all"
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    }


def _labels(request: LaunchRequest, settings: HardeningSettings) -> dict[str, str]:
    return {
        LABEL_INSTANCE: request.key.instance,
        LABEL_JOB: request.key.job_id,
        LABEL_ATTEMPT: str(request.key.attempt),
        LABEL_UID: str(request.owner.uid),
        LABEL_NAME: request.job_name,
        LABEL_BOOT: settings.boot_id,
    }


def _walls(request: LaunchRequest, settings: HardeningSettings) -> Json:
    """Return what keeps the job inside."""
    security = ["no-new-privileges:true"]
    if settings.seccomp is not None:
        security.append(f"seccomp={settings.seccomp}")  # the text: a path fails at start
    return {
        "Privileged": False,
        "CapDrop": ["ALL"],
        "CapAdd": [],
        "SecurityOpt": security,
        "ReadonlyRootfs": True,
        "NetworkMode": _network(request.network),
        "PortBindings": {},
        "PublishAllPorts": False,
        "IpcMode": "private",
        "PidMode": "",
        "UTSMode": "",
        "UsernsMode": "",
        "CgroupnsMode": "private",
        "CgroupParent": "",
        "Binds": [],  # they create a missing source as root; Mounts refuse it
        "VolumesFrom": [],
        "Sysctls": {},
        "OomScoreAdj": 0,
        "OomKillDisable": False,
        "Init": True,  # reaps children and passes signals on
        "AutoRemove": False,  # would take the exit code with it
        "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "1"}},
    }


def _limits(limits: Limits, settings: HardeningSettings) -> Json:
    ulimits = [
        {"Name": "core", "Soft": 0, "Hard": 0},
        {"Name": "nofile", "Soft": settings.open_files, "Hard": settings.open_files},
    ]
    if settings.memlock_unlimited:
        ulimits.append({"Name": "memlock", "Soft": -1, "Hard": -1})
    return {
        "Memory": limits.memory_bytes,
        "MemorySwap": limits.memory_bytes,  # memory and swap together: no swap
        "NanoCpus": round(limits.cpus * 1e9),
        "PidsLimit": limits.pids,
        "ShmSize": limits.shm_bytes,
        "Ulimits": ulimits,
        # exec: compilers load what they write there
        "Tmpfs": {"/tmp": f"rw,exec,nosuid,nodev,size={limits.tmp_bytes},mode=1777"},  # noqa: S108 - private
    }


def _devices(devices: tuple[Device, ...], settings: HardeningSettings, gids: tuple[int, ...]) -> Json:
    """Return how devices get in: NVIDIA through CDI or the hook, AMD as device nodes."""
    nvidia = [device.uuid for device in devices if device.vendor == "nvidia"]
    nodes = [str(device.render_node) for device in devices if device.vendor == "amd"]
    if nodes:
        nodes.insert(0, "/dev/kfd")
    by_cdi = {"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={uuid}" for uuid in nvidia]}
    return {
        "Runtime": "nvidia" if nvidia and settings.gpu_injection == "hook" else settings.runtime,
        "DeviceRequests": [by_cdi] if nvidia and settings.gpu_injection == "cdi" else [],
        "Devices": [
            {"PathOnHost": node, "PathInContainer": node, "CgroupPermissions": "rw"} for node in nodes
        ],
        "DeviceCgroupRules": [],
        "GroupAdd": [str(gid) for gid in gids if gid != 0],
    }


def _bind(mount: Mount) -> Json:
    return {
        "Type": "bind",
        "Source": str(mount.source),
        "Target": str(mount.target),
        "ReadOnly": mount.read_only,
        "BindOptions": {"Propagation": "rprivate"},
    }


def _checked(mount: Mount) -> Mount:
    target = PurePosixPath(mount.target)
    first, *rest = target.parts[1:] or ("",)
    system = first in SYSTEM_DIRS and not (first == "run" and rest[:1] == ["secrets"] and rest[1:])
    if not target.is_absolute() or not first or ".." in target.parts or system:
        raise Refused(f"mount target {str(target)!r}: not a place for data; use /data/<name>")
    if target == JOB_DIR or JOB_DIR in target.parents:
        raise Refused(f"mount target {str(target)!r}: /job is the run directory; use /data/<name>")
    return mount


def _network(network: str | None) -> str:
    if network is None:
        return "none"
    if network in {"host", "default"} or network.startswith("container:"):
        raise Refused(f"network {network!r}: leaves the container's walls; name an operator's network")
    return network


def _log(request: LaunchRequest) -> PurePosixPath:
    try:
        return JOB_DIR / request.log.relative_to(request.run_dir)
    except ValueError as error:
        raise Refused(f"log {str(request.log)!r}: not below the run directory {request.run_dir}") from error


def _from_the_image(asked: Json, inspected: Json) -> Iterator[str]:
    """Yield what an image smuggled into the container."""
    config = inspected["Config"]
    labels = config.get("Labels") or {}
    if (config.get("Healthcheck") or {}).get("Test") != ["NONE"]:
        yield "the health check of the image would run"
    wanted = set(asked["config"]["Env"])
    present = set(config.get("Env") or [])
    for variable in sorted(wanted - present):
        yield f"the variable {variable.partition('=')[0]} is not what was asked"
    for variable in sorted(present - wanted):
        name = variable.partition("=")[0]
        if IMAGE_FORBIDDEN.fullmatch(name):
            yield f"the image sets {name}; build it without"
    for name, value in asked["config"]["Labels"].items():
        if labels.get(name) != value:
            yield f"label {name} is {labels.get(name)!r} where {value!r} was asked"
    for path in sorted(config.get("Volumes") or {}):
        yield f"the image declares the volume {path}; build it without"
    targets = {mount["Target"] for mount in asked["config"]["HostConfig"]["Mounts"]}
    for mount in inspected.get("Mounts") or []:
        if mount["Type"] == "bind" and mount["Destination"] not in targets:
            yield f"{mount['Source']} is mounted at {mount['Destination']}, which nobody asked for"


def _same(asked: object, inspected: object) -> bool:
    """Tell whether two JSON values mean the same: engines drop or null what is empty."""
    if not asked or not inspected:
        return not asked and not inspected
    if isinstance(asked, dict) and isinstance(inspected, dict):
        return all(_same(asked.get(name), inspected.get(name)) for name in asked.keys() | inspected.keys())
    if isinstance(asked, list) and isinstance(inspected, list):
        return len(asked) == len(inspected) and all(map(_same, asked, inspected))
    return asked == inspected
