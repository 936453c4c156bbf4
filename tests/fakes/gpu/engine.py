"""A door that makes a real engine one that can hand out GPUs, on a machine that has none.

An engine needs the vendor's runtime (*hook*) or CDI files for that.  The door plays them: it takes what
was asked for out of the create call, puts a device node for each GPU in, which is what both
come to, and tells whoever inspects what an engine that could do it would say.  The container is real.

It also keeps watch: at the moment a container starts, no other may have one of its devices,
and nobody may be on them.
"""

import json
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from threading import Lock, Thread
from typing import Any, Final, cast
from urllib.parse import parse_qs, urlsplit

from tests.fakes.gpu.hosts import GIB, NvidiaHost

Json = dict[str, Any]

CDI: Final = "nvidia.com/gpu="
NODE: Final = "/dev/null"  # what stands for every GPU
HOP: Final = {"connection", "transfer-encoding", "content-length", "host"}
QUIET_BYTES: Final = GIB
"""With more in use a stand-in device is not clean."""


@dataclass(frozen=True)
class Start:
    """A container that was started, with what stood against it."""

    name: str
    uuids: tuple[str, ...]
    held_by: tuple[str, ...]  # other containers that ran with one of its devices
    occupied: tuple[str, ...]  # devices that somebody was on


@dataclass
class Injector:
    """Knowledge of an engine about its GPUs."""

    engine: Path
    host: NvidiaHost
    starts: list[Start] = field(default_factory=list)
    asked: dict[str, Json] = field(default_factory=dict)  # by container: what the engine was asked for
    given: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by container: UUIDs
    lock: Lock = field(default_factory=Lock)  # one start at a time, so that a look before it is true

    def node(self, uuid: str) -> str:
        """Return the device node of a GPU inside a container."""
        return f"/dev/nvidia{[card.uuid for card in self.host.cards].index(uuid)}"

    def create(self, name: str, config: Json) -> Json:
        """Return what the engine is asked for in place of a create call."""
        host = config["HostConfig"]
        self.asked[name] = {each: host[each] for each in ("Runtime", "DeviceRequests", "Devices")}
        self.given[name] = tuple(_wanted(config))
        nodes = [
            {"PathOnHost": NODE, "PathInContainer": self.node(uuid), "CgroupPermissions": "rw"}
            for uuid in self.given[name]
        ]
        runtime = "runc" if host["Runtime"] == "nvidia" else host["Runtime"]
        really = {"Runtime": runtime, "DeviceRequests": [], "Devices": [*host["Devices"], *nodes]}
        return {**config, "HostConfig": {**host, **really}}

    def inspected(self, found: Json) -> Json:
        """Return what the engine would say of a container, had it done itself what the door did."""
        asked = self.asked.get(str(found.get("Name", "")).removeprefix("/"))
        if asked is None:
            return found
        unsaid = {"Count": 0, "Capabilities": None, "Options": None}  # as 20.10 fills requests up
        requests = [{**unsaid, **each} for each in asked["DeviceRequests"]]
        return {**found, "HostConfig": {**found["HostConfig"], **asked, "DeviceRequests": requests}}

    def note_start(self, reference: str) -> None:
        """Look at what stands against the start of a container, which is named by its id or its name."""
        name = self._name(reference)
        mine = set(self.given.get(name, ()))
        others = [other for other in self._running() if other != name and mine & set(self.given[other])]
        occupied = [
            card.uuid
            for card in self.host.cards
            if card.uuid in mine and (card.said.get("procs") or int(str(card.said["used"])) > QUIET_BYTES)
        ]
        self.starts.append(Start(name, self.given.get(name, ()), tuple(others), tuple(occupied)))

    def _name(self, reference: str) -> str:
        """Return the name of a container."""
        with closing(connect(self.engine)) as connection:
            connection.request("GET", f"/containers/{reference}/json", headers={"Host": "engine"})
            found: Json = json.loads(connection.getresponse().read())
        return str(found["Name"]).removeprefix("/")

    def _running(self) -> Iterator[str]:
        """Yield the containers with GPUs that run, by what the engine says."""
        with closing(connect(self.engine)) as connection:
            connection.request("GET", "/containers/json", headers={"Host": "engine"})
            listed = json.loads(connection.getresponse().read())
        names = (name.removeprefix("/") for each in listed for name in each["Names"])
        yield from (name for name in names if name in self.given)

    def assert_fair(self) -> None:
        """No device was in two containers at a time, and none was lent while somebody was on it."""
        assert self.starts
        unfair = [each for each in self.starts if each.held_by or each.occupied]
        assert not unfair, unfair


def _wanted(config: Json) -> Iterator[str]:
    """Yield the UUIDs of the GPUs that a create call asks for, in the way that its engine understands."""
    for request in config["HostConfig"]["DeviceRequests"]:
        if request["Driver"] == "cdi":
            yield from (name.removeprefix(CDI) for name in request["DeviceIDs"])
    if config["HostConfig"]["Runtime"] == "nvidia":
        words = dict(each.split("=", 1) for each in config["Env"])
        yield from words["NVIDIA_VISIBLE_DEVICES"].split(",")


class _ToEngine(HTTPConnection):
    """HTTP to a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("engine")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))


def connect(engine: Path) -> HTTPConnection:
    return _ToEngine(engine)


class _Server(ThreadingUnixStreamServer):
    daemon_threads = True

    def __init__(self, path: Path, injector: Injector) -> None:
        self.injector = injector
        self.open: set[HTTPConnection] = set()
        super().__init__(str(path), _Request)


class _Request(BaseHTTPRequestHandler):
    """One request on its way to the engine, and its answer on its way back."""

    protocol_version = "HTTP/1.1"

    def do(self) -> None:
        server = cast("_Server", self.server)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        connection = connect(server.injector.engine)
        server.open.add(connection)
        try:
            with closing(connection), suppress(OSError, HTTPException):
                self._pass(server.injector, connection, body)
        finally:
            server.open.discard(connection)
            self.close_connection = True

    do_GET = do_POST = do_DELETE = do_HEAD = do_PUT = do  # noqa: N815 - the names that the server looks for

    def _pass(self, injector: Injector, connection: HTTPConnection, body: bytes) -> None:
        url = urlsplit(self.path)
        if url.path.endswith("/containers/create"):
            name = parse_qs(url.query)["name"][0]
            body = json.dumps(injector.create(name, json.loads(body))).encode()
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
        if url.path.endswith("/start"):
            with injector.lock:
                injector.note_start(url.path.split("/")[-2])
                connection.request(self.command, self.path, body, headers)
                answer = connection.getresponse()
        else:
            connection.request(self.command, self.path, body or None, headers)
            answer = connection.getresponse()
        self._answer(injector, url.path, answer)

    def _answer(self, injector: Injector, path: str, answer: HTTPResponse) -> None:
        parts = path.split("/")
        inspects = answer.status == 200 and parts[-1] == "json" and parts[-3:-2] == ["containers"]
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in HOP:
                self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()
        if inspects:
            self.wfile.write(json.dumps(injector.inspected(json.loads(answer.read()))).encode())
            return
        while piece := answer.read1(65536):
            self.wfile.write(piece)


@contextmanager
def gpu_engine(path: Path, engine: Path, host: NvidiaHost) -> Iterator[Injector]:
    """An engine with the GPUs of a stand-in host, at ``path``, for as long as the block lasts."""
    injector = Injector(engine, host)
    with _Server(path, injector) as server:
        path.chmod(0o666)
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield injector
        finally:
            server.shutdown()
            thread.join()
            for connection in list(server.open):  # whoever listens to events still
                with suppress(OSError, AttributeError):
                    connection.sock.shutdown(socket.SHUT_RDWR)
