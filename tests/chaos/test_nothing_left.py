"""A daemon that is killed again and again loses and doubles no job, and leaves nothing over.

The long form of the first test is the program ``tests.chaos.campaign``.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.campaign import Round, left_over
from tests.fakes.daemon.service import Service, service, until

KILLS = {"process": 6, "docker": 3}


@pytest.fixture
def daemon() -> Iterator[Service]:
    """A daemon whose jobs are plain processes, because their starts and ends are soon."""
    with service(executor="process", observe_every_s=0.1) as made:
        yield made.start()


def short(daemon: Service, name: str) -> Path:
    """Write a job file of a program that ends at once."""
    workload = {"kind": "program", "command": ["/bin/true"]}
    return daemon.file(name, workload=workload, resources={"cpus": 1, "memory": "64MiB"})


def test_kills_under_mixed_load_lose_double_and_leave_nothing_among_processes() -> None:
    made = Round(str(int.from_bytes(os.urandom(4))), KILLS["process"], "process")
    print(f"drawn with seed {made.seed}")  # noqa: T201  pytest shows it when the test fails
    made.run()
    assert not made.problems, "\n".join(made.problems)


@pytest.mark.engine
def test_kills_under_mixed_load_lose_double_and_leave_nothing_among_containers(counter: str) -> None:
    made = Round(str(int.from_bytes(os.urandom(4))), KILLS["docker"], "docker", counter)
    print(f"drawn with seed {made.seed}")  # noqa: T201  as above
    made.run()
    assert not made.problems, "\n".join(made.problems)


def test_what_a_killed_daemon_left_undone_is_done_by_the_next_one(daemon: Service) -> None:
    job_id = daemon.submit(short(daemon, "short"))
    daemon.ends(job_id)
    until(lambda: not left_over(daemon), "nothing is left")
    daemon.kill()
    job = daemon.state / "jobs" / job_id
    (job / "secrets").mkdir()
    (job / "secrets" / "token").write_text("hush")
    (job / "attempts" / ".1.exit.json.draft").write_text("{")
    (job / "lineages" / ".2.draft").mkdir()
    (job / "attempts" / "1.exit.json").unlink()
    (daemon.state / "processes" / ".runner-x-1-1").mkdir()
    assert len(left_over(daemon)) == 5
    daemon.start()
    until(lambda: not left_over(daemon), "nothing is left", more=lambda: str(left_over(daemon)))
