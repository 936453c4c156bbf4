"""An outside for this host: a network namespace behind a pair of interfaces, with servers in it.

It has a file server, a name server that knows one name, and a stand-in for the metadata service of a cloud at
its two link-local addresses, to which the routes of this host lead.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

SERVERS: Final = """
import http.server, json, socket, struct, sys, threading

class Files(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"from the outside\\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass

class Files6(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6

def names(address):
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((address, 53))
    while True:
        question, sender = server.recvfrom(512)
        end = question.index(b"\\0", 12) + 5
        name, kind = question[12:end], question[end - 4:end - 2]
        known = name.startswith(b"\\x05files\\x07example\\0") and kind == b"\\0\\1"
        record = b"\\xc0\\x0c\\0\\1\\0\\1\\0\\0\\0\\1\\0\\4" + socket.inet_aton(address) if known else b""
        flags = b"\\x81\\x80" if known or name.startswith(b"\\x05files") else b"\\x81\\x83"
        header = question[:2] + flags + b"\\0\\1" + struct.pack(">H", int(known)) + b"\\0\\0\\0\\0"
        server.sendto(header + question[12:end] + record, sender)

address = sys.argv[1]
for server in (
    http.server.ThreadingHTTPServer(("0.0.0.0", 80), Files),
    Files6(("fd00:ec2::254", 80), Files),
):
    threading.Thread(target=server.serve_forever, daemon=True).start()
threading.Thread(target=names, args=(address,), daemon=True).start()
print("serving", flush=True)
sys.stdin.read()
"""

METADATA: Final = "169.254.169.254"
METADATA_6: Final = "fd00:ec2::254"
NAME: Final = "files.example"


@dataclass(frozen=True, slots=True)
class Outside:
    """Addresses of the servers."""

    address: str
    """Of the file server at port 80 and of the name server."""
    host: str
    """Of this host on the way there."""


@contextmanager
def outside(number: int) -> Iterator[Outside]:
    """Make an outside of its own for a test file, and remove it; ``number`` keeps files apart."""
    name, near = f"outside{number}", f"near{number}"
    made = Outside(f"10.213.{number}.2", f"10.213.{number}.1")
    inside = ["ip", "netns", "exec", name]
    _remove(name)
    _do("ip", "netns", "add", name)
    try:
        _do("ip", "link", "add", near, "type", "veth", "peer", "name", "eth0", "netns", name)
        _do("ip", "address", "add", f"{made.host}/24", "dev", near)
        _do("ip", "-6", "address", "add", "fd00:ec2::1/64", "dev", near, "nodad")
        _do("ip", "link", "set", near, "up")
        _do(*inside, "ip", "address", "add", f"{made.address}/24", "dev", "eth0")
        _do(*inside, "ip", "address", "add", f"{METADATA}/32", "dev", "eth0")
        _do(*inside, "ip", "-6", "address", "add", f"{METADATA_6}/64", "dev", "eth0", "nodad")
        _do(*inside, "ip", "link", "set", "lo", "up")
        _do(*inside, "ip", "link", "set", "eth0", "up")
        _do("ip", "route", "replace", METADATA, "via", made.address)
        with subprocess.Popen(
            [*inside, sys.executable, "-I", "-c", SERVERS, made.address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as servers:
            assert servers.stdout is not None
            assert servers.stdout.readline() == b"serving\n"
            yield made
            servers.kill()
    finally:
        _remove(name)


def host_addresses() -> list[str]:
    """Return the IPv4 addresses of this host, without its loopback."""
    listed = subprocess.run(["ip", "-json", "-4", "address"], capture_output=True, check=True).stdout
    addresses = [each["local"] for link in json.loads(listed) for each in link["addr_info"]]
    return [each for each in addresses if not each.startswith("127.")]


def may_make_namespaces() -> bool:
    """Return True if this user may make network namespaces."""
    return os.geteuid() == 0


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, f"{' '.join(command)}: {done.stderr}"


def _remove(name: str) -> None:
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
