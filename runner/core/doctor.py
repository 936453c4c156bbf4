"""Findings about a machine for jobs on GPUs, each derived from facts, with the next step.

The facts are collected by ``runner.adapters.doctor``.  A fact that could not be read is None, and its finding
says so.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal, TypeAlias

from runner.base.readable import readable_count, readable_size
from runner.core.cuda import Gpu, dotted, driver_advice, driver_fits, gpu_problem, parse_version

GIB: Final = 1024**3

CDI_ENGINE: Final = (25, 0)
"""The first Docker engine that injects devices by CDI."""

LEAST_DISK_BYTES: Final = 20 * GIB
"""An image with CUDA takes about 10 GiB while it is built, and its checkpoints come on top."""

TOOLKIT_FIRST: Final = "install nvidia-container-toolkit, then: "
"""A step that is left out where the toolkit is installed."""

DEVICE_UUIDS: Final = ("GPU-", "MIG-")
"""Jobs ask for devices by UUIDs, which begin so."""

LEAST_WATCHES, LEAST_INSTANCES = 8192, 128

Injection: TypeAlias = Literal["cdi", "hook"]


class Verdict(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARNING = "warning"  # jobs run, and something will go wrong or slowly
    PROBLEM = "problem"  # jobs on these GPUs cannot run
    UNKNOWN = "unknown"  # it could not be looked at
    ABSENT = "absent"  # there is no such hardware or part


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: what was looked at, what it is, and what to do."""

    subject: str
    verdict: Verdict
    fact: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """A device node, and whether the examining user may open it for reading and writing."""

    path: str
    group: str
    accessible: bool
    by_group: bool = False  # whether members of its group may


@dataclass(frozen=True, slots=True)
class NvidiaGpu:
    """An NVIDIA GPU as NVML describes it; None: the driver does not say."""

    name: str
    model: str
    capability: tuple[int, int] | None = None
    persistence: bool | None = None
    ecc_errors: int | None = None
    retired_pages: int | None = None
    unusable: str | None = None


@dataclass(frozen=True, slots=True)
class NvidiaFacts:
    """Facts about the NVIDIA driver and GPUs of a machine."""

    on_bus: int = 0  # GPUs on the PCI bus
    driver: str | None = None  # of the kernel module
    nvml_error: str | None = None  # why NVML does not answer; None: it does
    cuda: tuple[int, int] | None = None  # the newest version that the driver supports
    nodes: tuple[Node, ...] = ()
    gpus: tuple[NvidiaGpu, ...] = ()
    toolkit: str | None = None  # path of nvidia-ctk
    given: tuple[tuple[str, str], ...] = ()  # label and UUID of each device that a job may get


@dataclass(frozen=True, slots=True)
class AmdFacts:
    """Facts about the AMD driver and GPUs of a machine."""

    on_bus: int = 0
    driver: bool = False  # amdgpu is loaded
    version: str | None = None  # of AMD's own driver; that of a distribution's kernel has none
    kfd: Node | None = None
    render: tuple[Node, ...] = ()
    gpus: tuple[str, ...] = ()  # models of those that can compute


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """The one description of the container engine; ``error`` says why it does not answer."""

    error: str | None = None
    version: str = ""
    runtimes: tuple[str, ...] = ()
    cdi_enabled: bool | None = None  # None: the engine does not say
    cdi_files: tuple[str, ...] = ()  # specifications of nvidia.com/gpu
    cdi_devices: tuple[str, ...] = ()  # the names of devices in them
    cdi_unreadable: tuple[str, ...] = ()  # files in their directories without a reading
    storage: str = ""
    containerd_store: bool = False  # images are kept twice: as they came, and unpacked
    cgroup: str = ""  # version and driver
    swap_limit: bool | None = None  # whether the kernel counts swap; None: the engine does not say
    place: str = ""  # the directory of images and containers
    free_bytes: int | None = None  # on the disk of that; None: not to be seen from here
    podman: bool = False  # Podman behind Docker's API
    rootless: bool = False  # it runs in a user namespace of its own
    maps_users: bool = False  # to other users of the host (userns-remap)
    apparmor: bool = False  # its host has it
    absent: bool = False  # it has no socket, or none for this user

    @property
    def unsupported(self) -> Finding | None:
        """Return the reason why no job can run in this engine; None: jobs can."""
        if self.podman:
            fact = "Podman is not supported: it makes other containers than it is asked for"
        elif self.rootless:
            fact = "rootless Docker is not supported: jobs could not write to their run directories in it"
        else:
            return None
        advice = "use Docker that root runs (unset DOCKER_HOST, or see engine in the settings)"
        return Finding(
            "container engine", Verdict.PROBLEM, fact, f"{advice}, or say executor: process in the settings"
        )

    @property
    def refusal(self) -> str | None:
        """Return ``unsupported`` as one line."""
        finding = self.unsupported
        return None if finding is None else f"{finding.fact}; {finding.advice}"


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Facts about the host itself; None: not readable."""

    cgroup: int | None = None  # version
    shm_bytes: int | None = None
    disk_free_bytes: int | None = None
    disk_path: str = ""
    remote_type: str | None = None  # of the file system of the state; None: it is local
    inotify_watches: int | None = None
    inotify_instances: int | None = None
    clock_synchronized: bool | None = None
    closed_installation: str = ""  # the directory with the runner or its Python that users cannot enter


@dataclass(frozen=True, slots=True)
class Machine:
    """All facts, and what the settings and images want."""

    nvidia: NvidiaFacts = NvidiaFacts()
    amd: AmdFacts = AmdFacts()
    engine: EngineFacts | None = None  # None: jobs run as plain processes
    host: HostFacts = HostFacts()
    wanted_cuda: tuple[int, int] | None = None  # of the torch in the image
    injection: Literal["auto", "cdi", "hook"] = "auto"
    groups: frozenset[str] = field(default_factory=frozenset)  # of the examining user


@dataclass(frozen=True, slots=True)
class InjectionChoice:
    """Method by which NVIDIA devices get into containers; ``problem`` says why there is none."""

    how: Injection | None
    problem: str = ""
    advice: str = ""


def choose_injection(engine: EngineFacts, wanted: Literal["auto", "cdi", "hook"] = "auto") -> InjectionChoice:
    """Return the injection of NVIDIA devices into containers: by CDI where it is ready, else by the hook."""
    can_cdi = parse_version(engine.version)[:2] >= CDI_ENGINE and engine.cdi_enabled is not False
    has_hook = "nvidia" in engine.runtimes
    names_cards = any(name.startswith(DEVICE_UUIDS) for name in engine.cdi_devices)
    if wanted != "hook" and can_cdi and names_cards:
        return InjectionChoice("cdi")
    if wanted != "cdi" and has_hook:
        return InjectionChoice("hook")
    if wanted == "hook":
        return InjectionChoice(
            None,
            "gpu_injection is hook, and the engine has no runtime nvidia",
            f"{TOOLKIT_FIRST}nvidia-ctk runtime configure --runtime=docker, and restart the engine",
        )
    if not can_cdi:
        fact = f"engine {engine.version or 'of unknown version'} cannot inject devices by CDI"
        if engine.cdi_enabled is False:
            fact += " (it is switched off)"
        tail = "" if wanted == "cdi" else ", and has no runtime nvidia"
        return InjectionChoice(
            None,
            f"{fact}{tail}",
            "use an engine of version 25 or later with features.cdi, or "
            f"{'let gpu_injection be auto and ' if wanted == 'cdi' else ''}register the runtime nvidia: "
            f"{TOOLKIT_FIRST}nvidia-ctk runtime configure --runtime=docker, and restart the engine",
        )
    generate = f"{TOOLKIT_FIRST}nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
    if engine.cdi_files:
        names = ", ".join(engine.cdi_devices) or "nothing"
        return InjectionChoice(
            None,
            f"the CDI specification ({', '.join(engine.cdi_files)}) names {names}, and jobs ask for UUIDs",
            f"{generate} --device-name-strategy=uuid; where NVML knows none (WSL2), gpu_injection: hook",
        )
    fact = "no CDI specification describes nvidia.com/gpu"
    if engine.cdi_unreadable:
        fact += f"; not readable: {', '.join(engine.cdi_unreadable)}"
    return InjectionChoice(None, fact, generate)


def examine(machine: Machine) -> tuple[Finding, ...]:
    """Return the findings about a machine, in the order in which a device gets into a job."""
    return (
        *_nvidia(machine),
        *_amd(machine),
        *_no_gpu(machine),
        *_engine(machine),
        *_host(machine.host),
    )


def has_gpus(nvidia: NvidiaFacts, amd: AmdFacts) -> bool:
    """Return True if a machine has a GPU, with or without a driver."""
    return bool(nvidia.on_bus or nvidia.gpus or amd.on_bus or amd.gpus)


def _no_gpu(machine: Machine) -> Iterator[Finding]:
    if not has_gpus(machine.nvidia, machine.amd):
        yield Finding("GPUs", Verdict.ABSENT, "none on the PCI bus", "jobs run on CPUs")


# --- NVIDIA


def _nvidia(machine: Machine) -> Iterator[Finding]:
    facts = machine.nvidia
    if not (facts.on_bus or facts.driver or facts.gpus):
        return
    yield _driver(facts, machine.wanted_cuda)
    if facts.nvml_error is not None:
        advice = "restart after a driver update: the kernel module and the library must be of one version"
        if facts.driver is None:
            advice = "load the driver first"
        yield Finding("NVML", Verdict.PROBLEM, facts.nvml_error, advice)
    elif facts.on_bus > len(facts.gpus):
        fact = f"{len(facts.gpus)} of {facts.on_bus} GPUs on the PCI bus answer"
        yield Finding("NVML", Verdict.WARNING, fact, "see dmesg for Xid errors; a lost GPU needs a reset")
    else:
        yield Finding("NVML", Verdict.OK, f"answers for {readable_count(len(facts.gpus), 'GPU')}")
    yield from _nodes("/dev/nvidia*", facts.nodes, "nvidia-modprobe -u -c=0 makes them", machine)
    for gpu in facts.gpus:
        yield from _gpu(gpu, machine)
    if machine.engine is not None and machine.engine.error is None:
        yield _injection(machine)


def _driver(facts: NvidiaFacts, wanted: tuple[int, int] | None) -> Finding:
    if facts.driver is None:
        return Finding(
            "NVIDIA driver",
            Verdict.PROBLEM,
            f"{readable_count(facts.on_bus, 'GPU')} on the PCI bus and no driver is loaded",
            "install the driver and load it (modprobe nvidia); see dmesg if that fails",
        )
    if wanted is None:
        return Finding("NVIDIA driver", Verdict.OK, f"{facts.driver}{_supports(facts)}")
    fact = f"{facts.driver}{_supports(facts)}; the image's torch needs CUDA {dotted(wanted)}"
    too_old = facts.cuda is not None and facts.cuda[0] < wanted[0]
    if too_old or not driver_fits(facts.driver, wanted):
        return Finding("NVIDIA driver", Verdict.PROBLEM, fact, driver_advice(facts.driver, wanted))
    return Finding("NVIDIA driver", Verdict.OK, fact)


def _supports(facts: NvidiaFacts) -> str:
    return "" if facts.cuda is None else f", supports CUDA up to {facts.cuda[0]}.{facts.cuda[1]}"


def _gpu(gpu: NvidiaGpu, machine: Machine) -> Iterator[Finding]:
    subject = f"{gpu.name} {gpu.model}"
    if gpu.unusable:
        yield Finding(subject, Verdict.PROBLEM, gpu.unusable, "runner gpus shows more")
    cuda = machine.wanted_cuda
    if cuda is not None and (problem := gpu_problem(Gpu(gpu.name, gpu.capability), cuda)):
        fact, _, advice = problem.removeprefix(f"{gpu.name} has ").rpartition("; ")
        yield Finding(subject, Verdict.PROBLEM, fact, advice)
    if gpu.ecc_errors:
        fact = f"{readable_count(gpu.ecc_errors, 'uncorrectable memory error')} since the driver was loaded"
        yield Finding(subject, Verdict.WARNING, fact, "drain it (runner gpus drain), and reset or replace it")
    if gpu.retired_pages:
        fact = f"{readable_count(gpu.retired_pages, 'memory page')} retired or remapped"
        yield Finding(subject, Verdict.WARNING, fact, "replace it when the number grows")
    if gpu.persistence is False:
        advice = "nvidia-smi -pm 1, or the service nvidia-persistenced"
        yield Finding(
            subject, Verdict.WARNING, "persistence mode is off: each job loads the driver anew", advice
        )


def _injection(machine: Machine) -> Finding:
    engine = machine.engine
    assert engine is not None  # noqa: S101  the caller has looked
    choice = choose_injection(engine, machine.injection)
    if choice.how is None:
        advice = choice.advice
        if machine.nvidia.toolkit is not None:  # that step is done
            advice = advice.replace(TOOLKIT_FIRST, "")
        return Finding("devices in containers", Verdict.PROBLEM, choice.problem, advice)
    files = ", ".join(engine.cdi_files) or "found by the engine"
    how = f"by CDI ({files})" if choice.how == "cdi" else "by the runtime nvidia"
    missing = [label for label, uuid in machine.nvidia.given if uuid not in engine.cdi_devices]
    if choice.how == "cdi" and missing:
        fact = f"the CDI specification ({files}) is of other devices: it lacks {', '.join(missing)}"
        advice = "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml --device-name-strategy=uuid"
        return Finding("devices in containers", Verdict.PROBLEM, fact, advice)
    return Finding("devices in containers", Verdict.OK, how)


# --- AMD


def _amd(machine: Machine) -> Iterator[Finding]:
    facts = machine.amd
    if not (facts.on_bus or facts.gpus):
        return
    if not facts.driver:
        yield Finding(
            "AMD driver",
            Verdict.PROBLEM,
            f"{readable_count(facts.on_bus, 'GPU')} on the PCI bus and amdgpu is not loaded",
            "load it (modprobe amdgpu); see dmesg if that fails",
        )
        return
    yield Finding(
        "AMD driver",
        Verdict.OK,
        f"amdgpu {facts.version or 'of the kernel'}; {readable_count(len(facts.gpus), 'GPU')} can compute",
    )
    if facts.kfd is None:
        advice = "install the amdgpu kernel module of ROCm, or a kernel with CONFIG_HSA_AMD"
        yield Finding("/dev/kfd", Verdict.PROBLEM, "is missing: nothing can compute", advice)
    else:
        yield from _nodes("/dev/kfd", (facts.kfd,), "", machine, groups_given=True)
    yield from _nodes(
        "/dev/dri/renderD*", facts.render, "see dmesg for errors of amdgpu", machine, groups_given=True
    )


def _nodes(
    subject: str, nodes: Iterable[Node], missing: str, machine: Machine, *, groups_given: bool = False
) -> Iterator[Finding]:
    """Yield the findings about device nodes: they exist, and may be opened.

    A daemon with an engine opens none itself: with ``groups_given``, containers have the groups of the nodes.
    """
    found = tuple(nodes)
    if not found:
        yield Finding(subject, Verdict.PROBLEM, "there are none", missing)
        return
    in_containers = groups_given and machine.engine is not None
    closed = tuple(each for each in found if not (each.accessible or (in_containers and each.by_group)))
    if not closed:
        given = sorted({node.group for node in found if not node.accessible})
        fact = ", ".join(node.path for node in found)
        more = f"; containers get the group {' and '.join(given)}" if given else ""
        yield Finding(subject, Verdict.OK, f"{fact}{more}")
        return
    groups = sorted({node.group for node in closed} - machine.groups)
    paths = ", ".join(node.path for node in closed)
    advice = (
        f"add the user to the group {' and '.join(groups)}, and log in again"
        if groups
        else "look at their modes"
    )
    yield Finding(subject, Verdict.PROBLEM, f"{paths}: this user may not open it", advice)


# --- engine and host


def _engine(machine: Machine) -> Iterator[Finding]:
    engine = machine.engine
    if engine is None:
        yield Finding("container engine", Verdict.ABSENT, "jobs run as plain processes", "")
    elif engine.error is not None:
        advice = "start it (systemctl start docker), or say executor: process in the settings"
        yield Finding("container engine", Verdict.PROBLEM, engine.error, advice)
    elif engine.unsupported is not None:
        yield engine.unsupported
    else:
        runtimes = ", ".join(engine.runtimes)
        storage = f"{engine.storage or 'unknown'}{' of containerd' if engine.containerd_store else ''}"
        cgroup = f"; cgroup {engine.cgroup}" if engine.cgroup else ""
        fact = f"{engine.version}; runtimes {runtimes}; storage {storage}{cgroup}"
        yield Finding("container engine", Verdict.OK, fact)
        yield from _place_of(engine)
        if engine.swap_limit is False:
            advice = "boot with swapaccount=1, or switch swap off (swapoff -a)"
            fact = "is not counted by this kernel: limits of memory do not hold for it"
            yield Finding("swap", Verdict.WARNING, fact, advice)
        if engine.maps_users:
            yield Finding(
                "users of containers",
                Verdict.OK,
                "the engine maps them to others (userns-remap); jobs get those of the host",
            )


def _place_of(engine: EngineFacts) -> Iterator[Finding]:
    if engine.place.startswith("/var/snap/"):
        fact = f"{engine.place} is of Docker from snap, which shows containers no hidden directory of a home"
        yield Finding("files of the engine", Verdict.PROBLEM, fact, "install Docker's own packages instead")
    if engine.free_bytes is not None:
        least = LEAST_DISK_BYTES * (2 if engine.containerd_store else 1)
        advice = f"{engine.place}: docker system prune, or another data-root"
        yield _least("free disk of the engine", engine.free_bytes, least, advice)


def _host(host: HostFacts) -> Iterator[Finding]:
    if host.remote_type is not None:
        yield Finding(
            "state directory",
            Verdict.PROBLEM,
            f"{host.disk_path} is on a file system of type {host.remote_type}",
            "set RUNNER_STATE_DIR to a directory on a local disk; executor: slurm alone may have it there",
        )
    if host.closed_installation:
        yield Finding(
            "installation",
            Verdict.PROBLEM,
            f"lies below {host.closed_installation}, which users cannot enter: root's daemon for all users"
            " does not start, and jobs of root's own that are plain processes cannot have packages",
            "install the runner outside of it, with a Python outside of it, such as /usr/bin/python3 in /opt",
        )
    if host.cgroup is None:
        yield Finding(
            "cgroups", Verdict.UNKNOWN, "not mounted at /sys/fs/cgroup", "limits do not hold without them"
        )
    else:
        yield Finding("cgroups", Verdict.OK, f"version {host.cgroup}")
    yield _least(
        "free disk",
        host.disk_free_bytes,
        LEAST_DISK_BYTES,
        f"{host.disk_path}: free some, or set RUNNER_STATE_DIR",
    )
    yield _least("shared memory", host.shm_bytes, GIB // 2, "mount it larger; plain processes share it")
    yield _limit("inotify watches", host.inotify_watches, LEAST_WATCHES, "fs.inotify.max_user_watches")
    yield _limit(
        "inotify instances", host.inotify_instances, LEAST_INSTANCES, "fs.inotify.max_user_instances"
    )
    if host.clock_synchronized is None:
        yield Finding("clock", Verdict.UNKNOWN, "the kernel does not say whether it is synchronised", "")
    elif host.clock_synchronized:
        yield Finding("clock", Verdict.OK, "synchronised")
    else:
        advice = "start chrony or systemd-timesyncd; schedules and logs follow the clock"
        yield Finding("clock", Verdict.WARNING, "not synchronised", advice)


def _least(subject: str, size: int | None, least: int, advice: str) -> Finding:
    if size is None:
        return Finding(subject, Verdict.UNKNOWN, "could not be read", "")
    fact = readable_size(size)
    if size < least:
        return Finding(
            subject, Verdict.WARNING, f"{fact}; at least {readable_size(least)} is advised", advice
        )
    return Finding(subject, Verdict.OK, fact)


def _limit(subject: str, number: int | None, least: int, name: str) -> Finding:
    if number is None:
        return Finding(subject, Verdict.UNKNOWN, "could not be read", "")
    if number < least:
        return Finding(subject, Verdict.WARNING, str(number), f"sysctl -w {name}={least}")
    return Finding(subject, Verdict.OK, str(number))
