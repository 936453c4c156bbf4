"""Causes of the end of an attempt, from the engine's evidence about each way to die in real containers.

The exit code and the kernel's word about memory are separate facts: 137 has many causes,
and a job whose child was killed for memory may well exit with 0.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from signal import SIGKILL, SIGTERM, SIGUSR1
from typing import Any

import docker
import pytest

from runner.adapters.docker.executor import end_observation
from runner.adapters.launch import attempt_name
from runner.core.ports.executor import (
    Created,
    Gone,
    HostFault,
    ImageGone,
    Key,
    LaunchRefused,
    LaunchRequest,
)
from tests.contract.worlds import LIMITS, Place, begun, docker_place, end, printed, seen

pytestmark = pytest.mark.engine

HOG = "b = [bytes([n]) * 2**22 for n in range(256)]"  # far more than the job may have
SEGFAULT = "import ctypes; ctypes.string_at(0)"


@pytest.fixture(scope="module")
def place(engine: str, base_image: str) -> Iterator[Place]:
    with docker_place(engine, base_image) as place:
        yield place


def _run(place: Place, job: str, *argv: str) -> Gone:
    request = replace(place.request(*argv, job=job), limits=replace(LIMITS, memory_bytes=48 * 1024**2))
    executor = place.executor()
    executor.launch(request)
    return end(executor, request.key)


@pytest.mark.parametrize(
    ("job", "argv", "ending"),
    [
        ("main-oom", ("python3", "-c", HOG), (137, True)),
        ("child-oom", ("/bin/sh", "-c", 'python3 -c "$1"; exit 0', "sh", HOG), (0, True)),
        ("child-oom-exit-1", ("/bin/sh", "-c", 'python3 -c "$1"; exit 1', "sh", HOG), (1, True)),
        ("segfault", ("python3", "-c", SEGFAULT), (139, False)),
        ("says-137", ("/bin/sh", "-c", "exit 137"), (137, False)),
        ("killed-itself", ("/bin/sh", "-c", "kill -9 $$"), (137, False)),
        ("success", ("true",), (0, False)),
    ],
)
def test_the_exit_code_and_the_kernels_word_are_reported_apart(
    place: Place, job: str, argv: tuple[str, ...], ending: tuple[int, bool]
) -> None:
    gone = _run(place, job, *argv)
    assert (gone.exit_code, gone.oom_seen, gone.error) == (*ending, "")


def _words(engine: str, request: LaunchRequest) -> str:
    """Return what is in the engine's own log, which the program's output does not go to."""
    client = docker.APIClient(engine, version="auto")
    try:
        said: bytes = client.logs(attempt_name(request.key))
    finally:
        client.close()
    return said.decode()


@pytest.mark.parametrize("end_of_it", ["", "; exit 0"])
def test_the_container_says_itself_what_the_kernel_counted(place: Place, engine: str, end_of_it: str) -> None:
    """The engine's own word comes too late in a few of a hundred ends, and is lost while it is down."""
    job = f"counted-{len(end_of_it)}"
    request = place.request("/bin/sh", "-c", f'python3 -c "$1"{end_of_it}', "sh", HOG, job=job)
    request = replace(request, limits=replace(LIMITS, memory_bytes=48 * 1024**2))
    executor = place.executor()
    executor.launch(request)
    end(executor, request.key)
    assert re.fullmatch("oom_kill [1-9]\n", _words(engine, request))


FORGE = """
for file in /proc/1/fd/2 /proc/$PPID/fd/3; do echo "oom_kill 3" >$file; done
until [ -e /job/go ]; do sleep 0.05; done
kill -9 $$
"""


def test_a_kill_for_memory_is_that_of_the_attempts_own_container(place: Place, engine: str) -> None:
    """One program is killed for memory; beside it, another one claims the same, and dies of signal 9 itself.

    A program has the uid of the shell that reports, and can write where that writes.
    """
    forging = place.request("/bin/sh", "-c", FORGE, job="forges")
    hog = place.request("/bin/sh", "-c", 'python3 -c "$1"', "sh", HOG, job="hogs")
    hog = replace(hog, limits=replace(LIMITS, memory_bytes=48 * 1024**2))
    executor = place.executor()
    executor.launch(forging)
    executor.launch(hog)
    assert end(executor, hog.key).oom_seen
    go_on = forging.run_dir / "go"
    go_on.touch()
    gone = end(executor, forging.key)
    assert _words(engine, forging).splitlines()[-1] == "oom_kill 3"
    assert (gone.exit_code, gone.oom_seen) == (137, False)


def test_the_cgroup_is_believed_where_the_engine_missed_the_kill(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missed(key: Key, inspected: dict[str, Any], boot_id: str, boot_time_s: float) -> Gone:
        return replace(end_observation(key, inspected, boot_id, boot_time_s), oom_seen=False)

    monkeypatch.setattr("runner.adapters.docker.executor.end_observation", missed)
    gone = _run(place, "missed", "/bin/sh", "-c", 'python3 -c "$1"; exit 3', "sh", HOG)
    assert (gone.exit_code, gone.oom_seen) == (3, True)
    assert not _run(place, "missed-none", "/bin/sh", "-c", "exit 3").oom_seen


def test_an_env_that_is_older_costs_the_second_source_and_nothing_else(place: Place, engine: str) -> None:
    request = place.request("python3", "-c", "import os; print(os.getpid() < 9, os.getppid())", job="old-env")
    request = replace(request, environment={"PATH": "/job/old:/usr/bin:/bin"})
    old = request.run_dir / "old" / "env"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\nexit 125\n")
    old.chmod(0o755)
    old.parent.chmod(0o755)
    executor = place.executor()
    executor.launch(request)
    assert end(executor, request.key).exit_code == 0
    assert printed(request) == "True 1\n"  # a child of the init: no shell stays
    assert _words(engine, request) == ""


def test_a_signal_that_comes_in_a_hail_ends_it_once_and_as_the_program_says(place: Place) -> None:
    program = "trap 'exit 75' TERM; trap : USR1; echo ready; while :; do sleep 0.01; done"
    request = place.request("/bin/sh", "-c", program, job="hail")
    executor = place.executor()
    executor.launch(request)
    begun(request)
    for number in (SIGUSR1, SIGUSR1, SIGTERM, SIGUSR1, SIGTERM):
        executor.signal(request.key, number)
    assert end(executor, request.key).exit_code == 75


@pytest.mark.parametrize(
    ("job", "program", "signal", "exit_code"),
    [
        ("stop-handled", "trap 'exit 75' TERM; echo ready; while :; do sleep 0.02; done", SIGTERM, 75),
        ("stop-unhandled", "echo ready; exec sleep 1000", SIGTERM, 143),
        ("killed", "trap '' TERM; echo ready; sleep 1000", SIGKILL, 137),
    ],
)
def test_a_stop_ends_as_the_program_wishes_and_a_kill_as_it_must(
    place: Place, job: str, program: str, signal: int, exit_code: int
) -> None:
    request = place.request("/bin/sh", "-c", program, job=job)
    executor = place.executor()
    executor.launch(request)
    begun(request)
    executor.signal(request.key, signal)
    gone = end(executor, request.key)
    assert (gone.exit_code, gone.oom_seen) == (exit_code, False)


def test_an_image_that_is_gone_asks_for_another_build(place: Place) -> None:
    request = replace(place.request("true", job="no-image"), image=f"sha256:{'0' * 64}")
    with pytest.raises(ImageGone):
        place.executor().launch(request)
    assert seen(place.executor(), request.key) is None


@pytest.mark.parametrize(
    ("job", "network", "cpus", "kind"),
    [
        ("no-network", "no-such-network", 1.0, HostFault),
        ("too-many-cpus", None, 4096.0, LaunchRefused),
    ],
)
def test_what_the_engine_refuses_is_refused_in_one_line_and_leaves_nothing(
    place: Place, job: str, network: str | None, cpus: float, kind: type[Exception]
) -> None:
    request = place.request("true", job=job)
    request = replace(request, network=network, limits=replace(LIMITS, cpus=cpus))
    with pytest.raises(kind, match=job) as refused:
        place.executor().launch(request)
    assert "\n" not in str(refused.value)
    assert seen(place.executor(), request.key) is None


def test_a_container_that_was_created_and_never_started_is_not_running(place: Place, engine: str) -> None:
    request = place.request("echo", "started", job="created")
    executor = place.executor()
    asked = executor.plan(request)
    client = docker.APIClient(engine, version="auto")
    client.create_container_from_config(asked["config"], asked["name"])  # type: ignore[no-untyped-call]
    client.close()
    assert seen(executor, request.key) == Created(request.key)
    executor.signal(request.key, SIGTERM)
    executor.launch(request)  # the daemon died between the two calls: the next one starts it
    assert end(executor, request.key).exit_code == 0
    assert printed(request) == "started\n"
