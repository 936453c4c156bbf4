"""A user stops all of their own processes, and so those with which the daemon reads their files."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from tests.chaos.test_fairness import ATTACKER, VICTIM, submit_as
from tests.fakes.daemon.service import service, until
from tests.fakes.workloads.small import program

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")

SMALL: Final = {"resources": {"cpus": 0.1, "memory": "64MiB"}}
JOBS: Final = 6
"""More than there are launches of one user at a time."""


@contextmanager
def stopped(uid: int) -> Iterator[None]:
    """Stop every process of a user again and again, as this user may."""
    child = os.fork()
    if child == 0:
        try:
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            while True:
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


def workers_of(uid: int) -> list[str]:
    """Return the processes of the daemon that have the ids of a user."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            status = (process / "status").read_text()
            if f"Uid:\t{uid}\t" in status and b"spawner" in (process / "cmdline").read_bytes():
                found.append(process.name)
    return found


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
            for job_id in ids:
                daemon.reaches(job_id, "starting")
            daemon.ends(submit_as(daemon, VICTIM, short))
            assert {daemon.state_of(job_id) for job_id in ids} == {"starting"}, "the attack was none"
            assert workers_of(ATTACKER)
            daemon.kill()
            until(lambda: not workers_of(ATTACKER), "the workers have ended with the daemon")
