"""Real packets into a bridge, to learn what its containers would reach.

The probe is a process in a network namespace of its own with one port of the bridge, like a container.  The
namespace and its port disappear with the process, also if the daemon is killed meanwhile.
"""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from shutil import which
from typing import Any, Final

from runner.adapters.host.firewall import SYSTEM_PATH, FirewallProblem, run_tool

ANSWER_S: Final = 0.3
"""Wait of the probe for an answer that should not come; a rejected packet is answered at once."""

METADATA: Final = ("169.254.169.254", 80)

CHILD: Final = """
import json, socket, sys
print("apart", flush=True)
order = json.loads(sys.stdin.readline())
own = socket.create_server((order["own"], 0))
own.settimeout(order["wait_s"] * 10)
print(own.getsockname()[1], flush=True)
try:
    own.accept()[0].close()
except TimeoutError:
    pass
reached = []
for address, port in order["tcp"]:
    try:
        socket.create_connection((address, port), order["wait_s"]).close()
        reached.append(f"{address}:{port}")
    except OSError:
        pass
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
    for address, port in order["udp"]:
        try:
            udp.sendto(b"runner", (address, port))
        except OSError:
            pass
print(json.dumps(reached), flush=True)
"""
"""Waits for one connection from the host, which proves the wire, and tries to reach the host."""


@dataclass(frozen=True, slots=True)
class Bridge:
    """A bridge with the address of this host on it."""

    name: str
    gateway: IPv4Address
    network: IPv4Network

    @property
    def probe_address(self) -> IPv4Interface:
        """The last address of the network; engines give out the first ones."""
        return IPv4Interface(f"{self.network[-2]}/{self.network.prefixlen}")


def reachable_from(bridge: Bridge) -> list[str]:
    """Return the addresses of this host, and of metadata, that a container of the bridge reaches.

    Raises:
        FirewallProblem: the probe cannot be made, so nothing is known.
    """
    with _listeners() as (tcp, udp), _namespace(bridge) as child:
        hosts = _host_addresses()
        own = str(bridge.probe_address.ip)
        order = {
            "own": own,
            "wait_s": ANSWER_S,
            "tcp": [*((each, tcp.getsockname()[1]) for each in hosts), METADATA],
            "udp": [(each, udp.getsockname()[1]) for each in hosts],
        }
        port = int(_ask(child, json.dumps(order)))
        try:
            socket.create_connection((own, port), ANSWER_S * 5).close()
        except OSError as error:
            raise FirewallProblem(f"the probe in {bridge.name} does not answer: {error}") from error
        reached: list[str] = json.loads(_ask(child, None))
        with suppress(BlockingIOError):
            reached.append(f"UDP of this host from {udp.recvfrom(64)[1][0]}")
        return reached


@contextmanager
def _listeners() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Listen on all addresses of this host, at ports that the kernel chooses."""
    with (
        closing(socket.create_server(("0.0.0.0", 0))) as tcp,  # noqa: S104  all addresses are to be tried
        closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as udp,
    ):
        udp.bind(("0.0.0.0", 0))  # noqa: S104  the same
        udp.settimeout(0)
        yield tcp, udp


@contextmanager
def _namespace(bridge: Bridge) -> Iterator["subprocess.Popen[str]"]:
    """Start the probe in a namespace with a port of the bridge, and kill it in the end."""
    apart = which("unshare", path=SYSTEM_PATH)
    if apart is None:
        raise FirewallProblem("the program unshare is not installed; install the package util-linux")
    command = [apart, "--net", "--", sys.executable, "-I", "-S", "-c", CHILD]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        try:
            if _ask(child, None) != "apart":
                raise FirewallProblem("no network namespace can be made; it needs root with CAP_SYS_ADMIN")
            _connect(bridge, child.pid)
            yield child
        finally:
            child.kill()


def _connect(bridge: Bridge, pid: int) -> None:
    ours, theirs = f"p{bridge.name}"[:15], f"q{bridge.name}"[:15]
    ip("link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", str(pid))
    ip("link", "set", ours, "master", bridge.name, "up")
    inside = ("nsenter", "--net", "--target", str(pid), "--")
    ip("address", "add", str(bridge.probe_address), "dev", theirs, inside=inside)
    ip("link", "set", theirs, "up", inside=inside)
    ip("route", "add", "default", "via", str(bridge.gateway), inside=inside)


def _ask(child: "subprocess.Popen[str]", line: str | None) -> str:
    """Send a line to the probe, and return its next one; empty if it has ended."""
    assert child.stdin is not None, "a pipe"  # noqa: S101  for the type checker
    assert child.stdout is not None, "a pipe"  # noqa: S101  for the type checker
    if line is not None:
        child.stdin.write(f"{line}\n")
        child.stdin.flush()
    return child.stdout.readline().strip()


def ip(*arguments: str, inside: tuple[str, ...] = ()) -> str:
    """Return the output of ``ip``; may raise FirewallProblem."""
    return run_tool("ip", "iproute2", *arguments, inside=inside)


def _host_addresses() -> list[str]:
    """Return the IPv4 addresses of this host, without its loopback."""
    found: list[dict[str, Any]] = json.loads(ip("-json", "-4", "address", "show", "up"))
    addresses = (each["local"] for link in found for each in link.get("addr_info", ()))
    return [each for each in addresses if not IPv4Address(each).is_loopback]
