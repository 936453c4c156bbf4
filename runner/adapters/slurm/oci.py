"""The walls of a container, for a node without a container engine and a user without privileges.

``configuration`` says in the language of OCI runtimes (crun, runc) what ``engine_arguments`` asks of Docker.
The user namespace maps the job's user to himself and nobody else, so neither root nor ``/etc/subuid`` is
needed.  Memory, CPUs and devices are fenced by the control group of the Slurm job, and not here.  Pure.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeAlias

Json: TypeAlias = dict[str, Any]

INIT: Final = "/dev/init"
"""Place in the container of its init, which reaps children and forwards signals."""

MASKED: Final = (
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
)
READ_ONLY: Final = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
"""Paths of the kernel that Docker masks, and that it shows read-only."""

CAPABILITIES: Final = ("bounding", "effective", "inheritable", "permitted", "ambient")

NAMESPACES: Final = ("pid", "ipc", "uts", "mount", "user", "cgroup", "network")

MACHINES: Final = {
    "x86_64": ("amd64", ("SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32")),
    "aarch64": ("arm64", ("SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM")),
}
"""Names that a seccomp profile has for a machine, and for the system calls that run on it."""

PARENTS: Final = (PurePosixPath("/data"), PurePosixPath("/run/secrets"))
"""Directories of the image below which mount points are made, on an empty file system of their own."""

MOUNT_POINTS: Final = ("job", "code", "data", "dev", "proc", "sys", "tmp", "run/secrets")
"""Directories that an unpacked image must have: nobody may make any in it later."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Properties that all nodes have."""

    init: str = "/usr/bin/tini-static"
    seccomp: str | None = None  # a profile in Docker's form; None: no filter
    machine: str = "x86_64"


def configuration(
    asked: Json,
    rootfs: Path,
    image_environment: tuple[str, ...],
    node: NodeSettings,
    *,
    shares_network: bool = False,
) -> Json:
    """Return the ``config.json`` of a bundle for the arguments that a container engine would get.

    ``shares_network``: the container has the network of its node, a wall less.
    """
    config, host = asked["config"], asked["config"]["HostConfig"]
    uid, gid = (int(part) for part in config["User"].split(":"))
    environment = {each.partition("=")[0]: each for each in (*image_environment, *config["Env"])}
    linux: Json = {
        "uidMappings": [{"containerID": uid, "hostID": uid, "size": 1}],
        "gidMappings": [{"containerID": gid, "hostID": gid, "size": 1}],
        "namespaces": [{"type": kind} for kind in NAMESPACES if not (shares_network and kind == "network")],
        "maskedPaths": list(MASKED),
        "readonlyPaths": list(READ_ONLY),
    }
    if node.seccomp is not None:
        linux["seccomp"] = seccomp_filter(json.loads(node.seccomp), node.machine)
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": uid, "gid": gid},
            "args": [INIT, "-s", "--", *config["Entrypoint"], *config["Cmd"]],
            "env": list(environment.values()),
            "cwd": config["WorkingDir"],
            "capabilities": {name: [] for name in CAPABILITIES},
            "rlimits": list(_limits(host["Ulimits"])),
            "noNewPrivileges": True,
        },
        "root": {"path": str(rootfs), "readonly": True},
        "hostname": "job",
        "mounts": [*_kernel_mounts(host, node, shares_network=shares_network), *_binds(host)],
        "linux": linux,
    }


def seccomp_filter(profile: Mapping[str, Any], machine: str) -> Json:
    """Return a seccomp profile of Docker's form for a process without capabilities, as runtimes read it."""
    name, architectures = MACHINES[machine]
    rules = []
    for group in profile["syscalls"]:
        includes, excludes = group.get("includes") or {}, group.get("excludes") or {}
        elsewhere = includes.get("arches") and name not in includes["arches"]
        if includes.get("caps") or elsewhere or name in (excludes.get("arches") or ()):
            continue
        rule = {"names": group["names"], "action": group["action"]}
        if group.get("args"):
            rule["args"] = [
                {field: each.get(field, 0) for field in ("index", "value", "valueTwo")} | {"op": each["op"]}
                for each in group["args"]
            ]
        if group.get("errnoRet") is not None:
            rule["errnoRet"] = group["errnoRet"]
        rules.append(rule)
    made: Json = {
        "defaultAction": profile["defaultAction"],
        "architectures": list(architectures),
        "syscalls": rules,
    }
    if profile.get("defaultErrnoRet") is not None:
        made["defaultErrnoRet"] = profile["defaultErrnoRet"]
    return made


def _limits(ulimits: list[Json]) -> Iterator[Json]:
    for each in ulimits:
        if each["Soft"] >= 0:
            yield {"type": f"RLIMIT_{each['Name'].upper()}", "soft": each["Soft"], "hard": each["Hard"]}


def _kernel_mounts(host: Json, node: NodeSettings, *, shares_network: bool) -> Iterator[Json]:
    """Yield the file systems of the kernel, private ones in memory, and the init."""
    plain = ["nosuid", "noexec", "nodev"]
    yield _mount("/proc", "proc", "proc", plain)
    yield _mount("/dev", "tmpfs", "tmpfs", ["nosuid", "strictatime", "mode=755", "size=65536k"])
    terminals = ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]
    yield _mount("/dev/pts", "devpts", "devpts", terminals)
    yield _mount("/dev/shm", "tmpfs", "shm", [*plain, "mode=1777", f"size={host['ShmSize']}"])  # noqa: S108  its own
    yield _mount("/dev/mqueue", "mqueue", "mqueue", plain)
    if shares_network:  # the kernel shows sysfs anew to the owner of a network alone
        yield _mount("/sys", "bind", "/sys", ["rbind", *plain, "ro"])
    else:
        yield _mount("/sys", "sysfs", "sysfs", [*plain, "ro"])
    yield _mount(INIT, "bind", node.init, ["bind", "ro", "nosuid", "nodev"])
    for target, options in host["Tmpfs"].items():
        yield _mount(target, "tmpfs", "tmpfs", options.split(","))


def _binds(host: Json) -> Iterator[Json]:
    """Yield the binds of the shared file system; the kernel checks the user's rights to each source."""
    targets = [PurePosixPath(each["Target"]) for each in host["Mounts"]]
    for parent in PARENTS:
        if any(parent in target.parents for target in targets):
            yield _mount(str(parent), "tmpfs", "tmpfs", ["nosuid", "noexec", "nodev", "mode=755", "size=1m"])
    for each in host["Mounts"]:
        access = "ro" if each["ReadOnly"] else "rw"
        options = ["rbind", each["BindOptions"]["Propagation"], "nosuid", "nodev", access]
        yield _mount(each["Target"], "bind", each["Source"], options)


def _mount(destination: str, kind: str, source: str, options: list[str]) -> Json:
    return {"destination": destination, "type": kind, "source": source, "options": options}
