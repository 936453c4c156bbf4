"""The promise, end to end: daemon and container killed together, and the weights are those of a quiet day."""

import os
import random
import signal

import pytest

from tests.chaos.endless import endless, saves, saves_at
from tests.fakes.daemon.service import Service, until

pytestmark = pytest.mark.engine

KILLS = int(os.environ.get("JOBS_CONTAINER_KILLS", "2"))
LARGER = {"batch_size": 8, "context": 64, "width": 64, "heads": 4, "dropout": 0.2}


@pytest.mark.timeout(120 + 60 * KILLS)
def test_killed_with_their_daemon_at_random_steps_jobs_end_with_the_bits_of_an_undisturbed_one(
    daemon: Service, trainer_image: str
) -> None:
    del trainer_image
    seed = int.from_bytes(os.urandom(4))
    print(f"kill points drawn with seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    draw = random.Random(seed)  # noqa: S311 - kill points, no secrets
    policy = daemon.tireless()
    killed, quiet = (
        endless(daemon, name, every=7, workload=LARGER, policy=policy) for name in ("killed", "quiet")
    )
    for step in sorted(draw.sample(range(1, 60 * KILLS), KILLS)):
        until(lambda step=step: reached(daemon, killed, step), f"step {step}")  # type: ignore[misc]
        kill_both(daemon, killed, draw)
        daemon.runner("list")
    found = saves(daemon, killed, KILLS + 1)
    assert found.state_sha256 == saves_at(daemon, quiet, found.step).state_sha256
    for job_id in (killed, quiet):
        daemon.runner("cancel", job_id)
    ended, reference = daemon.ends(killed), daemon.ends(quiet)
    assert (ended["attempt"], reference["attempt"]) == (KILLS + 1, 1)
    assert [a["cause"] for a in ended["attempts"]] == ["killed"] * KILLS + ["stopped"]
    daemon.assert_whole()


def reached(daemon: Service, job_id: str, step: int) -> bool:
    """Return True if what runs now has come to a step: a new daemon may not know yet that all is dead."""
    return newest_step(daemon, job_id) >= step and daemon.alive(job_id)


def newest_step(daemon: Service, job_id: str) -> int:
    """Return the last step of the attempt that runs now, 0 while none does."""
    job = daemon.job(job_id)
    if job["state"] != "running":
        return 0
    steps = [line for line in daemon.log(job_id, job["attempt"]).splitlines() if line.startswith("step ")]
    return int(steps[-1].split()[1].partition("/")[0]) if steps else 0


def kill_both(daemon: Service, job_id: str, draw: random.Random) -> None:
    daemon_pid = daemon.daemon_pid()
    pids = [daemon.container_pid(job_id), daemon_pid]
    draw.shuffle(pids)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    daemon.await_end(daemon_pid)
