"""``scripts/engine`` finds, starts or installs an engine, and says which in one line per step.

Each test runs it in a mount name space of its own with an empty ``/run`` and a PATH of
fakes, so that it can neither see the engine of this machine nor start a real one.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fakes.patience import patience

SCRIPT = Path(__file__).parents[2] / "scripts" / "engine"

DOCKERD = f"""#!{sys.executable}
import http.server, os, pathlib, socketserver
class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path in ("/_ping", *os.environ.get("HAS", "").split()) else 404)
        self.end_headers()
    do_POST = do_GET
    def address_string(self): return "-"
    def log_message(self, *_): pass
pathlib.Path(os.environ["HOME"], "dockerd.pid").write_text(str(os.getpid()))
socketserver.UnixStreamServer("/var/run/docker.sock", Answers).serve_forever()
"""

APT = """#!/bin/sh
echo "$*" >>"$HOME/apt.txt"
[ "$1" = install ] && cp "$HOME/dockerd.later" "$HOME/bin/dockerd"
"""

NEEDED = ("sh", "mkdir", "id", "grep", "tail", "sleep", "setsid", "cp", "mount")
BASE = "/images/runner-base:bookworm/json"


@dataclass
class Machine:
    """A machine of which only the fakes can be seen."""

    home: Path

    def has(self, name: str, text: str = "#!/bin/sh\n") -> None:
        (self.home / "bin" / name).write_text(text)
        (self.home / "bin" / name).chmod(0o755)

    def engine(self, **environment: str) -> subprocess.CompletedProcess[str]:
        enter = 'mount -t tmpfs tmpfs /run && mount --bind "$HOME/os-release" /etc/os-release && exec "$@"'
        return subprocess.run(
            ["unshare", "--mount", "sh", "-c", enter, "sh", str(SCRIPT)],
            env={"PATH": str(self.home / "bin"), "HOME": str(self.home), **environment},
            executable=shutil.which("unshare"),
            capture_output=True,
            text=True,
            timeout=patience(),
            check=False,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], check=False).returncode != 0:
        pytest.skip("only root may hide this machine's engine from the script")
    (tmp_path / "bin").mkdir()
    for name in NEEDED:
        (tmp_path / "bin" / name).symlink_to(str(shutil.which(name)))
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    (tmp_path / "os-release").write_text("ID=debian\n")
    (tmp_path / "dockerd.later").write_text(DOCKERD)
    (tmp_path / "dockerd.later").chmod(0o755)
    yield Machine(tmp_path)
    started = tmp_path / "dockerd.pid"
    if started.exists():
        os.kill(int(started.read_text()), signal.SIGKILL)


def test_an_installed_dockerd_is_started_and_left_running(machine: Machine) -> None:
    machine.has("dockerd", DOCKERD)
    done = machine.engine(HAS=BASE)
    assert (done.returncode, done.stdout) == (0, "unix:///var/run/docker.sock\n")
    assert "engine: starting dockerd; its log is" in done.stderr
    os.kill(int((machine.home / "dockerd.pid").read_text()), 0)


def test_without_one_debians_is_installed_and_that_is_said(machine: Machine) -> None:
    machine.has("apt-get", APT)
    done = machine.engine(HAS=BASE)
    assert done.returncode == 0, done.stderr
    assert "installing docker.io debootstrap with apt-get" in done.stderr
    assert (machine.home / "apt.txt").read_text().splitlines() == [
        "update",
        "install -y docker.io debootstrap",
    ]


def test_installing_can_be_forbidden(machine: Machine) -> None:
    machine.has("apt-get", APT)
    done = machine.engine(RUNNER_NO_INSTALL="1")
    assert done.returncode == 4
    assert done.stderr == "engine: none is installed, and none may be; install Docker or set DOCKER_HOST\n"
    assert not (machine.home / "apt.txt").exists()


def test_nothing_is_installed_on_other_systems(machine: Machine) -> None:
    (machine.home / "os-release").write_text("ID=fedora\n")
    machine.has("apt-get", APT)
    assert machine.engine().returncode == 4
    assert not (machine.home / "apt.txt").exists()


def test_a_dockerd_that_does_not_come_up_is_explained_by_its_last_words(machine: Machine) -> None:
    machine.has("dockerd", "#!/bin/sh\necho 'failed to start: no iptables' >&2\nexit 1\n")
    done = machine.engine()
    assert done.returncode == 4
    assert done.stderr.endswith("engine: dockerd does not answer: failed to start: no iptables\n")


def test_a_base_that_can_be_pulled_needs_no_further_tool(machine: Machine) -> None:
    machine.has("dockerd", DOCKERD)
    machine.has("apt-get", APT)
    done = machine.engine(HAS="/images/create?fromImage=python&tag=3.11-slim-bookworm")
    assert "no base image here; pulling python:3.11-slim-bookworm" in done.stderr
    assert not (machine.home / "apt.txt").exists()


def test_where_nothing_can_be_pulled_the_bootstrap_tool_is_installed(machine: Machine) -> None:
    machine.has("dockerd", DOCKERD)
    machine.has("apt-get", APT)
    assert machine.engine().returncode == 0
    assert "install -y debootstrap" in (machine.home / "apt.txt").read_text()


def test_a_named_engine_that_is_down_is_not_replaced_by_another(machine: Machine) -> None:
    machine.has("dockerd", DOCKERD)
    done = machine.engine(DOCKER_HOST="unix:///nowhere.sock")
    assert (done.returncode, done.stdout) == (4, "")
    assert "DOCKER_HOST=unix:///nowhere.sock does not answer" in done.stderr
    assert not (machine.home / "dockerd.pid").exists()


def test_a_stale_socket_is_no_engine(machine: Machine) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(machine.home / "stale.sock"))
    assert machine.engine(DOCKER_HOST=f"unix://{machine.home}/stale.sock").returncode == 4


@pytest.mark.engine
def test_a_running_engine_is_found_at_once(engine: str) -> None:
    done = subprocess.run([str(SCRIPT)], capture_output=True, text=True, timeout=patience(), check=False)
    assert (done.returncode, done.stdout.strip()) == (0, engine)
