"""The executors of a daemon by name: the runner's own, and those of plug-ins (``jobs.contract.plugins``)."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jobs.contract import PluginRegistry, load_plugins, plugin_of_type
from runner.adapters.either import Choices, EitherExec, EitherExecutor, Room
from runner.adapters.gpu import nvidia
from runner.adapters.host.clock import boot_id
from runner.adapters.host_torch import host_problem
from runner.adapters.process.exec import ProcessExec
from runner.adapters.process.executor import ProcessExecutor, ProcessSettings
from runner.adapters.slurm.commands import SlurmCommands
from runner.adapters.slurm.exec import SlurmExec
from runner.adapters.slurm.executor import SlurmExecutor, SlurmExecutorSettings
from runner.adapters.slurm.oci import NodeSettings
from runner.adapters.slurm.options import SlurmRules
from runner.base.errors import UsageError
from runner.core.ports.exec import ExecPort
from runner.core.ports.executor import Executor
from runner.files.settings.model import OWN_EXECUTORS, SHIPPED_SECCOMP, Settings

if TYPE_CHECKING:
    from runner.adapters.docker.hardening import HardeningSettings
    from runner.adapters.slurm.containers import NodeContainers


@dataclass(frozen=True, slots=True)
class ExecutorType:
    """An executor as a daemon makes it, and what runs commands inside of its attempts."""

    executor: Callable[[Path, Settings, str], Executor]
    """From the state directory, the settings, and the instance, whose attempts alone it observes."""
    commands: Callable[[Path, Settings], ExecPort]


@cache
def executors() -> PluginRegistry[ExecutorType]:
    """Return the executors that ``executor`` in the settings can name."""
    own = {name: f"{__name__}:{name.upper()}" for name in OWN_EXECUTORS}
    return load_plugins("executors", own, plugin_of_type(ExecutorType))


def local_executor(directory: Path, settings: Settings, kind: str, instance: str) -> Executor:
    """Return the executor of attempts with the rights of this process.

    Raises:
        UsageError: there is no such executor.
    """
    return _type(kind).executor(directory, settings, instance)


def local_commands(directory: Path, settings: Settings, kind: str) -> ExecPort:
    """Return the port that runs commands inside of attempts.

    Raises:
        UsageError: there is no such executor.
    """
    return _type(kind).commands(directory, settings)


def _type(kind: str) -> ExecutorType:
    known = executors()
    if kind not in known.found:
        why = known.why_not(kind) or "; install the plug-in that has it, or name another one"
        raise UsageError(f"executor: there is no {kind}{why}")
    return known.found[kind]


# --- Containers


def _docker(directory: Path, settings: Settings, instance: str) -> Executor:
    from runner.adapters.docker.executor import DockerExecutor, DockerExecutorSettings, write_hosts_file  # noqa: PLC0415  loads the SDK

    etc = directory / "etc"
    hardened = replace(_hardened(settings, instance), hosts_file=write_hosts_file(etc), accounts=etc)
    choose = settings.gpu_injection == "auto"
    return DockerExecutor(
        DockerExecutorSettings(
            hardened, settings.engine, choose_injection=choose, driver_version=nvidia.driver_version
        )
    )


def _docker_commands(_directory: Path, settings: Settings) -> ExecPort:
    from runner.adapters.docker.exec import DockerExec  # noqa: PLC0415  loads the SDK

    return DockerExec(settings.engine)


def _hardened(settings: Settings, instance: str) -> "HardeningSettings":
    from runner.adapters.docker.hardening import HardeningSettings  # noqa: PLC0415  as used

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


DOCKER: Final = ExecutorType(_docker, _docker_commands)

# --- Plain processes


def _process(directory: Path, _settings: Settings, instance: str) -> Executor:
    return ProcessExecutor(ProcessSettings(instance, directory / "processes", find_problem=host_problem))


def _process_commands(directory: Path, _settings: Settings) -> ExecPort:
    return ProcessExec(directory / "processes")


PROCESS: Final = ExecutorType(_process, _process_commands)

# --- Jobs of Slurm


def _slurm(directory: Path, settings: Settings, instance: str) -> Executor:
    batch = SlurmExecutor(slurm_settings(directory, settings, instance))
    if settings.slurm.local is None:
        return batch
    here = local_executor(directory, settings, _kind_here(settings), instance)
    room = Room(settings.slurm.local.cpus, settings.slurm.local.memory_bytes)
    # Mounts of containers here need pins, which those on nodes do not.
    pinned = batch.in_container and os.geteuid() == 0
    return EitherExecutor(here, batch, room, _choices(directory), mounts_here=not pinned)


def _slurm_commands(directory: Path, settings: Settings) -> ExecPort:
    there = SlurmExec(directory / "slurm")
    if settings.slurm.local is None:
        return there
    here = local_commands(directory, settings, _kind_here(settings))
    return EitherExec(here, there, _choices(directory))


def _kind_here(settings: Settings) -> str:
    """Return the executor on this machine beside Slurm: containers beside containers."""
    return "docker" if settings.slurm.containers == "crun" else "process"


def _choices(directory: Path) -> Choices:
    return Choices(directory / "places")


def slurm_settings(directory: Path, settings: Settings, instance: str) -> SlurmExecutorSettings:
    """Return the settings with which a daemon hands its jobs to Slurm."""
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
    """Return the rules of the settings for jobs in Slurm."""
    said = settings.slurm
    types = {part.casefold(): name for part, name in said.gpu_types.items()}
    classes = {name: (each.partition, each.qos) for name, each in said.classes.items()}
    return SlurmRules(said.partition, said.account, said.qos, types, classes, said.nice_per_priority)


SLURM: Final = ExecutorType(_slurm, _slurm_commands)
