"""The adapters of a daemon: made in this process, or asked of its helper where the daemon is split."""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from typing_extensions import override

from images.settings import ImageSettings, PluginCode
from images.store import ImageStore
from jobs.contract import WORKLOAD_REGISTRY
from runner.adapters.docker.images import DockerImages
from runner.adapters.host.disk_counters import HostDiskCounters
from runner.adapters.host.job_checkpoints import CheckpointVerifier
from runner.adapters.host.mounts import PinnedMounts
from runner.adapters.host.opening import RunFileOpener, is_openat2_there
from runner.adapters.host.run_directories import HostRunDirectories
from runner.adapters.host.run_directory import HostRunDirectory
from runner.adapters.host.run_files import FilesBelow
from runner.adapters.host.users import HostUsers
from runner.adapters.image_locks import choose_for_this_machine
from runner.adapters.privileged.client import PrivilegedClient
from runner.adapters.privileged.remote import (
    RemoteDiskUse,
    RemoteExecutor,
    RemoteNetwork,
    RemotePackages,
    RemoteRunDirectories,
    RemoteRunDirectory,
)
from runner.adapters.privileged.remote_exec import RemoteExec
from runner.agent.ports import OpenRunDirectory
from runner.core.ports.disk import DiskActivity, NoDiskUse
from runner.core.ports.exec import ExecPort
from runner.core.ports.executor import Executor
from runner.core.ports.images import Images
from runner.core.ports.network import OutboundNetwork
from runner.core.ports.packages import Packages
from runner.core.ports.users import MountPins, UnknownUids
from runner.files.settings.model import Settings
from runner.server.executors import local_commands, local_executor
from runner.server.network import make_network
from runner.server.packages import make_packages
from runner.services.retention import RunDirectories

if TYPE_CHECKING:
    from runner.adapters.privileged.interface import ExecutorKind


@dataclass(frozen=True, slots=True)
class Adapters:
    """Access of a daemon to the host and the engine, with the rights of this process."""

    directory: Path
    settings: Settings
    instance: str
    engine_refusal: str | None = None

    def users(self) -> HostUsers:
        """Return the accounts of the host and their files."""
        return HostUsers(unknown_uids(self.settings))

    def verifier(self, users: HostUsers) -> CheckpointVerifier:
        """Return the reader that checks checkpoints with the rights of their owners."""
        return CheckpointVerifier(self.settings.verify_within_s, users)

    def executor(self, kind: str) -> Executor:
        """Return the executor of attempts."""
        return local_executor(self.directory, self.settings, kind, self.instance)

    def commands(self, kind: str) -> ExecPort:
        """Return the port that runs commands inside of attempts."""
        return local_commands(self.directory, self.settings, kind)

    def disk(self, executor: Executor) -> DiskActivity:
        """Return the counter of the disk use of attempts."""
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
        """Return the pins that hold the sources of mounts in place."""
        return PinnedMounts(self.directory / "pins", users)

    def open_run_directory(self, verifier: CheckpointVerifier) -> OpenRunDirectory:
        """Return the function that opens the run directory of a job."""
        jobs, files = self.directory / "jobs", None
        if os.geteuid() == 0 and is_openat2_there():
            jobs.mkdir(mode=0o755, exist_ok=True)
            files = FilesBelow(RunFileOpener(jobs), jobs)
        return partial(HostRunDirectory, verifier=verifier, files=files)

    def run_directories(self) -> RunDirectories:
        """Return the list of run directories, which also removes them."""
        return HostRunDirectories(self.directory / "jobs")

    def settings_changed(self) -> None:
        """Let the settings file be read again by the other part of the daemon, if there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitAdapters(Adapters):
    """Adapters of a daemon that has given up root: its helper acts, and checks what it is asked."""

    helper: PrivilegedClient

    @override
    def users(self) -> HostUsers:
        return HostUsers(
            unknown_uids(self.settings),
            connect=self.helper.host.open_spawner,
            open_directory=self._files().open_directory,
        )

    @override
    def executor(self, kind: str) -> Executor:
        known = cast("ExecutorKind", kind)  # the helper refuses others
        return RemoteExecutor(self.helper, known, self.instance)

    @override
    def commands(self, kind: str) -> ExecPort:
        return RemoteExec(self.helper)

    @override
    def disk(self, executor: Executor) -> DiskActivity:
        return RemoteDiskUse(self.helper)

    @override
    def network(self, executor: Executor) -> OutboundNetwork | None:
        return RemoteNetwork.of(self.helper)

    @override
    def images(self) -> Images:
        return self.helper.images

    @override
    def packages(self, images: Images, executor: Executor, users: HostUsers) -> Packages:
        return RemotePackages(self.helper)

    @override
    def pins(self, users: HostUsers) -> MountPins:
        return self.helper.pins

    @override
    def open_run_directory(self, verifier: CheckpointVerifier) -> OpenRunDirectory:
        return partial(RemoteRunDirectory, verifier=verifier, files=self._files(), helper=self.helper)

    @override
    def run_directories(self) -> RunDirectories:
        return RemoteRunDirectories(self.helper, self.directory / "jobs")

    @override
    def settings_changed(self) -> None:
        self.helper.host.reload_settings()

    def _files(self) -> FilesBelow:
        return FilesBelow(self.helper.runs, self.directory / "jobs")


def unknown_uids(settings: Settings) -> UnknownUids:
    """Return the treatment of uids that have no account; one's own daemon serves its user alone anyway."""
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
        plugins=tuple(PluginCode(each.package, each.metadata) for each in WORKLOAD_REGISTRY.plugins),
    )


def find_engine_refusal(settings: Settings) -> str | None:
    """Return the reason why no job can run in the engine; None: jobs can, or it does not answer now."""
    if settings.executor not in {"auto", "docker"}:
        return None
    from runner.adapters.docker.engine import describe_engine  # noqa: PLC0415  loads the SDK

    return describe_engine(settings.engine).refusal
