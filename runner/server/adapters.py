"""The adapters of a daemon: made in this process, or asked of its helper where the daemon is split."""

import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from images.settings import ImageSettings
from images.store import ImageStore
from runner.adapters.docker.hardening import HardeningSettings
from runner.adapters.docker.images import DockerImages
from runner.adapters.either import Choices, EitherExec, EitherExecutor, Room
from runner.adapters.gpu import nvidia
from runner.adapters.host.clock import boot_id
from runner.adapters.host.disk_counters import HostDiskCounters
from runner.adapters.host.job_checkpoints import CheckpointVerifier
from runner.adapters.host.mounts import PinnedMounts
from runner.adapters.host.opening import RunFileOpener, is_openat2_there
from runner.adapters.host.run_directories import HostRunDirectories
from runner.adapters.host.run_directory import HostRunDirectory
from runner.adapters.host.run_files import FilesBelow
from runner.adapters.host.users import HostUsers
from runner.adapters.host_torch import host_problem
from runner.adapters.image_locks import choose_for_this_machine
from runner.adapters.privileged.client import PrivilegedClient
from runner.adapters.privileged.interface import ExecutorKind
from runner.adapters.privileged.remote import (
    RemoteDiskUse,
    RemoteExecutor,
    RemoteNetwork,
    RemotePackages,
    RemoteRunDirectories,
    RemoteRunDirectory,
)
from runner.adapters.privileged.remote_exec import RemoteExec
from runner.adapters.process.exec import ProcessExec
from runner.adapters.process.executor import ProcessExecutor, ProcessSettings
from runner.adapters.slurm.commands import SlurmCommands
from runner.adapters.slurm.exec import SlurmExec
from runner.adapters.slurm.executor import SlurmExecutor, SlurmExecutorSettings
from runner.adapters.slurm.oci import NodeSettings
from runner.adapters.slurm.options import SlurmRules
from runner.agent.ports import OpenRunDirectory
from runner.core.ports.disk import DiskActivity, NoDiskUse
from runner.core.ports.exec import ExecPort
from runner.core.ports.executor import Executor
from runner.core.ports.images import Images
from runner.core.ports.network import OutboundNetwork
from runner.core.ports.packages import Packages
from runner.core.ports.users import MountPins, UnknownUids
from runner.files.settings.model import SHIPPED_SECCOMP, Settings
from runner.server.network import make_network
from runner.server.packages import make_packages
from runner.services.retention import RunDirectories

if TYPE_CHECKING:
    from runner.adapters.slurm.containers import NodeContainers


class Adapters(Protocol):
    """Access of a daemon to the host and the engine."""

    @property
    def engine_refusal(self) -> str | None:
        """Return the reason why no job can run in the engine; None: jobs can, or it did not answer."""

    def users(self) -> HostUsers:
        """Return the accounts of the host and their files."""

    def verifier(self, users: HostUsers) -> CheckpointVerifier:
        """Return what reads and checks checkpoints with the rights of their owners."""

    def executor(self, kind: ExecutorKind) -> Executor:
        """Return what starts and observes attempts."""

    def commands(self, kind: str) -> ExecPort:
        """Return what runs commands inside of attempts."""

    def disk(self, executor: Executor) -> DiskActivity:
        """Return what counts the disk use of attempts."""

    def network(self, executor: Executor) -> OutboundNetwork | None:
        """Return the network of jobs that may reach the outside, None where jobs have that of this host."""

    def images(self) -> Images:
        """Return the images that attempts run in."""

    def packages(self, images: Images, executor: Executor, users: HostUsers) -> Packages:
        """Return the packages of jobs."""

    def pins(self, users: HostUsers) -> MountPins:
        """Return what holds the sources of mounts in place."""

    def open_run_directory(self, verifier: CheckpointVerifier) -> OpenRunDirectory:
        """Return what opens the run directory of a job."""

    def run_directories(self) -> RunDirectories:
        """Return what lists and removes run directories."""

    def settings_changed(self) -> None:
        """Let the settings file be read again by the other part of the daemon, if there is one."""


@dataclass(frozen=True, slots=True)
class LocalAdapters:
    """Adapters that act with the rights of this process."""

    directory: Path
    settings: Settings
    instance: str
    engine_refusal: str | None = None

    def users(self) -> HostUsers:
        """Return the accounts of the host and their files."""
        return HostUsers(unknown_uids(self.settings))

    def verifier(self, users: HostUsers) -> CheckpointVerifier:
        """Return what reads and checks checkpoints with the rights of their owners."""
        return CheckpointVerifier(self.settings.verify_within_s, users)

    def executor(self, kind: ExecutorKind) -> Executor:
        """Return what starts and observes attempts."""
        return local_executor(self.directory, self.settings, kind, self.instance)

    def commands(self, kind: str) -> ExecPort:
        """Return what runs commands inside of attempts."""
        return local_commands(self.directory, self.settings, kind)

    def disk(self, executor: Executor) -> DiskActivity:
        """Return what counts the disk use of attempts."""
        return NoDiskUse() if executor.queues else HostDiskCounters()

    def network(self, executor: Executor) -> OutboundNetwork | None:
        """Return the network of jobs that may reach the outside, None where jobs have that of this host."""
        return make_network(self.settings, self.instance, executor)

    def images(self) -> Images:
        """Return the images that attempts run in."""
        return local_images(self.directory, self.settings)

    def packages(self, images: Images, executor: Executor, users: HostUsers) -> Packages:
        """Return the packages of jobs."""
        return make_packages(self.directory, self.settings, images, users, in_container=executor.in_container)

    def pins(self, users: HostUsers) -> MountPins:
        """Return what holds the sources of mounts in place."""
        return PinnedMounts(self.directory / "pins", users)

    def open_run_directory(self, verifier: CheckpointVerifier) -> OpenRunDirectory:
        """Return what opens the run directory of a job."""
        jobs, files = self.directory / "jobs", None
        if os.geteuid() == 0 and is_openat2_there():
            jobs.mkdir(mode=0o755, exist_ok=True)
            files = FilesBelow(RunFileOpener(jobs), jobs)
        return partial(HostRunDirectory, verifier=verifier, files=files)

    def run_directories(self) -> RunDirectories:
        """Return what lists and removes run directories."""
        return HostRunDirectories(self.directory / "jobs")

    def settings_changed(self) -> None:
        """Do nothing: the whole daemon reads the file."""


@dataclass(frozen=True, slots=True)
class SplitAdapters:
    """Adapters of a daemon that has given up root: its helper acts, and checks what it is asked."""

    directory: Path
    settings: Settings
    instance: str
    helper: PrivilegedClient
    engine_refusal: str | None = None

    def users(self) -> HostUsers:
        """Return the accounts of the host and their files."""
        return HostUsers(
            unknown_uids(self.settings),
            connect=self.helper.host.open_spawner,
            open_directory=self._files().open_directory,
        )

    def verifier(self, users: HostUsers) -> CheckpointVerifier:
        """Return what reads and checks checkpoints with the rights of their owners."""
        return CheckpointVerifier(self.settings.verify_within_s, users)

    def executor(self, kind: ExecutorKind) -> Executor:
        """Return what starts and observes attempts."""
        return RemoteExecutor(self.helper, kind, self.instance)

    def commands(self, _kind: str) -> ExecPort:
        """Return what runs commands inside of attempts."""
        return RemoteExec(self.helper)

    def disk(self, _executor: Executor) -> DiskActivity:
        """Return what counts the disk use of attempts."""
        return RemoteDiskUse(self.helper)

    def network(self, _executor: Executor) -> OutboundNetwork | None:
        """Return the network of jobs that may reach the outside, None where jobs have that of this host."""
        return RemoteNetwork.of(self.helper)

    def images(self) -> Images:
        """Return the images that attempts run in."""
        return self.helper.images

    def packages(self, _images: Images, _executor: Executor, _users: HostUsers) -> Packages:
        """Return the packages of jobs."""
        return RemotePackages(self.helper)

    def pins(self, _users: HostUsers) -> MountPins:
        """Return what holds the sources of mounts in place."""
        return self.helper.pins

    def open_run_directory(self, verifier: CheckpointVerifier) -> OpenRunDirectory:
        """Return what opens the run directory of a job."""
        return partial(RemoteRunDirectory, verifier=verifier, files=self._files(), helper=self.helper)

    def run_directories(self) -> RunDirectories:
        """Return what lists and removes run directories."""
        return RemoteRunDirectories(self.helper, self.directory / "jobs")

    def settings_changed(self) -> None:
        """Let the helper read the settings file again."""
        self.helper.host.reload_settings()

    def _files(self) -> FilesBelow:
        return FilesBelow(self.helper.runs, self.directory / "jobs")


def unknown_uids(settings: Settings) -> UnknownUids:
    """Return what is done with uids that have no account; one's own daemon serves its user alone anyway."""
    return settings.unknown_uids or ("refuse" if settings.serves_all_users else "accept")


def local_images(directory: Path, settings: Settings) -> DockerImages:
    return DockerImages(ImageStore(image_settings(directory, settings), choose=choose_for_this_machine))


def image_settings(directory: Path, settings: Settings) -> ImageSettings:
    """Return the settings of the image store."""
    return ImageSettings(
        cache_dir=directory / "images",
        engine_url=settings.engine,
        registry_login=settings.registry_login,
        base=settings.base,
        pull=settings.pull,
        builder=settings.builder,
        ca_file=settings.ca_file,
        indexes=settings.torch_indexes,
        locks=settings.image_locks,
        lock_dir=directory / "images" / "lock-files",
    )


def local_executor(directory: Path, settings: Settings, kind: str, instance: str) -> Executor:
    if kind == "slurm":
        batch = SlurmExecutor(slurm_settings(directory, settings, instance))
        if settings.slurm.local is None:
            return batch
        here = local_executor(directory, settings, _kind_here(settings), instance)
        room = Room(settings.slurm.local.cpus, settings.slurm.local.memory_bytes)
        # Mounts of containers here need pins, which those on nodes do not.
        pinned = batch.in_container and os.geteuid() == 0
        return EitherExecutor(here, batch, room, _choices(directory), mounts_here=not pinned)
    if kind == "process":
        return ProcessExecutor(ProcessSettings(instance, directory / "processes", find_problem=host_problem))
    from runner.adapters.docker.executor import DockerExecutor, DockerExecutorSettings, write_hosts_file  # noqa: PLC0415  loads the SDK

    hardened = replace(
        _hardened(settings, instance), hosts_file=write_hosts_file(directory), accounts=directory / "accounts"
    )
    choose = settings.gpu_injection == "auto"
    return DockerExecutor(
        DockerExecutorSettings(
            hardened, settings.engine, choose_injection=choose, driver_version=nvidia.driver_version
        )
    )


def find_engine_refusal(settings: Settings) -> str | None:
    """Return the reason why no job can run in the engine; None: jobs can, or it does not answer now."""
    if settings.executor not in {"auto", "docker"}:
        return None
    from runner.adapters.docker.engine import describe_engine  # noqa: PLC0415  loads the SDK

    return describe_engine(settings.engine).refusal


def _kind_here(settings: Settings) -> str:
    """Return what runs attempts on this machine beside Slurm: containers beside containers."""
    return "docker" if settings.slurm.containers == "crun" else "process"


def _choices(directory: Path) -> Choices:
    return Choices(directory / "places")


def slurm_settings(directory: Path, settings: Settings, instance: str) -> SlurmExecutorSettings:
    """Return how a daemon hands its jobs to Slurm."""
    said = settings.slurm
    return SlurmExecutorSettings(
        instance=instance,
        directory=directory / "slurm",
        commands=SlurmCommands(said.conf, said.timeout_s),
        rules=slurm_rules(settings),
        poll_s=said.poll_every_s,
        interface=said.interface,
        containers=_node_containers(directory, settings, instance) if said.containers == "crun" else None,
    )


def _node_containers(directory: Path, settings: Settings, instance: str) -> "NodeContainers":
    from runner.adapters.slurm.containers import NodeContainers  # noqa: PLC0415  loads the SDK of the engine
    from runner.adapters.slurm.images import UnpackedImages  # noqa: PLC0415  the same

    said = settings.slurm
    seccomp = settings.seccomp_text() or SHIPPED_SECCOMP["runner"].read_text()
    return NodeContainers(
        instance,
        UnpackedImages(said.images_dir or directory / "slurm-images", settings.engine),
        NodeSettings(said.init, seccomp, os.uname().machine),
        settings.open_files,
        shares_network=said.nodes_network == "host",
        cdi_directories=said.cdi_directories,
    )


def slurm_rules(settings: Settings) -> SlurmRules:
    """Return what the settings say about jobs in Slurm."""
    said = settings.slurm
    types = {part.casefold(): name for part, name in said.gpu_types.items()}
    classes = {name: (each.partition, each.qos) for name, each in said.classes.items()}
    return SlurmRules(said.partition, said.account, said.qos, types, classes, said.nice_per_priority)


def local_commands(directory: Path, settings: Settings, kind: str) -> ExecPort:
    """Return what runs commands inside of attempts."""
    if kind == "slurm":
        there = SlurmExec(directory / "slurm")
        if settings.slurm.local is None:
            return there
        here = local_commands(directory, settings, _kind_here(settings))
        return EitherExec(here, there, _choices(directory))
    if kind == "process":
        return ProcessExec(directory / "processes")
    from runner.adapters.docker.exec import DockerExec  # noqa: PLC0415  loads the SDK

    return DockerExec(settings.engine)


def _hardened(settings: Settings, instance: str) -> HardeningSettings:
    return HardeningSettings(
        instance=instance,
        runtime=settings.runtime,
        gpu_injection="hook" if settings.gpu_injection == "hook" else "cdi",
        seccomp=settings.seccomp_text(),
        apparmor=settings.apparmor,
        user_namespace=settings.user_namespace,
        memlock_unlimited=settings.memlock_unlimited,
        open_files=settings.open_files,
        boot_id=boot_id(),
    )
