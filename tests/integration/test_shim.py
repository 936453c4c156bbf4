"""The shim under attack: killed daemons, killed shims, a full disk, a job that would be root."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL, SIGTERM

import pytest

from runner.adapters.launch import attempt_name
from runner.adapters.process.exec import ProcessExec
from runner.adapters.process.executor import ProcessExecutor, ProcessSettings
from runner.adapters.process.records import ProcessRecord
from runner.base.errors import Unavailable
from runner.core.ports.exec import ExecRequest
from runner.core.ports.executor import Alive, LaunchRequest
from tests.contract.worlds import Place, begun, end, eventually, printed, process_place, seen

SAVES = ("/bin/sh", "-c", "trap 'exit 75' TERM; echo ready; while :; do sleep 0.02; done")

LAUNCH_AND_DIE = """
import os, pickle, signal, sys
from runner.adapters.process.executor import ProcessExecutor
settings, request = pickle.load(sys.stdin.buffer)
ProcessExecutor(settings).launch(request)
os.killpg(0, signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with process_place() as place:
        yield place


def _executor(place: Place) -> ProcessExecutor:
    executor = place.executor()
    assert isinstance(executor, ProcessExecutor)
    return executor


def _books(executor: ProcessExecutor, request: LaunchRequest) -> ProcessRecord:
    return ProcessRecord(executor.settings.directory / attempt_name(request.key))


def test_an_attempt_outlives_the_daemon_that_started_it(place: Place) -> None:
    import pickle

    request = place.request(*SAVES, job="orphan")
    executor = _executor(place)
    daemon = subprocess.run(
        [sys.executable, "-c", LAUNCH_AND_DIE],
        input=pickle.dumps((executor.settings, request)),
        start_new_session=True,
        check=False,
    )
    assert daemon.returncode == -SIGKILL
    begun(request)
    assert isinstance(seen(executor, request.key), Alive)
    executor.signal(request.key, SIGTERM)
    assert end(executor, request.key).exit_code == 75


def test_a_program_that_outlives_its_shim_is_alive_and_ends_unknown(place: Place) -> None:
    request = place.request(*SAVES, job="shimless")
    executor = _executor(place)
    executor.launch(request)
    begun(request)
    shim = _books(executor, request).shim
    assert shim is not None
    os.kill(shim.pid, SIGKILL)
    eventually(lambda: not shim.alive)
    assert isinstance(seen(executor, request.key), Alive)
    executor.launch(request)  # still no second start
    executor.signal(request.key, SIGTERM)
    gone = end(executor, request.key)
    assert (gone.exit_code, "shim died" in gone.error) == (None, True)
    assert printed(request) == "ready\n"


def test_a_full_disk_does_not_cost_the_exit_status(place: Place, tmpfs: Path) -> None:
    executor = ProcessExecutor(ProcessSettings(place.instance, tmpfs / "books"))
    request = place.request(*SAVES, job="full-disk")
    executor.launch(request)
    begun(request)
    _fill(tmpfs)
    executor.signal(request.key, SIGTERM)
    assert end(executor, request.key).exit_code == 75  # and nobody waits for room


def test_a_shim_whose_directory_was_removed_ends_with_its_program(place: Place, tmp_path: Path) -> None:
    executor = ProcessExecutor(ProcessSettings(place.instance, tmp_path / "books"))
    request = place.request(*SAVES, job="removed")
    executor.launch(request)
    begun(request)
    books = _books(executor, request)
    shim, child = books.shim, books.child
    assert shim is not None
    assert child is not None
    shutil.rmtree(tmp_path / "books")
    os.kill(child.pid, SIGTERM)
    eventually(lambda: not child.alive)
    eventually(lambda: not shim.alive)


def test_a_launch_on_a_full_disk_starts_nothing_and_can_be_repeated(place: Place, tmpfs: Path) -> None:
    executor = ProcessExecutor(ProcessSettings(place.instance, tmpfs / "books"))
    request = place.request("/bin/sh", "-c", "echo one start", job="full-disk-launch")
    ballast = _fill(tmpfs)
    with pytest.raises(Unavailable, match="No space left"):
        executor.launch(request)
    ballast.unlink()
    executor.launch(request)
    assert end(executor, request.key).exit_code == 0
    assert printed(request) == "one start\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a daemon that is root")
def test_nothing_of_the_jobs_is_run_as_root(place: Place) -> None:
    request = place.request("/bin/sh", "-c", "id -u", job="path")
    evil = request.run_dir / "evil"
    evil.mkdir()
    for name in ("setsid", "setpriv", "env", "sh", "mv", "id"):
        program = evil / name
        program.write_text('#!/bin/sh\n/usr/bin/id -u\nexec /usr/bin/"${0##*/}" "$@"\n')
        program.chmod(0o755)
    request = replace(request, environment={"PATH": f"{evil}:/usr/bin:/bin", "ENV": str(evil / "id")})
    executor = _executor(place)
    executor.launch(request)
    assert end(executor, request.key).exit_code == 0
    assert printed(request) == f"{request.owner.uid}\n" * 2  # the evil id and the real one, as the owner
    assert _books(executor, request).stderr.read_text() == ""


def test_the_books_are_out_of_the_jobs_reach(place: Place) -> None:
    request = place.request("true", job="books")
    executor = _executor(place)
    executor.launch(request)
    end(executor, request.key)
    books = _books(executor, request).path
    assert [path.stat().st_mode & 0o077 for path in (books.parent, books, *books.iterdir())].count(0) >= 5
    assert books.parent.stat().st_mode & 0o777 == 0o700
    assert books.stat().st_uid == os.geteuid()


def test_a_stopped_program_can_be_killed(place: Place) -> None:
    request = place.request(*SAVES, job="stopped")
    executor = _executor(place)
    executor.launch(request)
    begun(request)
    executor.signal(request.key, signal.SIGSTOP)
    executor.signal(request.key, SIGKILL)
    assert end(executor, request.key).exit_code == 128 + SIGKILL


def _fill(directory: Path) -> Path:
    ballast = directory / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while file.write(b"x" * size):
                    continue
            except OSError:
                continue
    return ballast


def test_no_value_of_the_environment_is_an_argument_of_a_process(place: Place) -> None:
    """Arguments of all processes are readable by everybody on the host."""
    hostile = 'it\'s $(false) `false`\nof "two" lines '
    show = 'echo ready; printf "%s" "$VALUE"; while :; do sleep 0.02; done'
    request = place.request("/bin/sh", "-c", show, job="private")
    request = replace(request, environment={"VALUE": hostile + "wind-of-march", "OPTIND": "no number"})
    executor = _executor(place)
    executor.launch(request)
    begun(request)
    for arguments in Path("/proc").glob("[0-9]*/cmdline"):
        assert "wind-of-march" not in _text(arguments)
    eventually(lambda: printed(request) == f"ready\n{hostile}wind-of-march")
    environment = _books(executor, request).path / "environment"
    assert environment.stat().st_mode & 0o777 == 0o600
    executor.signal(request.key, SIGKILL)
    end(executor, request.key)


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:  # it has ended
        return ""


@pytest.fixture
def inherited(tmp_path: Path) -> Iterator[None]:
    """Let programs inherit a descriptor of this process, as it may have inherited it itself."""
    (tmp_path / "secret").write_text("s3cret")
    descriptor = os.open(tmp_path / "secret", os.O_RDONLY)
    os.set_inheritable(descriptor, True)  # noqa: FBT003  it has no name
    yield
    os.close(descriptor)


@pytest.mark.usefixtures("inherited")
def test_a_descriptor_that_the_daemon_inherited_does_not_reach_a_job(place: Place) -> None:
    request = place.request("/bin/sh", "-c", "ls /proc/self/fd", job="closed")
    executor = _executor(place)
    executor.launch(request)
    assert end(executor, request.key).exit_code == 0
    assert printed(request).split() == ["0", "1", "2", "3"]  # the last is that of ls itself


@pytest.mark.usefixtures("inherited")
def test_a_descriptor_that_the_daemon_inherited_does_not_reach_a_command_in_a_job(place: Place) -> None:
    request = place.request(*SAVES, job="closed-too")
    executor = _executor(place)
    executor.launch(request)
    begun(request)

    async def ask() -> bytes:
        command = ExecRequest(("/bin/sh", "-c", "ls /proc/self/fd"), request.owner)
        process = await ProcessExec(executor.settings.directory).start(request.key, command)
        said = b"".join([chunk async for _, chunk in process.outputs()])
        await process.exit_code()
        await process.close()
        return said

    assert asyncio.run(ask()).split() == [b"0", b"1", b"2", b"3"]
    executor.signal(request.key, SIGTERM)
    end(executor, request.key)
