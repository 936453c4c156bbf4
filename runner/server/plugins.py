"""The plug-ins of this process, for the log of a daemon and for ``runner doctor``."""

from collections.abc import Iterator
from typing import Any, Final

import structlog

from jobs.contract import WORKLOAD_REGISTRY, PluginRegistry
from runner.core.doctor import Finding, Verdict
from runner.files.policy.load import plugin_policies
from runner.files.settings.notify import channels
from runner.server.executors import executors

ADVICE: Final = "mend or remove it, and restart the daemon; nothing else depends on it"

log = structlog.get_logger()


def registries() -> tuple[PluginRegistry[Any], ...]:
    """Return the registries of all groups; the first call loads the plug-ins."""
    return (WORKLOAD_REGISTRY, executors(), channels(), plugin_policies())


def log_plugins() -> None:
    """Log each plug-in with its distribution, and an error for each one that cannot be used."""
    for known in registries():
        for plugin in known.plugins:
            log.info("plugin.loaded", group=plugin.group, name=plugin.name, distribution=plugin.distribution)
        for each in known.broken:
            told = {"group": each.group, "name": each.name, "distribution": each.distribution}
            log.error("plugin.broken", **told, error=each.error)


def findings() -> Iterator[Finding]:
    """Yield the lines of ``runner doctor`` about plug-ins; nothing where there are none."""
    for known in registries():
        for plugin in known.plugins:
            yield Finding("plug-in", Verdict.OK, f"{plugin.group}: {plugin.name} of {plugin.distribution}")
        for each in known.broken:
            yield Finding("plug-in", Verdict.PROBLEM, str(each), ADVICE)
