"""The part of the composition root that makes the network of jobs."""

from threading import Thread
from typing import Final

import structlog

from runner.adapters.host.firewall import OpenAddress
from runner.base.errors import RunnerError
from runner.core.ports.executor import Executor
from runner.core.ports.network import OutboundNetwork
from runner.files.settings.model import Settings
from runner.files.settings.network import split_open

log = structlog.get_logger()

ENGINE_S: Final = 30
"""Longest call of the engine that makes a network."""


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


def examine_at_start(settings: Settings, network: OutboundNetwork | None) -> None:
    """Make the network of a daemon for all users on a thread, so that the log tells what is wrong with it."""
    if network is not None and settings.serves_all_users and settings.network.may_be_used(shared=True):
        Thread(target=_examine, args=(network,), name="network", daemon=True).start()


def _examine(network: OutboundNetwork) -> None:
    try:
        network.prepare()
    except RunnerError as error:  # each launch tries it again
        log.warning("network.refused", network=network.name, problem=str(error))
