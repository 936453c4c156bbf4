"""The daemon's end: asks the privileged part; every thread may ask at the same time."""

import socket
from collections.abc import Callable
from typing import Final

from runner.adapters.privileged.interface import (
    PRIVILEGED,
    PrivilegedAttempts,
    PrivilegedHost,
    PrivilegedImages,
    PrivilegedNetwork,
    PrivilegedPackages,
    PrivilegedPins,
    PrivilegedRun,
    PrivilegedRuns,
    RunOf,
)
from runner.adapters.rpc.connections import Connections
from runner.base.threads import PeriodicThread
from runner.core.ports.users import Owner

GONE: Final = "the helper of the daemon has ended"

JOIN_S: Final = 10.0
"""Wait for the thread of a watch at its end."""


class PrivilegedClient:
    """The privileged interfaces, as a daemon without rights has them."""

    def __init__(self, control: socket.socket) -> None:
        self.connections = connections = Connections(control, GONE)
        ask = connections.exchange
        self.attempts: PrivilegedAttempts = PRIVILEGED.proxy("attempts", ask)
        self.images: PrivilegedImages = PRIVILEGED.proxy("images", ask)
        self.packages: PrivilegedPackages = PRIVILEGED.proxy("packages", ask)
        self.pins: PrivilegedPins = PRIVILEGED.proxy("pins", ask)
        self.network: PrivilegedNetwork = PRIVILEGED.proxy("network", ask)
        self.runs: PrivilegedRuns = PRIVILEGED.proxy("runs", ask)
        self.host: PrivilegedHost = PRIVILEGED.proxy("host", ask)

    def run(self, name: str, owner: Owner) -> PrivilegedRun:
        """Return the acts of root on one run directory."""
        key = RunOf(name, owner.uid, owner.gid)
        found: PrivilegedRun = PRIVILEGED.proxy("run", self.connections.exchange, key)
        return found

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call ``wake`` on a thread whenever an attempt may have changed; return how to end that."""
        connection = self.attempts.watch()

        def listen() -> None:
            if not connection.recv(1):
                thread.stop()
                return
            wake()

        thread = PeriodicThread("helper-events", 0.0, listen, begin_at_once=True)

        def stop() -> None:
            thread.stop()
            connection.shutdown(socket.SHUT_RDWR)
            thread.join(JOIN_S)
            connection.close()

        thread.start()
        return stop
