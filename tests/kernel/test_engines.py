"""Engines that give containers other users than those of the host."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fakes.daemon.service import until
from tests.fakes.doctor_page import check
from tests.kernel.machine import RUNNER, here, journal, ran, systemd_daemon, user

SMALL = "small:latest"


@pytest.fixture(scope="module", autouse=True)
def alice() -> Iterator[str]:
    here()
    with user("alice", "--create-home") as name:
        yield name


def await_engine(engine: subprocess.Popen[bytes], address: str, log: Path) -> None:
    """Wait until an engine answers that is being started."""
    ask = ["docker", "-H", address, "info"]

    def answers() -> bool:
        assert engine.poll() is None, log.read_text()
        return subprocess.run(ask, check=False, capture_output=True).returncode == 0

    until(answers, f"{address} answers", more=log.read_text)


def small_root() -> Path:
    """Return a root directory of BusyBox, which is loaded sooner than the image of the other tests."""
    root = Path("/var/tmp/small")
    (root / "bin").mkdir(parents=True, exist_ok=True)
    shutil.copy("/usr/bin/busybox", root / "bin" / "busybox")
    for name in ("sh", "id", "cat", "mkdir", "test", "env"):
        (root / "bin" / name).symlink_to("busybox")
    return root


@contextmanager
def second_engine(*options: str) -> Iterator[str]:
    """A dockerd beside the machine's own, with the image of the tests."""
    address = "unix:///run/second.sock"
    places = {"data-root": "/var/lib/second", "exec-root": "/run/second", "pidfile": "/run/second.pid"}
    apart = {"containerd-namespace": "second", "containerd-plugins-namespace": "second-plugins"}
    named = [f"--{name}={value}" for name, value in {**places, **apart}.items()]
    with (
        Path("/var/log/second.log").open("w") as log,
        subprocess.Popen(["dockerd", "-H", address, *named, *options], stdout=log, stderr=log) as engine,
    ):
        try:
            await_engine(engine, address, Path(log.name))
            ran("sh", "-c", f"tar -C {small_root()} -c . | docker -H {address} import - {SMALL}")
            yield address
        finally:
            engine.terminate()


def test_with_userns_remap_jobs_have_the_users_of_the_host(alice: str) -> None:
    with (
        second_engine("--userns-remap=default") as address,
        systemd_daemon(engine=address, allowed_images={"small": SMALL}),
    ):
        told = ran("env", f"DOCKER_HOST={address}", RUNNER, "doctor", "--json")
        check("Docker with userns-remap", told)
        options = ["--no-code", "--image", "small", "--cpus", "0.5", "--memory", "128M"]
        told = ran(RUNNER, "run", *options, "--", "sh", "-c", "id -un && echo made > $HOME/made", user=alice)
        assert "alice\n" in told
        assert "user_namespace: host" in journal()


@contextmanager
def rootless_engine(person: str) -> Iterator[str]:
    """The dockerd of a user, started as Docker's manual says."""
    Path("/dev/net/tun").chmod(0o666)
    ran("loginctl", "enable-linger", person)
    place = Path("/run/user") / ran("id", "-u", person).strip()
    until((place / "bus").exists, "the user has a systemd of their own")
    address = f"unix://{place}/docker.sock"
    home = f"/home/{person}"
    named = {"HOME": home, "PATH": os.environ["PATH"], "XDG_RUNTIME_DIR": str(place)}
    start = ["/usr/share/docker.io/contrib/dockerd-rootless.sh", "--iptables=false", "--bridge=none"]
    with (
        Path("/var/log/rootless.log").open("w") as log,
        subprocess.Popen(
            ["runuser", "-u", person, "--", "env", "-i", *(f"{k}={v}" for k, v in named.items()), *start],
            stdout=log,
            stderr=log,
        ) as engine,
    ):
        try:
            await_engine(engine, address, Path(log.name))
            yield address
        finally:
            ran("loginctl", "disable-linger", person)
            engine.terminate()


def test_a_rootless_engine_is_refused_in_one_line_and_jobs_run_as_processes(alice: str) -> None:
    with rootless_engine(alice) as address:
        as_documented = ("env", f"DOCKER_HOST={address}", RUNNER)
        check("Rootless Docker", ran(*as_documented, "doctor", "--json", user=alice, code=4))
        options = ["--no-code", "--cpus", "0.5", "--memory", "128M"]
        told = ran(*as_documented, "run", *options, "--", "id", "-un", user=alice)
        try:
            assert "alice\n" in told
            assert "rootless" in told
        finally:
            ran(RUNNER, "stop", user=alice)
