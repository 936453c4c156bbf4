"""A daemon that is killed again and again leaves no secret and no draft once another one runs."""

import os
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.fakes.daemon.service import Service, service, until

KILLS = 12
TOGETHER = 4


@pytest.fixture
def daemon() -> Iterator[Service]:
    """A daemon whose jobs are plain processes, because their starts and ends are soon."""
    with service(executor="process", observe_every_s=0.1) as made:
        yield made.start()


def short(daemon: Service, name: str) -> Path:
    """Write a job file of a program that reads its secret and ends."""
    secret = daemon.root / "token"
    if not secret.exists():
        secret.write_text("hush")
        secret.chmod(0o644)
        code = daemon.root / "code"
        code.mkdir(mode=0o755)
    workload = {"kind": "program", "command": ["/bin/sleep", "0.1"], "code": str(daemon.root / "code")}
    return daemon.file(
        name,
        workload=workload,
        secrets={"token": str(secret)},
        resources={"cpus": 1, "memory": "64MiB"},
        retry={"backoff": "0s"},
    )


def left_over(daemon: Service) -> list[str]:
    """Return what should not be there after the end of all jobs."""
    jobs, records = daemon.state / "jobs", daemon.state / "processes"
    drafts = [*jobs.glob("*/.*.draft"), *jobs.glob("*/*/.*.draft")]
    found = [*jobs.glob("*/secrets"), *drafts, *records.iterdir(), *missing_decisions(daemon)]
    return [str(path.relative_to(daemon.state)) for path in found]


def missing_decisions(daemon: Service) -> list[Path]:
    with closing(sqlite3.connect(daemon.state / "store.db")) as store:
        ends = store.execute(
            "SELECT DISTINCT job_id, attempt FROM decisions WHERE moment = 'exit'"
        ).fetchall()
    paths = [daemon.state / "jobs" / str(job) / "attempts" / f"{attempt}.exit.json" for job, attempt in ends]
    return [path for path in paths if not path.exists()]


def test_after_repeated_kills_no_secret_no_draft_and_no_record_is_left(daemon: Service) -> None:
    seed = int.from_bytes(os.urandom(4))
    print(f"kill points drawn with seed {seed}")  # noqa: T201  pytest shows it when the test fails
    draw = random.Random(seed)  # noqa: S311  kill points, no secrets
    ids: list[str] = []
    for kill in range(KILLS):
        ids += [daemon.submit(short(daemon, f"short-{kill}-{number}")) for number in range(TOGETHER)]
        if kill % 3 == 1:
            daemon.client.act(ids[-1], "cancel", {})
            daemon.jobs[ids[-1]] = "cancelled"
        wanted = {draw.choice(["starting", "running", "finished"]) for _ in range(2)}
        watched = draw.choice(ids[-TOGETHER:])
        until(lambda: daemon.state_of(watched) in wanted | {"finished"}, f"job {watched} is {wanted}")  # noqa: B023  asked at once
        daemon.kill()
        daemon.start()
    for job_id in ids:
        ended = daemon.ends(job_id)
        assert ended["outcome"] in {"succeeded", daemon.jobs[job_id]}, daemon.told(job_id)
        assert "vanished" not in [attempt["cause"] for attempt in ended["attempts"]], daemon.told(job_id)
    until(lambda: not left_over(daemon), "nothing is left", more=lambda: str(left_over(daemon)))


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
