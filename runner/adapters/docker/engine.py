"""The facts about a container engine, as the engine itself says them, and what they allow to ask of it."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shutil import disk_usage
from typing import Any, Final

import structlog
import yaml
from docker import APIClient

from runner.adapters.docker.connection import EngineConnection, engine_errors
from runner.adapters.docker.hardening import HardeningSettings
from runner.base.errors import Unavailable
from runner.core.doctor import EngineFacts

CDI_DIRECTORIES: Final = ("etc/cdi", "var/run/cdi")
ENGINE_TIMEOUT_S: Final = 10
NVIDIA_KIND: Final = "nvidia.com/gpu"

log = structlog.get_logger()


def describe_engine(url: str | None, root: Path = Path("/")) -> EngineFacts:
    """Return the facts about the container engine."""
    connection = EngineConnection(url, ENGINE_TIMEOUT_S)
    try:
        with engine_errors("look at the container engine"):
            client = connection.connect()
            try:
                return ask_engine(client, root)
            finally:
                client.close()
    except Unavailable as error:
        absent = isinstance(error.__cause__, FileNotFoundError | PermissionError)
        return EngineFacts(error=str(error), absent=absent)


def ask_engine(client: APIClient, root: Path = Path("/")) -> EngineFacts:
    """Return the facts about the engine of a client."""
    return read_engine(client.info(), client.version(), root)


def read_engine(info: Mapping[str, Any], version: Mapping[str, Any], root: Path = Path("/")) -> EngineFacts:
    """Return the facts in the answers to ``GET /info`` and ``GET /version``."""
    options = [str(each) for each in info.get("SecurityOptions") or ()]
    names = {each.partition(",")[0].removeprefix("name=") for each in options}
    known = info.get("CDISpecDirs")
    place, version_of_cgroup = str(info.get("DockerRootDir") or ""), str(info.get("CgroupVersion") or "")
    found, unreadable = _read_specifications(known, root)
    return EngineFacts(
        version=str(info.get("ServerVersion", "")),
        runtimes=tuple(sorted(info.get("Runtimes") or ())),
        cdi_enabled=None if known is None else bool(known),
        cdi_files=tuple(found),
        cdi_unreadable=tuple(unreadable),
        cdi_devices=tuple(sorted(_discovered(info) or {name for each in found.values() for name in each})),
        storage=str(info.get("Driver", "")),
        containerd_store="io.containerd.snapshotter.v1" in str(info.get("DriverStatus")),
        cgroup=f"version {version_of_cgroup} by {info.get('CgroupDriver')}" if version_of_cgroup else "",
        swap_limit=info.get("SwapLimit"),
        place=place,
        free_bytes=_free_bytes(place, root),
        podman=any("podman" in str(each.get("Name")).lower() for each in version.get("Components") or ()),
        rootless="rootless" in names,
        maps_users="userns" in names,
        apparmor="apparmor" in names,
    )


def _free_bytes(place: str, root: Path) -> int | None:
    """Return the free bytes of the engine's disk; None: it is on another machine, or does not say where."""
    with suppress(OSError):
        return disk_usage(root / place.lstrip("/")).free if place else None
    return None


def _read_specifications(
    directories: Iterable[str] | None, root: Path
) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Return the devices of each CDI specification of NVIDIA GPUs, and the files that cannot be read."""
    found: dict[str, tuple[str, ...]] = {}
    unreadable = []
    for path in _cdi_files(directories, root):
        try:
            names = _nvidia_devices(path)
        except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError):
            unreadable.append(str(path))
            continue
        if names is not None:
            found[str(path)] = names
    return found, unreadable


def _discovered(info: Mapping[str, Any]) -> set[str]:
    """Return the names of NVIDIA's devices that an engine has found itself, from version 28.2 on."""
    ids = [str(each.get("ID")).partition("=") for each in info.get("DiscoveredDevices") or ()]
    return {name for kind, _, name in ids if kind == NVIDIA_KIND}


def _cdi_files(directories: Iterable[str] | None, root: Path) -> Iterator[Path]:
    named = [each.lstrip("/") for each in directories] if directories else list(CDI_DIRECTORIES)
    for directory in named:
        with suppress(OSError):
            yield from sorted(
                each for each in (root / directory).iterdir() if each.suffix in {".yaml", ".json"}
            )


def _nvidia_devices(path: Path) -> tuple[str, ...] | None:
    """Return the names of the devices of a CDI specification; None: it is not one of NVIDIA's GPUs."""
    text, loader = path.read_text(), getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    # All scalars stay text: the name of a slice, 1:0, is sixty in YAML 1.1.
    content = json.loads(text) if path.suffix == ".json" else yaml.load(text, loader)  # noqa: S506  no objects
    if not isinstance(content, dict) or not isinstance(content.get("devices") or [], list):
        raise TypeError(f"{path}: is no CDI specification")
    if content.get("kind") != NVIDIA_KIND:
        return None
    return tuple(str(each.get("name")) for each in content.get("devices") or [] if isinstance(each, dict))


def in_force(wanted: HardeningSettings, engine: EngineFacts) -> HardeningSettings:
    """Return the hardening asked of an engine: no profile without AppArmor, and the users of the host."""
    return replace(
        wanted,
        apparmor=wanted.apparmor if engine.apparmor else None,
        user_namespace="host" if engine.maps_users else wanted.user_namespace,
    )


def report_engine(engine: EngineFacts, wanted: HardeningSettings) -> None:
    """Log what an engine offers, and where that differs from what the operator wants."""
    log.info("engine.isolation", apparmor=engine.apparmor, user_namespaces=engine.maps_users)
    if wanted.apparmor and not engine.apparmor:
        log.warning("engine.no_apparmor", profile=wanted.apparmor, problem="its host has no AppArmor")
    if engine.maps_users and wanted.user_namespace == "engine":
        log.warning(
            "engine.maps_users",
            problem="with its mapping (userns-remap) jobs could not write to their run directories",
            chosen="user_namespace: host",
        )
