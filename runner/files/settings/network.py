"""Settings of the network of jobs: the default, who may have more, and what stays closed.

Left out: how the network is made (``runner.adapters.docker.outbound``), and what closes this host to its
containers (``runner.adapters.host.firewall``).
"""

import re
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import AfterValidator, Field

from runner.base.textfile import quoted
from runner.files.settings.queue import Named, find_unknown_names
from runner.files.types import ClosedModel

Access: TypeAlias = Literal["none", "outbound"]

_OPEN: Final = re.compile(r"(\[[0-9a-fA-F:]+\]|[0-9.]+):([0-9]{1,5})(?:/(tcp|udp))?")
_LAST_PORT: Final = 65535


def _check_open(value: str) -> str:
    found = _OPEN.fullmatch(value)
    if not found:
        raise ValueError(
            f"must be ADDRESS:PORT such as 192.0.2.2:5000 or 192.0.2.2:53/udp, not {quoted(value)}"
        )
    try:
        ip_address(found[1].strip("[]"))
    except ValueError as error:
        raise ValueError(f"{quoted(found[1])} is not an IP address") from error
    if not 0 < int(found[2]) <= _LAST_PORT:
        raise ValueError(f"there is no port {found[2]}; the highest is {_LAST_PORT}")
    return value


def _check_address(value: str) -> str:
    try:
        return str(ip_address(value))
    except ValueError as error:
        raise ValueError(f"must be an IP address such as 192.0.2.53, not {quoted(value)}") from error


def _check_range(value: str) -> str:
    try:
        return str(ip_network(value))
    except ValueError as error:
        raise ValueError(
            f"must be an address range such as 10.0.0.0/8, not {quoted(value)} ({error})"
        ) from error


def split_open(value: str) -> tuple[str, int, str]:
    """Return address, port and protocol of an entry of ``open``."""
    found = _OPEN.fullmatch(value)
    if found is None:
        raise ValueError(value)
    return found[1].strip("[]"), int(found[2]), found[3] or "tcp"


class OutboundUsers(ClosedModel):
    """Users with the right to ``network: outbound``; root and the daemon's own user always have it."""

    users: tuple[Named, ...] = ()
    """Users by name."""

    groups: tuple[Named, ...] = ()
    """Groups whose members may have it."""

    classes: tuple[Named, ...] = ()
    """Priority classes whose jobs may have it, whoever submits them."""


class NetworkSettings(ClosedModel):
    """The network of jobs."""

    default: Access | None = None
    """The network of jobs that name none; null: ``none`` in a daemon of root for all users, else
    ``outbound``.  Jobs whose submitter may not have ``outbound`` get ``none``."""

    class_defaults: dict[Named, Access] = {}
    """Other defaults for the jobs of some priority classes."""

    outbound: OutboundUsers | None = None
    """Users who may have ``outbound``; null: everybody if it is the default, else root and its own user."""

    require_firewall: bool | None = None
    """True: ``outbound`` is refused unless firewall rules close this host, other containers and link-local
    addresses to it.  null: yes in a daemon of root for all users, else no."""

    open: tuple[Annotated[str, AfterValidator(_check_open)], ...] = Field((), max_length=64)
    """Services of this host or of closed addresses that jobs may reach: ``ADDRESS:PORT``, with ``/udp``."""

    closed: tuple[Annotated[str, AfterValidator(_check_range)], ...] = Field((), max_length=256)
    """Address ranges beyond this host that jobs may not reach, for instance ``10.0.0.0/8``."""

    dns: tuple[Annotated[str, AfterValidator(_check_address)], ...] = Field((), max_length=3)
    """Name servers of jobs with a network; none: those of this host."""

    engine_network: Named | None = None
    """An engine network of your own for ``outbound``, used as it is; null: the daemon makes one."""

    def default_for(self, priority_class: str, *, shared: bool) -> Access:
        """Return the network of a job that names none; ``shared``: in a daemon of root for all users."""
        return self.class_defaults.get(priority_class) or self.default or ("none" if shared else "outbound")

    def admits_everybody(self, priority_class: str, *, shared: bool) -> bool:
        """Return True if every user may have ``outbound`` in a class."""
        if self.outbound is None:
            return self.default_for(priority_class, shared=shared) == "outbound"
        return priority_class in self.outbound.classes

    @property
    def may_be_used(self) -> bool:
        """True if somebody besides root may have ``outbound`` where the daemon serves all users."""
        return self.outbound is not None or "outbound" in {self.default, *self.class_defaults.values()}

    def strangers(self, classes: frozenset[str]) -> Iterator[str]:
        """Yield a warning for each user, group and class that does not exist here."""
        for name in self.class_defaults:
            if name not in classes:
                yield f"network.class_defaults: there is no class {quoted(name)}"
        if self.outbound is None:
            return
        yield from find_unknown_names("network.outbound", self.outbound.users, self.outbound.groups)
        for name in self.outbound.classes:
            if name not in classes:
                yield f"network.outbound.classes: there is no class {quoted(name)}"


def expand_network(value: object) -> object:
    """Return the section that a text stands for: an engine network of the operator, for every job."""
    if value is None:
        return {}
    return {"engine_network": value, "default": "outbound"} if isinstance(value, str) else value
