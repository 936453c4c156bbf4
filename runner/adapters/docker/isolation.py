"""What an engine and its host offer to isolate containers, as the engine itself says."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import structlog

from runner.adapters.docker.hardening import HardeningSettings

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class EngineIsolation:
    """What an engine says about itself."""

    apparmor: bool
    """Its host has AppArmor."""
    user_namespaces: bool
    """It maps the users of containers to other users of the host (``userns-remap``)."""
    rootless: bool
    """It runs without root, in a user namespace of its own."""

    def in_force(self, wanted: HardeningSettings) -> HardeningSettings:
        """Return what can be asked of this engine."""
        return wanted if self.apparmor else replace(wanted, apparmor=None)


def read_isolation(info: Mapping[str, Any]) -> EngineIsolation:
    """Return what the answer to ``GET /info`` says."""
    options = [str(each) for each in info.get("SecurityOptions") or ()]
    names = {each.partition(",")[0].removeprefix("name=") for each in options}
    return EngineIsolation("apparmor" in names, "userns" in names, "rootless" in names)


def report_isolation(seen: EngineIsolation, wanted: HardeningSettings) -> None:
    """Log what an engine offers, and where that is less than the operator wants."""
    log.info(
        "engine.isolation",
        apparmor=seen.apparmor,
        user_namespaces=seen.user_namespaces,
        rootless=seen.rootless,
    )
    if wanted.apparmor and not seen.apparmor:
        log.warning("engine.no_apparmor", profile=wanted.apparmor, problem="its host has no AppArmor")
    if seen.user_namespaces and wanted.user_namespace == "engine":
        log.warning(
            "engine.maps_users",
            problem="the users of containers are others on the host, and cannot write to run directories",
            remedy="user_namespace: host in the settings, or an engine without userns-remap",
        )
