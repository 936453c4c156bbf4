"""The create request of a hardened container, and the comparison of the created container with it.

``engine_arguments`` is the only function that turns an attempt into arguments of the container engine.  It
returns the body of ``POST /containers/create`` as it is sent, so a dry run, the request and the inspected
container can be compared field by field.  ``find_differences`` makes that comparison.  Both are pure; the
executor sends, inspects and starts.

Every security-relevant field is sent, also where its value is the engine's default.  A field that is left
out gets whatever default the engine was configured with, and it cannot be compared afterwards.
"""

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal, TypeAlias

from runner.adapters.docker.accounts import account_files, account_name
from runner.adapters.launch import attempt_environment, attempt_name, check_request, supervised_entry_script
from runner.base.errors import Refused
from runner.core.ports.devices import Device
from runner.core.ports.executor import Key, LaunchRequest, Limits, Mount

Json: TypeAlias = dict[str, Any]

JOB_DIR: Final = PurePosixPath("/job")
"""Place of the run directory in a container."""

LABEL_INSTANCE: Final = "runner.instance"
LABEL_JOB: Final = "runner.job"
LABEL_ATTEMPT: Final = "runner.attempt"
LABEL_UID: Final = "runner.uid"
LABEL_NAME: Final = "runner.name"
LABEL_BOOT: Final = "runner.boot"

SYSTEM_DIRS: Final = frozenset(
    "bin boot dev etc lib lib32 lib64 libx32 proc root run sbin sys usr var".split()  # noqa: SIM905 - a word list
)
"""Top-level directories of the image and the kernel, which a mount must not hide."""

IMAGE_FORBIDDEN: Final = re.compile(r"LD_.*|NVIDIA_.*|AMD_VISIBLE_DEVICES")
"""Variables of an image that a request overrides: hooks that inject devices read them, as root."""

DECIDED: Final = frozenset({"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_DISABLE_REQUIRE"})
"""Those of them whose values are the runner's, also for the program."""

_ASIDE: Final = "RUNNER_IMAGE_"
"""Beginning of the names of values that are set aside, also in an image made of such a container."""

_PUT_BACK: Final = re.compile(r"(LD|NVIDIA)_[A-Za-z0-9_]+")
"""Those that the program gets back; other names could not be variables of a shell."""

OUT_OF_PLACE: Final = re.compile(r"(CUDA|ROCR|HIP)_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|RUNNER_[A-Za-z0-9_]*")
"""Variables of an image that no program gets: they would hide devices of its job, or are of another job.

An image has the latter if it was made of a container of the runner.
"""

IMAGE_MERGED_FIELDS: Final = frozenset({"HostConfig", "Env", "Labels", "Healthcheck"})
"""Fields that the engine merges with those of the image; each of them is compared separately."""

IGNORED_FIELDS: Final = frozenset({"NetworkDisabled"})
"""Fields that an engine may ignore: ``HostConfig.NetworkMode`` isolates the network, and is compared."""

HOST_NAME: Final = "job"
"""The name of the host in every container; there is no other name that all of them could look up."""

LOOPBACK_HOSTS: Final = f"""\
127.0.0.1 localhost {HOST_NAME}
::1 localhost ip6-localhost ip6-loopback
""".encode()
"""Content of ``HardeningSettings.hosts_file``: the only names that exist without a network."""


@dataclass(frozen=True, slots=True)
class HardeningSettings:
    """Settings of the operator for every container."""

    instance: str
    """Id of the store; part of each container's name and labels."""
    runtime: str = "runc"
    """The OCI runtime.  It is always sent: the engine's default runtime may inject every GPU."""
    gpu_injection: Literal["cdi", "hook"] = "cdi"
    """Injection of NVIDIA devices.  The hook is for engines before version 25, which have no CDI.  When
    systemd reloads its units, containers lose the devices that the hook has injected."""
    seccomp: str | None = None
    """The seccomp profile as JSON text.  None: the engine's built-in profile, which denies NUMA calls."""
    apparmor: str | None = None
    """A loaded AppArmor profile by its name.  None: the engine's own, if its host has AppArmor."""
    user_namespace: Literal["engine", "host"] = "engine"
    """``host``: the host's, also where the engine maps the users of containers to others by default."""
    memlock_unlimited: bool = False
    """True if a job may lock any amount of memory.  The start fails if the engine may not raise the limit."""
    open_files: int = 16384
    """Limit of open files; it must not exceed the engine's own hard limit."""
    hosts_file: Path | None = None
    """A file with ``LOOPBACK_HOSTS``, mounted as ``/etc/hosts`` into containers without a network.  They get
    an empty network namespace from the kernel instead of one from the engine, which halves the start time."""
    accounts: Path | None = None
    """A directory with the files of ``accounts``, mounted as ``/etc/passwd`` and ``/etc/group``.  None:
    the image's own are there, which do not know the user of the job."""
    boot_id: str = ""
    """Boot id of the host.  It tells an observed exit from one that the engine invented after a reset."""


def engine_arguments(
    request: LaunchRequest,
    settings: HardeningSettings,
    device_gids: tuple[int, ...] = (),
    image_variables: Iterable[str] = (),
) -> Json:
    """Return ``{"name": ..., "config": ...}``: the name and the JSON body of the create request.

    Args:
        request: The attempt.
        settings: The operator's settings.
        device_gids: Numeric ids of the groups that own the AMD device nodes on the host.  The engine would
            look up names in the image.
        image_variables: What the image sets, as ``NAME=value``.

    Raises:
        Refused: uid or gid 0; a forbidden variable, mount target or network; a log outside the run directory.
    """
    check_request(request)
    owner = request.owner
    hosts_file = settings.hosts_file if request.network is None else None
    environment = _environment(request, settings)
    environment = {**neutralised(image_variables, environment), **environment}
    return {
        "name": attempt_name(request.key),
        "config": {
            "Image": request.image,
            "Entrypoint": list(supervised_entry_script(request.directory or JOB_DIR, _log(request))),
            "Cmd": list(request.argv),
            "WorkingDir": str(JOB_DIR),
            "Hostname": HOST_NAME,
            "User": f"{owner.uid}:{owner.gid}",  # without a gid, the groups come from the image
            "Env": [f"{name}={value}" for name, value in environment.items()],
            "Labels": _labels(request, settings),
            "StopSignal": "SIGTERM",
            "Healthcheck": {"Test": ["NONE"]},  # that of the image would run beside the job
            "Tty": False,
            "OpenStdin": False,
            "NetworkDisabled": hosts_file is not None,
            "HostConfig": {
                **_isolation(request, settings),
                **_limits(request.limits, settings),
                **_devices(request.devices, settings, (*device_gids, *request.groups)),
                "Mounts": [_bind(Mount(request.run_dir, Path(JOB_DIR), read_only=False))]
                + [_bind(mount) for mount in _check_mounts(request.mounts)]
                + ([] if hosts_file is None else [_bind(Mount(hosts_file, Path("/etc/hosts")))])
                + [
                    _bind(Mount(source, target))
                    for source, target, _ in account_files(request, settings.accounts)
                ],
            },
        },
    }


def neutralised(image_variables: Iterable[str], decided: Container[str] = ()) -> dict[str, str]:
    """Return the variables by which a request overrides those of an image that hooks would read.

    Hooks run as root with the variables of the container (CVE-2025-23266): they get empty values, and no
    requirements.  The image's values are under other names, from which the entry script takes them for the
    program when all hooks have run.  It unsets what no program gets and nobody has ``decided``.
    """
    variables = tuple(image_variables)
    names = dict.fromkeys(each.partition("=")[0] for each in variables)
    emptied = {name: "" for name in names if IMAGE_FORBIDDEN.fullmatch(name) and name not in DECIDED}
    made = {**emptied, "NVIDIA_DISABLE_REQUIRE": "1"} if emptied else {}
    unset = {name: "" for name in names if OUT_OF_PLACE.fullmatch(name) and name not in decided}
    if unset:
        made |= {**unset, "RUNNER_IMAGE_UNSET": " ".join(unset)}
    return {**made, **set_aside(variables)}


def set_aside(image_variables: Iterable[str]) -> dict[str, str]:
    """Return the variables by which the entry script finds an image's values for the program."""
    found = dict(each.partition("=")[::2] for each in image_variables)
    found |= {name.removeprefix(_ASIDE): found[name] for name in found if name.startswith(_ASIDE)}
    kept = {
        name: value
        for name, value in found.items()
        if value and name not in DECIDED and _PUT_BACK.fullmatch(name)
    }
    if not kept:
        return {}
    values = {f"{_ASIDE}{name}": value for name, value in kept.items()}
    return {"RUNNER_IMAGE_ENV": " ".join(kept), **values}


def find_differences(requested: Json, inspected: Json) -> list[str]:
    """Return the differences between a create request and the container that it made, one line each.

    An empty list means that the container may be started.
    """
    config = requested["config"]
    host = inspected["HostConfig"]
    found = [
        f"HostConfig.{field} is {host.get(field)!r} instead of {value!r}"
        for field, value in config["HostConfig"].items()
        if not _is_equivalent(value, host.get(field))
    ]
    found += [
        f"{field} is {inspected['Config'].get(field)!r} instead of {value!r}"
        for field, value in config.items()
        if field not in IMAGE_MERGED_FIELDS | IGNORED_FIELDS
        and not _is_equivalent(value, inspected["Config"].get(field))
    ]
    if "MaskedPaths" in host and not (host["MaskedPaths"] and host.get("ReadonlyPaths")):
        found.append("kernel paths are not masked")
    return found + list(_differences_by_image(requested, inspected))


def key_of(entry: Json) -> Key | None:
    """Return the key of a container as the engine lists it, None if it is not one of the runner.

    A name is only a label, which anybody with access to the engine may change.  An image can forge labels.
    It cannot forge a name or a bind mount, so one of the two must agree with the labels.
    """
    labels: Mapping[str, str] = entry["Labels"] or {}
    try:
        key = Key(labels[LABEL_INSTANCE], labels[LABEL_JOB], int(labels[LABEL_ATTEMPT]))
        named = f"/{attempt_name(key)}" in (entry.get("Names") or ())
    except (KeyError, ValueError, Refused):
        return None
    return key if named or _has_run_directory(entry, key.job_id) else None


def _has_run_directory(entry: Json, job_id: str) -> bool:
    """Return True if the run directory of a job is mounted at its place in a listed container."""
    return any(
        mount["Destination"] == str(JOB_DIR) and Path(mount.get("Source") or "").name == job_id
        for mount in entry.get("Mounts") or ()
    )


def _environment(request: LaunchRequest, settings: HardeningSettings) -> dict[str, str]:
    nvidia = [device.uuid for device in request.devices if device.vendor == "nvidia"]
    visible = ",".join(nvidia) if settings.gpu_injection == "hook" else ""
    return {
        **attempt_environment(request, JOB_DIR, PurePosixPath("/tmp")),  # noqa: S108 - a private tmpfs
        **dict.fromkeys(("USER", "LOGNAME"), account_name(request.owner)),
        "NVIDIA_VISIBLE_DEVICES": visible or "void",  # overrides an image that sets "all"
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


def _isolation(request: LaunchRequest, settings: HardeningSettings) -> Json:
    """Return the fields that separate the container from the host and from other containers."""
    security = ["no-new-privileges:true"]
    if settings.seccomp is not None:
        security.append(f"seccomp={settings.seccomp}")  # as text: the API takes no path
    if settings.apparmor is not None:
        security.append(f"apparmor={settings.apparmor}")
    return {
        "Privileged": False,
        "CapDrop": ["ALL"],
        "CapAdd": [],
        "SecurityOpt": security,
        "ReadonlyRootfs": True,
        "NetworkMode": _network(request.network),
        "Dns": list(request.name_servers),
        "PortBindings": {},
        "PublishAllPorts": False,
        "IpcMode": "private",
        "PidMode": "",
        "UTSMode": "",
        "UsernsMode": "host" if settings.user_namespace == "host" else "",
        "CgroupnsMode": "private",
        "CgroupParent": "",
        "Binds": [],  # Binds create a missing source as root; Mounts refuse it
        "VolumesFrom": [],
        "Sysctls": {},
        "OomScoreAdj": 0,
        "OomKillDisable": False,
        "Init": True,  # reaps children and forwards signals
        "AutoRemove": False,  # the exit code would be lost
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
        "MemorySwap": limits.memory_bytes,  # of memory and swap together, so there is no swap
        "NanoCpus": round(limits.cpus * 1e9),
        "PidsLimit": limits.pids,
        "ShmSize": limits.shm_bytes,
        "Ulimits": ulimits,
        # exec, because compilers load the libraries that they write there
        "Tmpfs": {"/tmp": f"rw,exec,nosuid,nodev,size={limits.tmp_bytes},mode=1777"},  # noqa: S108 - private
    }


def _devices(devices: tuple[Device, ...], settings: HardeningSettings, gids: tuple[int, ...]) -> Json:
    """Return the fields that inject devices: NVIDIA's through CDI or the hook, AMD's as device nodes."""
    nvidia = [device.uuid for device in devices if device.vendor == "nvidia"]
    nodes = [str(device.render_node) for device in devices if device.vendor == "amd"]
    if nodes:
        nodes.insert(0, "/dev/kfd")
    cdi_request = {"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={uuid}" for uuid in nvidia]}
    return {
        "Runtime": "nvidia" if nvidia and settings.gpu_injection == "hook" else settings.runtime,
        "DeviceRequests": [cdi_request] if nvidia and settings.gpu_injection == "cdi" else [],
        "Devices": [
            {"PathOnHost": node, "PathInContainer": node, "CgroupPermissions": "rw"} for node in nodes
        ],
        "DeviceCgroupRules": [],
        "GroupAdd": [str(gid) for gid in dict.fromkeys(gids) if gid != 0],
    }


def _bind(mount: Mount) -> Json:
    return {
        "Type": "bind",
        "Source": str(mount.source),
        "Target": str(mount.target),
        "ReadOnly": mount.read_only,
        "BindOptions": {"Propagation": "rprivate"},
    }


def _check_mounts(mounts: tuple[Mount, ...]) -> tuple[Mount, ...]:
    """Return the mounts.

    Raises:
        Refused: a target hides a part of the image, of the kernel's file systems, or of the run directory,
            or lies in another one: the engine would make it there, as root.
    """
    for mount in mounts:
        _check_target(mount)
    for above, below in pairwise(sorted(PurePosixPath(mount.target).parts[1:] for mount in mounts)):
        if below[: len(above)] == above:
            place = "/".join(("", *below))
            raise Refused(f"mount target {place!r}: overlaps with another one; choose separate directories")
    return mounts


def _check_target(mount: Mount) -> None:
    target = PurePosixPath(mount.target)
    first, *rest = target.parts[1:] or ("",)
    is_secret = first == "run" and rest[:1] == ["secrets"] and bool(rest[1:])
    is_system = first in SYSTEM_DIRS and not is_secret
    if not target.is_absolute() or not first or ".." in target.parts or is_system:
        raise Refused(f"mount target {str(target)!r}: not a place for data; use /data/<name>")
    if target == JOB_DIR or JOB_DIR in target.parents:
        raise Refused(f"mount target {str(target)!r}: /job is the run directory; use /data/<name>")


def _network(network: str | None) -> str:
    """Return the network mode.

    Raises:
        Refused: it would share the network of the host, of another container, or of the engine's default.
    """
    if network is None:
        return "none"
    if network in {"host", "default"} or network.startswith("container:"):
        raise Refused(f"network {network!r}: is not isolated; name a network that an operator has made")
    return network


def _log(request: LaunchRequest) -> PurePosixPath:
    """Return the path of the log in the container; may raise Refused."""
    try:
        return JOB_DIR / request.log.relative_to(request.run_dir)
    except ValueError as error:
        raise Refused(f"log {str(request.log)!r}: not below the run directory {request.run_dir}") from error


def _differences_by_image(requested: Json, inspected: Json) -> Iterator[str]:
    """Yield each setting that the image has added to the container or overridden."""
    config = inspected["Config"]
    labels = config.get("Labels") or {}
    if (config.get("Healthcheck") or {}).get("Test") != ["NONE"]:
        yield "the health check of the image would run"
    wanted = set(requested["config"]["Env"])
    present = set(config.get("Env") or [])
    for variable in sorted(wanted - present):
        yield f"the variable {variable.partition('=')[0]} differs from the request"
    for variable in sorted(present - wanted):
        name = variable.partition("=")[0]
        if IMAGE_FORBIDDEN.fullmatch(name):
            yield f"the image sets {name}, which the request does not override"
    for name, value in requested["config"]["Labels"].items():
        if labels.get(name) != value:
            yield f"label {name} is {labels.get(name)!r} instead of {value!r}"
    for path in sorted(config.get("Volumes") or {}):
        yield f"the image declares the volume {path}; build it without"
    targets = {mount["Target"] for mount in requested["config"]["HostConfig"]["Mounts"]}
    for mount in inspected.get("Mounts") or []:
        if mount["Type"] == "bind" and mount["Destination"] not in targets:
            yield f"{mount['Source']} is mounted at {mount['Destination']}, which was not requested"


def _is_equivalent(requested: object, inspected: object) -> bool:
    """Return True if two JSON values mean the same; engines omit empty values or replace them by null."""
    if not requested or not inspected:
        return not requested and not inspected
    if isinstance(requested, dict) and isinstance(inspected, dict):
        names = requested.keys() | inspected.keys()
        return all(_is_equivalent(requested.get(name), inspected.get(name)) for name in names)
    if isinstance(requested, list) and isinstance(inspected, list):
        return len(requested) == len(inspected) and all(map(_is_equivalent, requested, inspected))
    return requested == inspected
