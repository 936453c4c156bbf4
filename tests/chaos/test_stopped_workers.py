"""A user stops all of their own processes, and so those with which the daemon reads their files."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from tests.chaos.test_fairness import VICTIM, submit_as
from tests.fakes.daemon.service import Service, service, until
from tests.fakes.workloads.small import program

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")

ATTACKER: Final = 70_000 + os.getpid() % 25_000
"""A uid that no other test has, also of another run on this machine: all its processes are stopped."""

SMALL: Final = {"resources": {"cpus": 0.1, "memory": "64MiB"}}
LAUNCHES: Final = 4
"""That one user has at a time, as the settings say if nobody else does."""

JOBS: Final = 12
"""A worker that is done before it is stopped lets its job begin, so there are more."""


@contextmanager
def stopped(uid: int) -> Iterator[None]:
    """Stop every process of a user again and again, as this user may."""
    parent, child = os.getpid(), os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            while os.getppid() == parent:
                with suppress(ProcessLookupError):
                    os.kill(-1, signal.SIGSTOP)
                time.sleep(0.002)
        finally:
            os._exit(0)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        words = ("kill", "-KILL", "-1")  # all that this user still has
        subprocess.run(words, user=uid, group=uid, extra_groups=[], check=False, capture_output=True)


def workers_of(uid: int) -> list[str]:
    """Return the processes of the daemon that have the ids of a user."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            status = (process / "status").read_text()
            if f"Uid:\t{uid}\t" in status and b"spawner" in (process / "cmdline").read_bytes():
                found.append(process.name)
    return found


def starting(daemon: Service, ids: list[str]) -> int:
    return [daemon.state_of(job_id) for job_id in ids].count("starting")


def test_whoever_stops_their_own_workers_delays_nobody_else() -> None:
    """Neither the launch of a job, nor its end; and no worker outlives the daemon."""
    with service(executor="process", cpus=8) as daemon:
        daemon.start()
        short = program(daemon, "short", ["/bin/true"], **SMALL)
        gate = program(daemon, "gate", ["/bin/sleep", "600"], resources={"cpus": 8, "memory": "64MiB"})
        saves = {"checkpoint": {"files": "/job/home/ck-*"}, **SMALL}
        files = [program(daemon, f"saves-{number}", ["/bin/true"], **saves) for number in range(JOBS)]
        held = submit_as(daemon, VICTIM, gate)
        daemon.reaches(held, "running")
        ids = [submit_as(daemon, ATTACKER, file) for file in files]
        with stopped(ATTACKER):
            daemon.client.act(held, "cancel", {})
            until(lambda: starting(daemon, ids) >= LAUNCHES, "launches wait for stopped workers")
            daemon.ends(submit_as(daemon, VICTIM, short))
            assert starting(daemon, ids) >= LAUNCHES, "the attack was none"
            assert workers_of(ATTACKER)
            daemon.kill()
            until(lambda: not workers_of(ATTACKER), "the workers have ended with the daemon")
