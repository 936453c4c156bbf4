"""The dashboard under many and slow readers, and with a log that is one endless line."""

import http.client
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest

from runner.dashboard.watch import MOST_STREAMS
from tests.fakes.daemon.service import Service, service, until
from tests.fakes.patience import patience

STREAMS = 500

ENDLESS = """
import sys, time
words = "\\u202e\\u001b[31m<script>alert(1)</script>"
sys.stdout.write(words + "x" * 10_000_000 + words + "\\nlast words\\n")
sys.stdout.flush()
time.sleep(600)
"""


@pytest.fixture(scope="module")
def daemon() -> Iterator[Service]:
    with service(executor="process") as made:
        yield made.start()


@dataclass
class Browser:
    """Requests with the cookie of one who has logged in."""

    port: int
    cookie: str
    place: str = ""  # below which the pages lie

    def open(self, path: str) -> tuple[int, str, str]:
        """Return status, cookie and text of an answer."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=patience())) as connection:
            connection.request("GET", self.place + path, headers={"Cookie": self.cookie})
            answer = connection.getresponse()
            cookie = (answer.headers["Set-Cookie"] or "").partition(";")[0]
            return answer.status, cookie, answer.read().decode()

    def page(self, path: str) -> str:
        status, _, text = self.open(path)
        assert status == 200, text
        return text

    def send(self, path: str) -> socket.socket:
        """Send a request, and read nothing of its answer."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=patience())
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        said = (
            f"GET {self.place}{path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nCookie: {self.cookie}\r\n\r\n"
        )
        connection.sendall(said.encode())
        return connection


@pytest.fixture
def browser(daemon: Service) -> Iterator[Browser]:
    with daemon.typing("dash", "--no-open") as dash:
        assert dash.stdout is not None
        link = urlsplit(dash.stdout.readline().strip())
        assert link.port is not None
        _, cookie, _ = Browser(link.port, "").open(f"{link.path}?{link.query}")
        assert cookie
        stolen = Browser(link.port, "").open(f"{link.path}?{link.query}")
        assert stolen[:2] == (403, "")
        yield Browser(link.port, cookie, link.path.removesuffix("/login"))


def test_five_hundred_streams_are_bounded_and_pages_are_served(browser: Browser) -> None:
    with ExitStack() as stack:
        streams = [stack.enter_context(browser.send("/live")) for _ in range(STREAMS)]
        first = [stream.recv(12) for stream in streams]
        assert first.count(b"HTTP/1.1 200") == MOST_STREAMS
        assert first.count(b"HTTP/1.1 503") == STREAMS - MOST_STREAMS
        assert "Machine" in browser.page("/")

    def is_free() -> bool:
        with browser.send("/live") as stream:
            return stream.recv(12) == b"HTTP/1.1 200"

    until(is_free, "the places are free again")


def test_slow_readers_of_an_endless_line_hold_nobody_up(daemon: Service, browser: Browser) -> None:
    code = daemon.root / "endless"
    code.mkdir()
    (code / "train.py").write_text(ENDLESS)
    file = daemon.file(
        "endless",
        workload={"kind": "program", "command": ["/usr/bin/python3", "train.py"], "code": str(code)},
        resources={"cpus": 0.5, "memory": "256MiB"},
    )
    job = daemon.submit(file, end="cancelled")
    daemon.reaches(job, "running")

    def page() -> str | None:
        shown = browser.page(f"/jobs/{job}")
        return shown if "last words" in shown else None

    shown = until(page, "the page shows the last words")
    for refused in ("<script>alert", "\u202e", "\u001b", "\u0007"):
        assert refused not in shown
    with ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(browser.send(f"/jobs/{job}/log?offset=0"))
        assert job in browser.page("/jobs")
        assert "last words" in browser.page(f"/jobs/{job}")
    daemon.runner("cancel", job)
