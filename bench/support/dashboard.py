"""The dashboard as a browser asks it: a process of ``runner dash``, Chromium, and an sshd on the loopback."""

import http.client
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from bench.support.daemon import BenchDaemon, runner_command
from bench.support.interleave import wait_for
from bench.support.result import CannotMeasure

PAINTED: Final = """(curves) => new Promise((done) => {
  const painted = () => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now())));
  const drawn = () => document.querySelectorAll('figure canvas').length >= curves;
  const look = () => drawn() ? painted() : setTimeout(look, 5);
  look();
})"""
"""Resolves with the milliseconds since the navigation, once so many curves are drawn and painted."""

SSHD: Final = """
Port {port}
ListenAddress 127.0.0.1
HostKey {place}/host_key
PidFile {place}/pid
AuthorizedKeysFile {place}/authorized
StrictModes no
UsePAM no
PermitRootLogin yes
"""

CLIENT: Final = """#!/bin/sh
exec {ssh} -F none -i {place}/key -o IdentitiesOnly=yes -o StrictHostKeyChecking=no \\
    -o UserKnownHostsFile={place}/known -o LogLevel=ERROR "$@"
"""


@dataclass(slots=True)
class Dashboard:
    """A process of ``runner dash``, to which one has logged in."""

    base: str
    cookie: str

    @property
    def port(self) -> int:
        return urlsplit(self.base).port or 80

    @property
    def place(self) -> str:
        """The path below which its pages lie."""
        return urlsplit(self.base).path

    def get(self, path: str) -> str:
        """Return a page."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request("GET", self.place + path, headers={"Cookie": self.cookie})
            answer = connection.getresponse()
            text = answer.read().decode()
        if answer.status != 200:
            raise CannotMeasure(f"{path}: the dashboard answered {answer.status}")
        return text

    def listen(self) -> socket.socket:
        """Return a connection that is told of every change, as an open page is."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        head = f"Host: 127.0.0.1:{self.port}\r\nCookie: {self.cookie}\r\n"
        connection.sendall(f"GET {self.place}/live HTTP/1.1\r\n{head}\r\n".encode())
        return connection


@contextmanager
def dashboard(daemon: BenchDaemon) -> Iterator[Dashboard]:
    """Yield a dashboard of a daemon."""
    argv = [*runner_command(), "dash", "--no-open"]
    with subprocess.Popen(argv, env=daemon.environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            link = process.stdout.readline().strip() if process.stdout is not None else ""
            if not link.startswith("http"):
                raise CannotMeasure("runner dash printed no link")
            parts = urlsplit(link)
            with closing(http.client.HTTPConnection("127.0.0.1", parts.port or 80, timeout=60)) as connection:
                connection.request("GET", f"{parts.path}?{parts.query}")
                cookie = (connection.getresponse().headers["Set-Cookie"] or "").partition(";")[0]
            yield Dashboard(f"http://127.0.0.1:{parts.port}{parts.path.removesuffix('/login')}", cookie)
        finally:
            process.terminate()


@contextmanager
def browser(shown: Dashboard) -> Iterator[Any]:
    """Yield a page of Chromium that has the cookie of a dashboard.

    Raises:
        CannotMeasure: there is no Chromium, or no Playwright.
    """
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise CannotMeasure("playwright is not installed (pip install -e .[dev])") from error
    if program is None:
        raise CannotMeasure("there is no chromium (scripts/test-tools)")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        context = opened.new_context(viewport={"width": 1280, "height": 900})
        name, _, value = shown.cookie.partition("=")
        context.add_cookies([{"name": name, "value": value, "url": shown.base}])
        yield context.new_page()
        opened.close()


def time_painting(page: Any, address: str, curves: int = 0) -> Callable[[], float]:
    """Return what measures the seconds from the navigation to the end of painting."""

    def measure() -> float:
        page.goto(address)
        return float(page.evaluate(PAINTED, curves)) / 1000

    return measure


@contextmanager
def ssh_server(place: Path, port: int) -> Iterator[dict[str, str]]:
    """Yield an environment in which ``ssh`` reaches an sshd on the loopback.

    Raises:
        CannotMeasure: there is no sshd, or it does not start.
    """
    sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if sshd is None:
        raise CannotMeasure("there is no sshd (scripts/test-tools)")
    for key in ("host_key", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(place / key)], check=True)
    shutil.copy(place / "key.pub", place / "authorized")
    (place / "sshd.conf").write_text(SSHD.format(port=port, place=place))
    (place / "bin").mkdir()
    (place / "run").mkdir(mode=0o700)
    client = place / "bin/ssh"
    client.write_text(CLIENT.format(ssh=shutil.which("ssh"), place=place))
    client.chmod(0o755)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True, mode=0o755)
    with subprocess.Popen([sshd, "-D", "-f", str(place / "sshd.conf")]) as process:
        try:
            wait_for("sshd", lambda: _listens(port), 20, 0.05)
            yield {
                **os.environ,
                "PATH": f"{place}/bin:{os.environ['PATH']}",
                "XDG_RUNTIME_DIR": f"{place}/run",
            }
        finally:
            for control in (place / "run").rglob("*.ctl"):  # the connections that commands have left open
                ask = [str(client), "-S", str(control), "-O", "exit", "127.0.0.1"]
                subprocess.run(ask, stderr=subprocess.DEVNULL, check=False)
            process.terminate()


def free_port() -> int:
    """Return a port of the loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def pause(seconds: float) -> None:
    """Wait, so that the next question is asked anew."""
    time.sleep(seconds)
