"""The part of the composition root that makes the network of jobs."""

from dataclasses import dataclass
from typing import Final

import structlog

from runner.adapters.host.firewall import OpenAddress
from runner.base.errors import RunnerError
from runner.base.threads import PeriodicThread
from runner.core.ports.executor import Executor
from runner.core.ports.network import OutboundNetwork
from runner.files.settings.model import Settings
from runner.files.settings.network import split_open

log = structlog.get_logger()

ENGINE_S: Final = 30
"""Longest call of the engine that makes a network."""

WATCH_S: Final = 15.0
"""Between two looks at the firewall rules, beside those before each launch."""


def make_network(settings: Settings, instance: str, executor: Executor) -> OutboundNetwork | None:
    """Return the network of jobs that may reach the outside, None where jobs have that of this host."""
    if executor.kind != "docker":
        return None
    from runner.adapters.docker.connection import EngineConnection  # noqa: PLC0415  loads the SDK
    from runner.adapters.docker.outbound import BridgeNetwork, OperatorNetwork, OutboundSettings  # noqa: PLC0415  the same

    said = settings.network
    if said.engine_network is not None:
        return OperatorNetwork(said.engine_network, said.dns)
    opened = tuple(OpenAddress(*split_open(each)) for each in said.open)
    rules = OutboundSettings(instance, settings.requires_firewall, said.dns, opened, said.closed)
    return BridgeNetwork(rules, EngineConnection(settings.engine, ENGINE_S))


@dataclass(slots=True)
class NetworkWatch:
    """Looks at the network again and again: somebody may remove the rules while jobs run behind them."""

    network: OutboundNetwork
    from_start: bool
    """True: made when the daemon starts; False: when the first job needs it."""
    _problem: str = ""

    def look(self) -> None:
        """Let the rules be compared, and set again where they are not in force; a new problem is logged."""
        try:
            if self.from_start or self.network.state().holds is not None:
                self.network.prepare()
            self._problem = ""
        except RunnerError as error:  # each launch tries it again
            if str(error) != self._problem:
                log.warning("network.refused", network=self.network.name, problem=str(error))
            self._problem = str(error)


def watch_network(settings: Settings, network: OutboundNetwork | None) -> None:
    """Watch the network of jobs on a thread, which ends with the daemon.

    A daemon for all users in which somebody may have a network makes it at once, so that its log tells the
    operator what is wrong.
    """
    if network is not None:
        shared = settings.serves_all_users and settings.network.may_be_used
        watch = NetworkWatch(network, shared)
        PeriodicThread("network", WATCH_S, watch.look, begin_at_once=shared).start()
