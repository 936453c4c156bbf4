"""A connection to the engine is closed when nobody waits for what is built over it."""

import io
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import ClassVar

import pytest

from images.cancellation import CancellationToken
from images.docker_engine import DockerEngine
from images.errors import BuildCancelled, BuildFailed, EngineForbidden, EngineUnavailable
from images.ports import BuildRequest
from runner.adapters.docker.connection import EngineConnection
from runner.base.errors import Unavailable
from tests.fakes.patience import patience

REQUEST = BuildRequest("runner-test:1", {}, {})


class Builder(ThreadingUnixStreamServer):
    """An engine that begins every build and ends none."""

    daemon_threads = True

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), Answers)
        self.hung_up = threading.Event()
        self.has_context = threading.Event()


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = json.dumps({"ApiVersion": "1.43"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        assert isinstance(self.server, Builder)
        while size := self.rfile.readline().strip():  # the context has no line end: a chunk of it is a line
            self.server.has_context.set()
            self.rfile.readline()
            if size == b"0":
                self._begin()

    def _begin(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        line = json.dumps({"stream": "begun"}).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        assert self.rfile.read(1) == b""
        assert isinstance(self.server, Builder)
        self.server.hung_up.set()

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Builder]:
    with Builder(tmp_path / "engine.sock") as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_the_engine_is_hung_up_on_when_nobody_waits_any_more(engine: Builder) -> None:
    token = CancellationToken()
    lines = DockerEngine(f"unix://{engine.server_address!s}").build(
        "classic", REQUEST, io.BytesIO(b"tar"), token
    )
    assert next(lines) == "begun"
    assert engine.has_context.is_set()
    token.cancel()
    with pytest.raises(EngineUnavailable):
        list(lines)
    assert engine.hung_up.wait(patience())


def test_no_context_is_sent_for_nobody(engine: Builder) -> None:
    token = CancellationToken()
    token.cancel()
    lines = DockerEngine(f"unix://{engine.server_address!s}").build(
        "classic", REQUEST, io.BytesIO(b"tar"), token
    )
    with pytest.raises(BuildCancelled):
        next(lines)
    assert not engine.has_context.is_set()


@pytest.mark.parametrize(
    "text", ["[]", '{"auths": {"h": {"auth": "YWJj"}}}', '{"auths": {"h": {"auth": "!"}}}']
)
def test_a_file_of_logins_that_is_none_is_named(
    engine: Builder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    url, file = f"unix://{engine.server_address!s}", tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(EngineUnavailable, match=f"^{file}: is no file of docker login: "):
        DockerEngine(url).image("x")
    with pytest.raises(Unavailable, match=f"^{file}: is no file of docker login: "):
        EngineConnection(url, 10).connect()
    given = tmp_path / "registry.json"
    file.rename(given)
    with pytest.raises(EngineUnavailable, match=f"^{given}: is no file of docker login: "):
        DockerEngine(url, given).look_up("x/y:1")


def test_a_login_whose_helper_is_missing_is_no_fault_of_the_engine(
    engine: Builder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    (tmp_path / "config.json").write_text('{"credsStore": "not-there"}')
    with (
        pytest.warns(UserWarning, match="docker-credential-not-there"),
        pytest.raises(BuildFailed, match=r"^image x\.invalid/y:1: .*docker-credential-not-there"),
    ):
        DockerEngine(f"unix://{engine.server_address!s}").look_up("x.invalid/y:1")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_an_engine_that_one_may_not_use_is_not_said_to_be_down(engine: Builder) -> None:
    path = str(engine.server_address)
    os.seteuid(65534)
    try:
        with pytest.raises(EngineForbidden) as caught:
            DockerEngine(f"unix://{path}").images("label")
    finally:
        os.seteuid(0)
    assert str(caught.value) == f"{path}: you may not use the container engine"


class Tagging(BaseHTTPRequestHandler):
    """Refuses the first request to tag an image, as the containerd store does when two tag at a time."""

    protocol_version = "HTTP/1.1"
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self._answer(200, {"ApiVersion": "1.51"})

    def do_POST(self) -> None:
        self.asked.append(self.path)
        refused = len(self.asked) == 1
        self._answer(500 if refused else 201, {"message": "AlreadyExists: already exists"} if refused else {})

    def _answer(self, status: int, content: dict[str, str]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


def test_a_tag_that_two_move_at_the_same_time_is_moved_by_both(tmp_path: Path) -> None:
    with ThreadingUnixStreamServer(str(tmp_path / "engine.sock"), Tagging) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        DockerEngine(f"unix://{server.server_address!s}").tag("sha256:1", "runner-cpu:current")
        server.shutdown()
        thread.join()
    assert len(Tagging.asked) == 2
