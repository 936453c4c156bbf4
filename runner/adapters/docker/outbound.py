"""The engine network of attempts that may reach the outside.

It is a bridge of its own for each daemon, whose containers do not reach each other.  Where the daemon may set
firewall rules, they do not reach this host either; ``runner.adapters.host.firewall`` has the rules, and a
probe sends packets before the first launch.  The rules are looked at again before each further launch.
"""

import threading
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from typing import Any, ClassVar, Final

import structlog
from docker.errors import APIError, DockerException, NotFound

from runner.adapters.docker.connection import EngineConnection, engine_errors, explanation
from runner.adapters.docker.hardening import LABEL_INSTANCE
from runner.adapters.host.firewall import (
    Firewall,
    FirewallProblem,
    FirewallRules,
    OpenAddress,
    bridges_to_outside,
    name_servers,
)
from runner.adapters.host.network_probe import Bridge, reachable_from
from runner.base.errors import Refused, RunnerError, Unavailable
from runner.core.ports.network import NetworkState

log = structlog.get_logger(__name__)

OPERATOR: Final = "the operator decides (network in the settings)"

_BRIDGE_NAME: Final = "com.docker.network.bridge.name"
_OPTIONS: Final = {
    "com.docker.network.bridge.enable_icc": "false",
    "com.docker.network.bridge.enable_ip_masquerade": "true",
}


@dataclass(frozen=True, slots=True)
class OutboundSettings:
    """Settings of the operator for the outbound network."""

    instance: str
    """Id of the store; part of the names of network, bridge and firewall table."""
    required: bool
    """True if nothing starts in the network unless the firewall holds."""
    dns: tuple[str, ...] = ()
    open: tuple[OpenAddress, ...] = ()
    closed: tuple[str, ...] = ()


@dataclass(slots=True)
class BridgeNetwork:
    """Satisfies ``runner.core.ports.network.OutboundNetwork``."""

    settings: OutboundSettings
    connection: EngineConnection
    is_for_all: ClassVar[bool] = False
    _firewall: Firewall = field(default_factory=Firewall)
    _closed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _state: NetworkState = field(default_factory=lambda: NetworkState(None))

    @property
    def name(self) -> str:
        return f"runner-{self.settings.instance}"

    @property
    def dns(self) -> tuple[str, ...]:
        return self.settings.dns

    @property
    def bridge(self) -> str:
        """The name of its interface on this host, of at most 15 letters."""
        return f"rnr-{self.settings.instance}"[:15]

    @property
    def table(self) -> str:
        """The name of its firewall table."""
        return f"runner_{self.settings.instance}"

    def state(self) -> NetworkState:
        return self._state

    def prepare(self) -> str:
        with self._lock:
            if self._closed:
                raise Unavailable(f"network {self.name}: the daemon is stopping")
            bridge = self._network()
            try:
                self._close_host(bridge)
            except FirewallProblem as error:
                self._note(NetworkState(holds=False, problem=str(error)))
                if self.settings.required:
                    fact = "network: outbound would reach this host and its other containers"
                    raise Refused(f"{fact}: {error}; {OPERATOR}") from error
            else:
                self._note(NetworkState(holds=True))
        return self.name

    def close(self) -> None:
        """Remove the network and its rules if no container is in it; it is not made again."""
        with self._lock:
            self._closed = True
            try:
                self.connection.client().remove_network(self.name)
                Firewall.remove(self.table)
            except NotFound:
                return
            except (DockerException, OSError, RunnerError) as error:
                log.info("network.kept", network=self.name, problem=str(error))

    def _note(self, state: NetworkState) -> None:
        if state != self._state:
            write = log.info if state.holds else log.warning
            write("network.examined", network=self.name, holds=state.holds, problem=state.problem)
        self._state = state

    def _close_host(self, bridge: Bridge) -> None:
        servers = dict.fromkeys((*self.settings.dns, *name_servers()))
        rules = FirewallRules(
            table=self.table,
            bridge=bridge.name,
            name_servers=tuple(servers),
            open=self.settings.open,
            closed=self.settings.closed,
            uplinks=bridges_to_outside(),
        )
        was_set = self._firewall.enforce(rules)
        if was_set and self._state.holds:
            log.warning("network.rules_set_again", network=self.name)
        if (was_set or not self._state.holds) and (reached := reachable_from(bridge)):
            raise FirewallProblem(f"a probe has reached {', '.join(reached)} in spite of the rules")

    def _network(self) -> Bridge:
        """Return the network, made if it does not exist.

        Raises:
            Refused: there is another network of this name.
            Unavailable: the engine does not answer, or cannot make it.
        """
        with engine_errors(f"network {self.name}"):
            try:
                found = self.connection.client().inspect_network(self.name)
            except NotFound:
                self._create()
                found = self.connection.client().inspect_network(self.name)
        return self._checked(found)

    def _create(self) -> None:
        try:
            self.connection.client().create_network(
                self.name,
                driver="bridge",
                options={**_OPTIONS, _BRIDGE_NAME: self.bridge},
                labels={LABEL_INSTANCE: self.settings.instance},
                enable_ipv6=False,
            )
        except APIError as error:
            if error.status_code != 409:
                raise Unavailable(f"network {self.name}: the engine says: {explanation(error)}") from error

    def _checked(self, found: dict[str, Any]) -> Bridge:
        options = {**_OPTIONS, _BRIDGE_NAME: self.bridge}
        there = found.get("Options") or {}
        wrong = [key for key, value in options.items() if there.get(key) != value]
        ranges = [each for each in found["IPAM"]["Config"] or () if ":" not in each["Subnet"]]
        if found["Driver"] != "bridge" or wrong or found.get("EnableIPv6") or len(ranges) != 1:
            what = ", ".join(wrong) or "its driver or its addresses"
            fact = f"the engine's network {self.name} is not as the daemon makes it ({what})"
            raise Refused(f"{fact}; remove it: docker network rm {self.name}")
        gateway = str(ranges[0]["Gateway"]).partition("/")[0]
        return Bridge(self.bridge, IPv4Address(gateway), IPv4Network(ranges[0]["Subnet"]))


@dataclass(frozen=True, slots=True)
class OperatorNetwork:
    """A network that an operator has made in the engine; it is used as it is."""

    name: str
    dns: tuple[str, ...] = ()
    is_for_all: ClassVar[bool] = True

    def state(self) -> NetworkState:
        """Return that nothing is known about it."""
        return NetworkState(None, f"the operator's network {self.name}, used as it is")

    def prepare(self) -> str:
        """Return its name; the engine refuses a launch if there is no such network."""
        return self.name

    def close(self) -> None:
        """Leave it as it is."""
