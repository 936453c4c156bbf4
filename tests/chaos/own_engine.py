"""An engine of one's own, to be killed for real: in namespaces of its own, with state of its own.

It shares nothing with the engine of the machine: no network, no bridge, no firewall rules.
"""

import io
import os
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import docker

from tests.fakes.daemon.service import speak, until
from tests.fakes.patience import patience
from tests.fakes.workloads.counter_image import docker_client

# Archives what Python and a shell need and nothing else: a tenth of the image.
FEW_FILES: Final = """
import glob, os, re, subprocess, sys, sysconfig, tarfile
real = {os.path.realpath(p) for p in (sys.executable, "/bin/sh", "/usr/bin/env")}
stdlib = sysconfig.get_path("stdlib")
objects = [*real, *glob.glob(stdlib + "/lib-dynload/*.so")]
said = subprocess.run(["ldd", *objects], capture_output=True, text=True).stdout
libraries = set(re.findall(r"(/\\S+\\.so\\S*) \\(", said))
def keep(entry):
    skipped = ("__pycache__", "test", "dist-packages", "site-packages", "idlelib", "config-3")
    return None if any(part.startswith(skipped) for part in entry.name.split("/")) else entry
with tarfile.open("/tmp/few.tar", "w") as tar:
    for link in ("/bin", "/lib", "/lib64"):
        if os.path.islink(link):
            tar.add(link)
    names = {"/bin/sh", "/usr/bin/env", sys.executable, *libraries}
    there = {os.path.join(os.path.realpath(os.path.dirname(p)), os.path.basename(p)) for p in names}
    for path in sorted(real | there | {os.path.realpath(path) for path in there}):
        tar.add(path)
    tar.add(stdlib, filter=keep)
    tar.add("/opt/counter")
"""

APART: Final = ("--bridge=none", "--iptables=false", "--ip6tables=false", "--live-restore=false")


class OwnEngine:
    """A container engine that a test may kill and start again."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.socket = root / "sock"
        self.url = f"unix://{self.socket}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and return when it answers; without live-restore, it ends what still runs."""
        places = {"data-root": "data", "exec-root": "exec", "pidfile": "pid"}
        options = [f"--{option}={self._root / name}" for option, name in places.items()]
        with (self._root / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["unshare", "-n", "-m", "dockerd", *options, f"--host={self.url}", *APART],
                stdout=log,
                stderr=log,
            )
        until(self._answers, "the engine answers", more=lambda: (self._root / "log").read_text()[-3000:])

    def kill(self) -> None:
        """kill -9 the engine and what it runs containers with, as the kernel would for want of memory."""
        assert self._process is not None
        children = _children(self._process.pid)
        for pid in (self._process.pid, *children):
            os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), "its children are gone")
        for leftover in (self._root / "pid", self.socket):
            leftover.unlink(missing_ok=True)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(patience())

    def take_over(self, engine: str, image: str, name: str) -> str:
        """Return the id of a small image made of what Python needs in ``image`` of another engine."""
        with docker_client(engine) as other:
            variables = other.images.get(image).attrs["Config"]["Env"]
            content = _few_files(other, image)
        with docker_client(self.url) as mine:
            mine.api.import_image_from_data(
                content, repository=name, changes=[f"ENV {each}" for each in variables]
            )
            return str(mine.images.get(f"{name}:latest").id)

    def _answers(self) -> bool:
        try:
            return b"200 OK" in speak(self.socket, b"GET /_ping HTTP/1.0\r\n\r\n")
        except OSError:
            return False


def _few_files(client: docker.DockerClient, image: str) -> bytes:
    container = client.containers.create(image, ["python3", "-c", FEW_FILES], network_mode="none")
    try:
        container.start()
        assert container.wait()["StatusCode"] == 0, container.logs()
        chunks, _ = container.get_archive("/tmp/few.tar")
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as outer:
            inner = outer.extractfile("few.tar")
            assert inner is not None
            return inner.read()
    finally:
        container.remove(force=True)


def _children(pid: int) -> list[int]:
    threads = Path(f"/proc/{pid}/task").glob("*/children")  # each thread has those that it started
    return [int(child) for thread in threads for child in _text(thread).split()]


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except (FileNotFoundError, ProcessLookupError):  # a thread that has just ended
        return ""


@contextmanager
def own_engine() -> Iterator[OwnEngine]:
    """An engine that is gone afterwards; its directory has a short name, for sockets lie deep below it."""
    with TemporaryDirectory(prefix="own-", ignore_cleanup_errors=True) as root:
        engine = OwnEngine(Path(root))
        try:
            engine.start()
            yield engine
        finally:
            engine.stop()
