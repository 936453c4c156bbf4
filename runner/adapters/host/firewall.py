"""The nftables rules that keep containers of one bridge away from this host, other containers and metadata.

The rules are a table of their own with base chains of their own.  A packet that they reject is gone, whatever
the chains of the engine, of firewalld or of ufw accept, and none of these removes the table.  They name the
bridge and no address of the host, so addresses that the host gets later are closed, too.
"""

import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from shutil import which
from typing import Final, TypeAlias

from runner.base.errors import RunnerError

Network: TypeAlias = IPv4Network | IPv6Network

CLOSED: Final[tuple[Network, ...]] = tuple(
    ip_network(text)
    for text in ("169.254.0.0/16", "fe80::/10", "fd00:ec2::254/128", "224.0.0.0/4", "ff00::/8")
)
"""Link-local addresses, where clouds serve their metadata, the IPv6 address of that of EC2, and multicast."""

BRIDGE_FILTER: Final = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
"""Switch of the kernel: packets between two containers of a bridge pass the rules."""

RESOLV_CONF: Final = (Path("/run/systemd/resolve/resolv.conf"), Path("/etc/resolv.conf"))
"""Files in which engines look for the name servers of a host; the first one is that behind a local stub."""

SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

LONGEST_S: Final = 10.0
"""Of one call of ``nft`` or ``ip``."""

_REJECT: Final = "counter reject with icmpx admin-prohibited"


class FirewallProblem(RunnerError):
    """The rules cannot be set, or are not in force; says why on one line."""


@dataclass(frozen=True, slots=True)
class OpenAddress:
    """A service of this host, or of a closed address, that stays reachable."""

    address: str
    port: int
    protocol: str = "tcp"


@dataclass(frozen=True, slots=True)
class FirewallRules:
    """The rules of one bridge."""

    table: str
    bridge: str
    name_servers: tuple[str, ...] = ()
    """Reachable at port 53, also where they are this host or link-local."""
    open: tuple[OpenAddress, ...] = ()
    closed: tuple[str, ...] = ()
    """Networks that the operator closes besides ``CLOSED``."""
    uplinks: tuple[str, ...] = ()
    """Bridges that lead to the outside; all others lead to containers and virtual machines of this host."""

    def text(self) -> str:
        """Return the rules as input of ``nft -f``; they replace those of the same table in one step."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        bridge = f'"{self.bridge}"'
        uplinks = "".join(f' oifname != "{name}"' for name in self.uplinks)
        yield f"table inet {self.table}"
        yield f"delete table inet {self.table}"
        yield f"table inet {self.table} {{"
        yield "chain from_jobs {"
        yield "ct state established,related accept"
        yield from self._exceptions()
        for network in (*CLOSED, *(ip_network(each) for each in self.closed)):
            yield f"{_family(network)} daddr {network} {_REJECT}"
        yield f"ct status dnat {_REJECT}"  # a published port: it was addressed to this host
        yield "}"
        yield "chain input {"
        yield "type filter hook input priority -10; policy accept;"
        yield f"iifname {bridge} jump from_jobs"
        yield f"iifname {bridge} {_REJECT}"
        yield "}"
        yield "chain forward {"
        yield "type filter hook forward priority -10; policy accept;"
        yield f"iifname {bridge} oifname {bridge} counter drop"
        yield f"iifname {bridge} jump from_jobs"
        yield f'iifname {bridge} meta oifkind "bridge"{uplinks} {_REJECT}'
        yield f"oifname {bridge} ct state new counter drop"
        yield "}"
        yield "}"

    def _exceptions(self) -> Iterator[str]:
        for server in self.name_servers:
            family = _family(ip_network(server))
            yield f"{family} daddr {server} udp dport 53 accept"
            yield f"{family} daddr {server} tcp dport 53 accept"
        for each in self.open:
            family = _family(ip_network(each.address))
            asked = f"ct original {family} daddr {each.address} ct original proto-dst {each.port}"
            yield f"meta l4proto {each.protocol} {asked} accept"


class Firewall:
    """Sets the rules of one bridge, and tells whether they are in force."""

    def __init__(self) -> None:
        self._applied: tuple[FirewallRules, str] | None = None  # with the listing of the kernel

    def enforce(self, rules: FirewallRules) -> bool:
        """Set the rules unless they are in force, and return whether they had to be set.

        Raises:
            FirewallProblem: they cannot be set, or packets between containers pass no rules.
        """
        if not Path(f"/sys/class/net/{rules.bridge}/bridge").exists():
            fact = f"the bridge {rules.bridge} of the container engine is not an interface of this host"
            raise FirewallProblem(f"{fact}: the engine is elsewhere, or has a network namespace of its own")
        if self._applied is not None and self._applied[0] == rules and self._applied[1] == listing(rules):
            self.check_bridge_filter()
            return False
        nft("-f", "-", rules=rules.text())
        self._applied = rules, listing(rules)
        self.check_bridge_filter()
        return True

    @staticmethod
    def check_bridge_filter() -> None:
        """Raise unless packets between two containers of a bridge pass the rules."""
        try:
            found = BRIDGE_FILTER.read_text().strip()
        except OSError:
            found = "absent"
        if found != "1":
            fact = f"{BRIDGE_FILTER} is {found}, so packets between two containers pass no rules"
            remedy = "modprobe br_netfilter; sysctl net.bridge.bridge-nf-call-iptables=1"
            raise FirewallProblem(f"{fact}; run: {remedy}")

    @staticmethod
    def remove(table: str) -> None:
        """Remove the rules of a table; no error if there are none."""
        nft("-f", "-", rules=f"table inet {table}\ndelete table inet {table}\n")


def listing(rules: FirewallRules) -> str:
    """Return the rules of a table as the kernel has them, without counts; empty if there is no such table."""
    try:
        listed = nft("-s", "list", "table", "inet", rules.table)
    except FirewallProblem:
        return ""
    return re.sub(r"counter( packets \d+ bytes \d+)?", "counter", listed)


def nft(*arguments: str, rules: str | None = None) -> str:
    """Return the output of ``nft``; may raise FirewallProblem."""
    return run_tool("nft", "nftables", *arguments, text=rules)


def run_tool(
    name: str, package: str, *arguments: str, text: str | None = None, inside: tuple[str, ...] = ()
) -> str:
    """Return the output of a program of the system, which gets a text as its input.

    ``inside`` is the beginning of a command that runs it in another namespace.

    Raises:
        FirewallProblem: it is not installed, may not do it, or fails.
    """
    program = which(name, path=SYSTEM_PATH)
    if program is None:
        raise FirewallProblem(f"the program {name} is not installed; install the package {package}")
    command = [*inside, program, *arguments]
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=LONGEST_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FirewallProblem(f"{name}: {error}") from error
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        hint = "; it needs root with CAP_NET_ADMIN" if "ermitted" in said else ""
        raise FirewallProblem(f"{name}: {said[:300]}{hint}")
    return done.stdout


def name_servers(files: Iterable[Path] = RESOLV_CONF) -> tuple[str, ...]:
    """Return the name servers of this host, without those on its loopback."""
    found: dict[str, None] = {}
    for path in files:
        try:
            lines = path.read_text(errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if len(words) > 1 and words[0] == "nameserver" and _is_server(words[1]):
                found[words[1]] = None
    return tuple(found)


def bridges_to_outside(
    classes: Path = Path("/sys/class/net"), routes: Path = Path("/proc/net/route")
) -> tuple[str, ...]:
    """Return the bridges of this host that a route through a gateway leaves by."""
    try:
        table = [line.split() for line in routes.read_text().splitlines()[1:]]
    except OSError:
        return ()
    outward = {words[0] for words in table if len(words) > 2 and int(words[2], 16)}
    return tuple(sorted(name for name in outward if (classes / name / "bridge").exists()))


def _is_server(text: str) -> bool:
    try:
        address = ip_address(text)
    except ValueError:
        return False
    return not address.is_loopback and "%" not in text  # a zone, of a link-local address


def _family(network: Network) -> str:
    return "ip" if network.version == 4 else "ip6"
