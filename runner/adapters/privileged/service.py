"""The helper: the part of a daemon that stays root, and does what the other part asks for, if it may."""

from dataclasses import dataclass
from socket import socket

from runner.adapters.privileged.attempts import RootAttempts
from runner.adapters.privileged.builds import RootImages, RootPackages
from runner.adapters.privileged.interface import PRIVILEGED, NetworkDescription
from runner.adapters.privileged.runs import RootRuns
from runner.adapters.privileged.site import PrivilegedSite
from runner.adapters.rpc.serving import CallServer
from runner.base.errors import Refused
from runner.core.ports.network import NetworkState, OutboundNetwork


def make_server(site: PrivilegedSite) -> CallServer:
    """Return the server of all privileged interfaces."""
    runs = RootRuns(site)
    targets = {
        "attempts": RootAttempts(site),
        "images": RootImages(site),
        "packages": RootPackages(site),
        "pins": site.pins,
        "network": RootNetwork(site),
        "run": runs.run,
        "runs": runs,
        "host": RootHost(site),
    }
    return CallServer(PRIVILEGED, targets, "helper")


@dataclass(frozen=True, slots=True)
class RootNetwork:
    """Satisfies ``interface.PrivilegedNetwork``."""

    site: PrivilegedSite

    def describe(self) -> NetworkDescription | None:
        network = self.site.chosen().network
        return None if network is None else NetworkDescription(network.name, network.dns, network.is_for_all)

    def state(self) -> NetworkState:
        return self._network.state()

    def prepare(self) -> str:
        return self._network.prepare()

    def close(self) -> None:
        self._network.close()

    @property
    def _network(self) -> OutboundNetwork:
        network = self.site.chosen().network
        if network is None:
            raise Refused("attempts have the network of this host")
        return network


@dataclass(frozen=True, slots=True)
class RootHost:
    """Satisfies ``interface.PrivilegedHost``."""

    site: PrivilegedSite

    def open_spawner(self) -> socket:
        return socket(fileno=self.site.users.open_spawner())

    def reload_settings(self) -> None:
        self.site.read_settings()
