"""Sessions inside of jobs in containers, through a real daemon."""

import subprocess
from collections.abc import Iterator

import pytest

from tests.fakes.daemon.ports import SERVER, fetch, forwarding, sockets
from tests.fakes.daemon.service import RUNNER, Service, service, until
from tests.fakes.daemon.terminals import code_of, show_two, typing
from tests.fakes.patience import patience
from tests.fakes.workloads.counter_image import counter_image

pytestmark = pytest.mark.engine

WALLS = """
grep -E '^(Uid|Gid|Groups|NoNewPrivs|Cap|Seccomp)' /proc/self/status
cat /proc/self/limits; umask; pwd; env | grep ^RUNNER_ | sort; ls -1 /dev; ls -1 /sys/class/net
for space in cgroup ipc mnt net pid user uts; do readlink /proc/self/ns/$space; done
"""


@pytest.fixture(scope="module")
def daemon(engine: str, base_image: str) -> Iterator[Service]:
    with (
        counter_image(engine, base_image) as counter,
        service(executor="docker", allowed_images={"counter": counter}) as made,
    ):
        yield made.start()


@pytest.fixture(scope="module")
def job(daemon: Service) -> Iterator[str]:
    """A job that shows its walls and then sleeps."""
    file = daemon.file(
        "sleeper",
        workload={"kind": "program", "command": ["/bin/sh", "-c", f"{WALLS}echo ready; exec sleep 1000"]},
        image="counter",
        resources={"cpus": 1, "memory": "1GiB"},
    )
    job_id = daemon.submit(file, end="cancelled")
    daemon.runs(job_id, "ready")
    yield job_id
    daemon.runner("cancel", job_id)
    daemon.ends(job_id)


def typed(daemon: Service, *arguments: str, input: bytes = b"") -> subprocess.CompletedProcess[bytes]:  # noqa: A002
    """Type a command with bytes for its standard input."""
    return subprocess.run(
        [*RUNNER, *arguments],
        input=input,
        capture_output=True,
        check=False,
        env=daemon.environ,
        timeout=patience(),
    )


def test_a_command_has_the_walls_of_its_job(daemon: Service, job: str) -> None:
    seen = typed(daemon, "exec", job, "--", "/bin/sh", "-c", WALLS).stdout.decode()
    assert seen == daemon.log(job).removesuffix("ready\n")
    assert "NoNewPrivs:\t1" in seen
    assert "CapEff:\t0000000000000000" in seen


def test_streams_and_exit_code_are_those_of_the_command(daemon: Service, job: str) -> None:
    done = typed(daemon, "exec", "-i", job, "--", "/bin/sh", "-c", "cat; echo err >&2; exit 7", input=b"in\n")
    assert (done.stdout, done.stderr, done.returncode) == (b"in\n", b"err\n", 7)


def test_a_shell_can_be_left_and_survives_the_daemon(daemon: Service) -> None:
    assert show_two(daemon, "1", "--image", "counter") == 7


def test_a_terminal_has_the_walls_of_its_job(daemon: Service, job: str) -> None:
    with typing(daemon, "exec", "-it", job, "--", "/bin/sh", "-c", f"{WALLS}exit 2") as screen:
        assert code_of(screen) == 2
        seen = screen.before.replace("\r\n", "\n")
    walls = daemon.log(job).removesuffix("ready\n")
    assert seen == walls


def test_a_port_is_forwarded_out_of_a_container_without_a_network(daemon: Service) -> None:
    file = daemon.file(
        "server",
        workload={"kind": "program", "command": ["python3", "-c", SERVER, "6006"]},
        image="counter",
        network="none",
        resources={"memory": "1GiB"},
    )
    job_id = daemon.submit(file, end="cancelled")
    daemon.runs(job_id, "ready")
    with forwarding(daemon, job_id, "0:6006") as (_, port):
        for number in range(5):
            assert fetch(port, f"/{number}") == f"inside /{number}".encode() + b"x" * 300000
    until(lambda: not sockets(daemon.paths(job_id).terminals), "the relay has ended")
    daemon.runner("cancel", job_id)
    daemon.ends(job_id)


def test_a_session_dies_with_its_container(daemon: Service) -> None:
    file = daemon.file(
        "brief",
        workload={"kind": "program", "command": ["sleep", "1000"]},
        image="counter",
        resources={"memory": "1GiB"},
    )
    job_id = daemon.submit(file, end="cancelled")
    daemon.reaches(job_id, "running")
    with daemon.typing("exec", job_id, "--", "/bin/sh", "-c", "echo ready; exec sleep 1000") as command:
        assert command.stdout is not None
        assert command.stdout.readline() == "ready\n"
        daemon.runner("cancel", job_id)
        assert command.wait(patience()) == 137
        assert command.stderr is not None
        told = command.stderr.read()
    assert told == "job brief ended (cancelled by root); the command ended with it\n"
    until(lambda: "ended after" in daemon.told(job_id), "the end of the session is an event")
