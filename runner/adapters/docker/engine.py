"""The facts about a container engine, as the engine itself says them, and what they allow to ask of it."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import structlog
from docker import APIClient

from runner.adapters.docker.connection import EngineConnection, engine_errors
from runner.adapters.docker.hardening import HardeningSettings
from runner.base.errors import Unavailable
from runner.core.doctor import EngineFacts

CDI_DIRECTORIES: Final = ("etc/cdi", "var/run/cdi")
ENGINE_TIMEOUT_S: Final = 10

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
        return EngineFacts(error=str(error))


def ask_engine(client: APIClient, root: Path = Path("/")) -> EngineFacts:
    """Return the facts about the engine of a client."""
    return read_engine(client.info(), client.version(), root)


def read_engine(info: Mapping[str, Any], version: Mapping[str, Any], root: Path = Path("/")) -> EngineFacts:
    """Return what the answers to ``GET /info`` and ``GET /version`` say."""
    options = [str(each) for each in info.get("SecurityOptions") or ()]
    names = {each.partition(",")[0].removeprefix("name=") for each in options}
    known = info.get("CDISpecDirs")
    return EngineFacts(
        version=str(info.get("ServerVersion", "")),
        runtimes=tuple(sorted(info.get("Runtimes") or ())),
        cdi_enabled=None if known is None else bool(known),
        cdi_files=tuple(_cdi_files(known, root)),
        storage=str(info.get("Driver", "")),
        podman=any("podman" in str(each.get("Name")).lower() for each in version.get("Components") or ()),
        rootless="rootless" in names,
        maps_users="userns" in names,
        apparmor="apparmor" in names,
    )


def _cdi_files(directories: Iterable[str] | None, root: Path) -> Iterator[str]:
    """Yield the CDI specifications that describe NVIDIA GPUs."""
    named = [each.lstrip("/") for each in directories] if directories else list(CDI_DIRECTORIES)
    for directory in named:
        with suppress(OSError):
            for path in sorted((root / directory).iterdir()):
                if path.suffix in {".yaml", ".json"} and "nvidia.com/gpu" in path.read_text(errors="replace"):
                    yield str(path)


def in_force(wanted: HardeningSettings, engine: EngineFacts) -> HardeningSettings:
    """Return what is asked of an engine: no profile without AppArmor, and the users of the host."""
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
