"""The shipped seccomp profiles, on a real engine."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from runner.adapters.docker.executor import DockerExecutor, DockerExecutorSettings
from runner.files.settings.model import Settings
from scripts.seccomp_profiles import profile
from tests.contract.worlds import Place, docker_place, end, printed

pytestmark = pytest.mark.engine

TRY = """
import ctypes, errno, json, multiprocessing, os, socket, subprocess, sys, threading

libc = ctypes.CDLL(None, use_errno=True)

def call(number, *arguments):
    ctypes.set_errno(0)
    libc.syscall(number, *arguments)
    return errno.errorcode.get(ctypes.get_errno(), "ok")

def vsock():
    try:
        socket.socket(40, socket.SOCK_STREAM)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "ok"

thread = threading.Thread(target=lambda: None)
thread.start()
thread.join()
subprocess.run(["true"], check=True)
with multiprocessing.get_context("fork").Pool(1) as pool:
    assert pool.map(abs, [-1]) == [1]
numbers = {"x86_64": (425, 239, 272), "aarch64": (425, 236, 97)}[os.uname().machine]
io_uring, mempolicy, unshare = numbers
print(json.dumps({
    "io_uring": call(io_uring, 1, 0),
    "numa": call(mempolicy, 0, 0, 0, 0, 0),
    "namespace": call(unshare, 0x10000000),
    "vsock": vsock(),
    "unix": socket.socket(socket.AF_UNIX).fileno() > 0,
}))
"""


@pytest.fixture(scope="module")
def place(engine: str, base_image: str) -> Iterator[Place]:
    with docker_place(engine, base_image) as place:
        yield place


@pytest.mark.parametrize(("name", "numa"), [("runner", "EPERM"), ("runner-numa", "ok")])
def test_a_job_runs_with_a_shipped_profile_and_without_what_it_denies(
    place: Place, name: str, numa: str
) -> None:
    usual = place.executor()
    assert isinstance(usual, DockerExecutor)
    text = Settings(seccomp=Path(name)).seccomp_text()
    settings = DockerExecutorSettings(replace(usual.settings.hardening, seccomp=text), usual.settings.url)
    executor = DockerExecutor(settings)
    request = place.request("python3", "-c", TRY, job=name)
    executor.launch(request)
    assert end(executor, request.key).exit_code == 0, printed(request)
    denied = {"io_uring": "EPERM", "namespace": "EPERM", "vsock": "EPERM"}
    assert json.loads(printed(request)) == {**denied, "numa": numa, "unix": True}


@pytest.mark.parametrize(("name", "numa"), [("runner", False), ("runner-numa", True)])
def test_the_shipped_files_are_what_the_script_writes(name: str, numa: bool) -> None:  # noqa: FBT001
    assert json.loads(Settings(seccomp=Path(name)).seccomp_text() or "") == profile(numa=numa)


def test_a_job_runs_where_the_engine_has_no_apparmor_although_a_profile_is_wanted(place: Place) -> None:
    usual = place.executor()
    assert isinstance(usual, DockerExecutor)
    wanted = replace(usual.settings.hardening, apparmor="docker-default")  # is loaded where AppArmor is
    executor = DockerExecutor(DockerExecutorSettings(wanted, usual.settings.url))
    request = place.request("true", job="apparmor")
    with capture_logs() as log:
        executor.launch(request)
    assert end(executor, request.key).exit_code == 0
    [seen] = [each for each in log if each["event"] == "engine.isolation"]
    missed = [each for each in log if each["event"] == "engine.no_apparmor"]
    assert bool(missed) is not seen["apparmor"]
