"""A connection to the engine is closed when nobody waits for what is built over it."""

import io
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import Any, ClassVar

import pytest
import requests
from docker.errors import APIError

from images import docker_engine
from images.cancellation import CancellationToken
from images.docker_engine import DockerEngine
from images.errors import BuildCancelled, BuildFailed, EngineForbidden, EngineUnavailable, HostFault
from images.ports import Addition, BuildRequest, Step
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
    "text",
    [
        "[]",
        '{"auths": {"h": {"auth": "YWJj"}}}',
        '{"auths": {"h": {"auth": "!"}}}',
        '{"auths": {"h": null}}',
        "[" * 100_000,
    ],
    ids=range(5),
)
def test_a_file_of_logins_that_is_none_is_named(
    engine: Builder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    url, file = f"unix://{engine.server_address!s}", tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(EngineUnavailable, match=f"^{file}: is not a file of docker login: "):
        DockerEngine(url).image("x")
    with pytest.raises(Unavailable, match=f"^{file}: is not a file of docker login: "):
        EngineConnection(url, 10).connect()
    given = tmp_path / "registry.json"
    file.rename(given)
    with pytest.raises(EngineUnavailable, match=f"^{given}: is not a file of docker login: "):
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


class Adding(BaseHTTPRequestHandler):
    """Answers what an added layer asks for, but for one request, which it refuses with some words."""

    protocol_version = "HTTP/1.1"
    refused: ClassVar[tuple[str, str]] = ("", "")
    asked: ClassVar[list[tuple[str, bytes]]] = []

    def do_GET(self) -> None:
        body = b""
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline() or b"0", 16):
                body += self.rfile.read(size + 2)[:-2]
            self.rfile.readline()
        body += self.rfile.read(int(self.headers.get("Content-Length") or 0))
        what = f"{self.command} {self.path.partition('?')[0].partition('/v1.43')[2]}"
        self.asked.append((what, body))
        refused, words = self.refused
        content = {"message": words} if what == refused else self._content(what)
        reply = json.dumps(content).encode()
        self.send_response(500 if what == refused else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def do_POST(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        self.do_GET()

    def do_DELETE(self) -> None:
        self.do_GET()

    @staticmethod
    def _content(what: str) -> object:
        match what:
            case "GET /images/sha256:1/json":
                return {"Id": "sha256:1", "Config": {"Cmd": ["python"], "User": "7:7"}}
            case "GET /containers/json":
                return []
            case _:
                return {"ApiVersion": "1.43", "Id": "c"}

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def adding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DockerEngine]:
    monkeypatch.setattr(Adding, "asked", [])
    with ThreadingUnixStreamServer(str(tmp_path / "engine.sock"), Adding) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield DockerEngine(f"unix://{server.server_address!s}")
        for each in threading.enumerate():
            if each.name == "removal":
                each.join(patience())
        server.shutdown()
        thread.join()
    made = Adding.refused[0] != "POST /containers/create"
    assert ("DELETE /containers/c" in dict(Adding.asked)) == made


ADDITION = Addition("made:h-2", "sha256:1", {"runner.cuda": ""}, {"PATH": r'/a b:$HOME:"x"\y'})


def test_a_layer_is_added_without_a_build(adding: DockerEngine) -> None:
    adding.add_layer(ADDITION, [b"one", b"two"], CancellationToken())
    sent = {what: body for what, body in Adding.asked if body}
    assert list(sent) == ["POST /containers/create", "PUT /containers/c/archive", "POST /commit"]
    assert sent["PUT /containers/c/archive"] == b"onetwo"
    assert json.loads(sent["POST /commit"]) == {
        "Entrypoint": [],
        "Cmd": ["python"],
        "User": "7:7",
        "Labels": {"runner.cuda": ""},
        "Env": [r'PATH=/a b:$HOME:"x"\y'],
    }


@pytest.mark.parametrize("asked", ["POST /containers/create", "PUT /containers/c/archive", "POST /commit"])
@pytest.mark.parametrize(
    ("words", "kind"),
    [("write /x: no space left on device", HostFault), ("mkdir /x: not a directory", BuildFailed)],
)
def test_a_layer_that_is_refused_is_told_in_the_words_of_the_engine(
    adding: DockerEngine, monkeypatch: pytest.MonkeyPatch, asked: str, words: str, kind: type[BuildFailed]
) -> None:
    monkeypatch.setattr(Adding, "refused", (asked, words))
    with pytest.raises(BuildFailed, match=f"^made:h-2: {words}$") as caught:
        adding.add_layer(ADDITION, [b"one"], CancellationToken())
    assert type(caught.value) is kind


def test_no_layer_is_sent_for_nobody(adding: DockerEngine) -> None:
    token = CancellationToken()
    token.cancel()
    with pytest.raises(BuildCancelled):
        adding.add_layer(ADDITION, [b"one"], token)
    assert "POST /commit" not in dict(Adding.asked)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (
            "transport: Error while dialing: dial unix /run/containerd/containerd.sock: connection refused",
            HostFault,
        ),
        ("write /usr/lib/x: no space left on device", HostFault),
        ('exec: "rustc": executable file not found in $PATH', BuildFailed),
    ],
)
def test_an_engine_whose_parts_are_restarted_is_no_fault_of_a_job(
    words: str, kind: type[BuildFailed]
) -> None:
    assert type(docker_engine._step_failure("x", APIError(words))) is kind


class Traced:
    """An engine whose container does not end when it is killed, nor its output."""

    def __init__(self) -> None:
        self.killed, self.closed = threading.Event(), threading.Event()

    def attach(self, *_: object, **__: object) -> "Traced":
        return self

    def __iter__(self) -> Iterator[tuple[bytes, None]]:
        yield b"x", None
        assert self.closed.wait(patience())

    def close(self) -> None:
        self.closed.set()

    def start(self, _: str) -> None:
        """Start it."""

    def wait(self, _: str, timeout: float | None) -> dict[str, int]:
        assert timeout is not None
        assert self.killed.wait(patience())
        raise requests.ReadTimeout


@pytest.mark.parametrize("result", [None, io.BytesIO()])
def test_a_command_whose_container_never_ends_is_given_up(
    monkeypatch: pytest.MonkeyPatch, result: io.BytesIO | None
) -> None:
    monkeypatch.setattr(docker_engine, "_END_S", 0)
    engine: Any = Traced()
    step = Step("image", ("python3",), seconds=0.01, result=result, most_bytes=10)
    with pytest.raises(BuildFailed, match=r"python3: took longer than 0.01 s and was ended"):
        docker_engine._finish_step(engine, "container", step, engine.killed.set)
