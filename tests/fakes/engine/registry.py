"""A registry on the loopback with one image behind a login, as far as an engine needs it to pull."""

import base64
import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final

MANIFEST: Final = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG: Final = "application/vnd.docker.container.image.v1+json"
LAYER: Final = "application/vnd.docker.image.rootfs.diff.tar.gzip"


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass
class Registry:
    """One image of one layer, ``lab/tiny:1``."""

    login: str = "ada:geheim"
    more: dict[str, Any] = field(default_factory=dict)  # of the image's configuration
    port: int = 0
    asked: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)  # of its layer, which are programs
    links: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tar = io.BytesIO()
        with tarfile.open(fileobj=tar, mode="w") as archive:
            for name, content in {"of-the-lab": self.login.encode(), **self.files}.items():
                info = tarfile.TarInfo(name)
                info.size, info.mode = len(content), 0o755
                archive.addfile(info, io.BytesIO(content))
            for name, target in self.links.items():
                info = tarfile.TarInfo(name)
                info.type, info.linkname = tarfile.SYMTYPE, target
                archive.addfile(info)
        layer = gzip.compress(tar.getvalue(), mtime=0)
        config = json.dumps(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {"Env": ["PATH=/bin"], **self.more},
                "rootfs": {"type": "layers", "diff_ids": [digest_of(tar.getvalue())]},
            }
        ).encode()
        self.image_id = digest_of(config)
        self.manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": {"mediaType": CONFIG, "size": len(config), "digest": self.image_id},
                "layers": [{"mediaType": LAYER, "size": len(layer), "digest": digest_of(layer)}],
            }
        ).encode()
        self.tagged = self.manifest
        self.blobs = {self.image_id: config, digest_of(layer): layer}

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def reference(self, tag: str = ":1") -> str:
        return f"{self.host}/lab/tiny{tag}"

    def move_tag(self) -> None:
        """Let the tag name another image, with the same content."""
        self.tagged += b"\n"

    def login_file(self) -> str:
        """Return what ``docker login`` leaves in ``config.json``."""
        return json.dumps({"auths": {self.host: {"auth": base64.b64encode(self.login.encode()).decode()}}})

    def answer(self, path: str) -> tuple[str, bytes] | None:
        if path == "/v2/":
            return "application/json", b"{}"
        manifests = {digest_of(each): each for each in (self.manifest, self.tagged)} | {"1": self.tagged}
        if found := manifests.get(path.removeprefix("/v2/lab/tiny/manifests/")):
            return MANIFEST, found
        blob = self.blobs.get(path.removeprefix("/v2/lab/tiny/blobs/"))
        return None if blob is None else ("application/octet-stream", blob)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, registry: Registry, *args: Any) -> None:
        self.registry = registry
        super().__init__(*args)

    def do_GET(self) -> None:
        registry = self.registry
        wanted = f"Basic {base64.b64encode(registry.login.encode()).decode()}"
        if self.headers.get("Authorization") != wanted:
            body = b'{"errors": [{"code": "UNAUTHORIZED", "message": "authentication required"}]}'
            self._send(401, "application/json", body, {"WWW-Authenticate": 'Basic realm="lab"'})
            return
        registry.asked.append(self.path)
        found = registry.answer(self.path)
        if found is None:
            self._send(404, "application/json", b'{"errors": [{"code": "MANIFEST_UNKNOWN"}]}', {})
            return
        kind, body = found
        self._send(200, kind, body, {"Docker-Content-Digest": digest_of(body)})

    def do_HEAD(self) -> None:
        self.do_GET()

    def _send(self, status: int, kind: str, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        headers = {"Docker-Distribution-Api-Version": "registry/2.0", **headers}
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def registry(
    files: dict[str, bytes] | None = None,
    links: dict[str, str] | None = None,
    **more: Any,
) -> Iterator[Registry]:
    """Serve an image on a free port of the loopback."""
    made = Registry(more=more, files=files or {}, links=links or {})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, made)) as server:
        made.port = server.server_address[1]
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()
