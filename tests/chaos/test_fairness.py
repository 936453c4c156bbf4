"""One user does the worst of all known attacks at once; another one lists, cancels and runs a small job."""

import base64
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from runner.adapters.sqlite.store import SqliteStore
from runner.base.errors import RunnerError
from runner.client.http import ErrorResponse
from runner.core.job.model import Job
from runner.core.job.states import Queued
from tests.fakes.daemon.service import Service, service
from tests.fakes.host.users import with_uid
from tests.fakes.workloads.small import program

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")

VICTIM, ATTACKER = 1234, 4321

WAITING: Final = 30_000
ROUNDS: Final = 5
SPARSE: Final = """\
set -e
for step in 1 2 3; do
    where=$RUNNER_JOB_DIR/lineages/1/step-0000000$step
    mkdir "$where"
    truncate -s 8T "$where/state"
    printf '{"contract_version": 1, "job_id": "1", "step": %d, "lineage": 1, "attempt": 1, "revision": 1,
        "created": 0.0, "files": {"state": {"bytes": 8796093022208, "sha256": "%064d"}}}' $step 0 \\
        > "$where/manifest.json"
done
echo left
"""

Attack = Callable[[], object]


@pytest.fixture
def daemon() -> Iterator[Service]:
    quotas = {"user_quota": {"queued": 2 * WAITING}}
    with service(executor="process", queue=quotas) as made:
        yield made.start()


def submit_as(daemon: Service, uid: int, file: Path) -> str:
    """Submit a job file as somebody, and return the job's id."""
    text = file.read_bytes()
    code, answer = with_uid(uid, lambda: daemon.client.submit(str(file), text, None))
    assert code == 0, answer
    assert isinstance(answer, dict)
    return str(answer["job"]["id"])


# --- what the victim does


def seconds_of(victim: int, work: Callable[[], object]) -> float:
    """Return the time that a victim needs for something."""

    def timed() -> float:
        began = time.monotonic()
        work()
        return time.monotonic() - began

    code, took = with_uid(victim, timed)
    assert code == 0, took
    assert isinstance(took, float)
    return took


def small_job(daemon: Service, file: Path) -> None:
    answer = daemon.client.submit(str(file), file.read_bytes(), None)
    daemon.ends(answer["job"]["id"])


def measure(daemon: Service, victim: int) -> dict[str, float]:
    """Return the median times of a victim without jobs."""
    short = program(daemon, "short", ["/bin/true"])
    late = program(daemon, "late", ["/bin/true"], queue={"not_before": "2099-01-01T00:00:00+00:00"})
    times: dict[str, list[float]] = {"list": [], "cancel": [], "job": []}
    for _ in range(ROUNDS):
        job_id = submit_as(daemon, victim, late)
        times["list"].append(seconds_of(victim, partial(daemon.client.jobs, mine=True)))
        times["cancel"].append(seconds_of(victim, partial(daemon.client.act, job_id, "cancel", {})))
        times["job"].append(seconds_of(victim, partial(small_job, daemon, short)))
    return {name: statistics.median(each) for name, each in times.items()}


# --- what the attacker does


def leave_sparse_checkpoints(daemon: Service) -> str:
    """Start jobs of the attacker with checkpoints that claim terabytes; return one that goes on.

    The others end when the attack begins.
    """
    script = daemon.root / "sparse.sh"
    script.write_text(SPARSE)
    script.chmod(0o644)
    goes_on = program(
        daemon, "goes-on", ["/bin/sh", "-c", f". {script}; while [ -e {script} ]; do sleep 1; done"]
    )
    end = f". {script}; until [ -e {daemon.root}/go ]; do sleep 0.1; done"
    files = [program(daemon, f"sparse-{number}", ["/bin/sh", "-c", end]) for number in range(4)]
    ids = [submit_as(daemon, ATTACKER, file) for file in (goes_on, *files)]
    for job_id in ids:
        daemon.prints(job_id, "left")
    return ids[0]


def fill_queue(daemon: Service) -> None:
    """Give the attacker as many waiting jobs as the quota allows, as if submitted job by job."""
    file = program(daemon, "waits", ["/bin/true"], resources={"cpus": 64, "memory": "64MiB"})
    template_id = submit_as(daemon, ATTACKER, file)
    daemon.reaches(template_id, "queued")
    daemon.kill()
    # In another process: this one is measured by its forks, which are slower the more it holds.
    code, problem = with_uid(0, lambda: write_waiting(daemon.state / "store.db", template_id))
    assert code == 0, problem
    daemon.start()


def write_waiting(path: Path, template_id: str) -> None:
    """Write copies of a waiting job into a store."""
    store = SqliteStore(path)
    template, now = store.get(template_id), datetime.now(UTC)
    assert template is not None
    state, first = Queued(now, "none"), int(store.next_id())
    rows = [
        replace(template, job=Job(str(number), state), submitted_at=now)
        for number in range(first, first + WAITING)
    ]
    store.add_all(rows, [f"submitted by {template.owner.name}"] * WAITING)
    store.close()


def attacks(daemon: Service, running: str) -> list[tuple[int, Attack]]:
    """Return what the attacker does again and again, each with the number of connections for it."""
    changed = program(daemon, "goes-on", ["/bin/true"], resources={"cpus": 0.1, "memory": "65MiB"})
    bad = "".join(f"field_{number}: [{', '.join('x' * 20 for _ in range(40))}]\n" for number in range(900))
    slow = "name: slow\nworkload: {kind: program, command: [x]}\n"
    labels = ", ".join(f"l{number}: {'x' * 40}" for number in range(60))
    matrix = f"{slow}labels: {{{labels}}}\nmatrix: {{values: {{seed: {list(range(1000))}}}}}\nwrong: 1\n"
    cron = f"{slow}schedule: {{cron: '{'1,' * 400_000}1 * * * *'}}\n"

    def post(path: str, text: str, **fields: object) -> None:
        body = {"path": str(changed), "text_b64": base64.b64encode(text.encode()).decode(), **fields}
        daemon.client.post(path, body)

    return [
        (45, partial(post, "/v1/apply", changed.read_text(), job=running, dry_run=True)),
        (15, partial(post, "/v1/jobs", bad)),
        (15, partial(post, "/v1/jobs", matrix, dry_run=True)),
        (8, partial(post, "/v1/jobs", cron)),
        (8, daemon.client.jobs),
        (8, partial(daemon.client.get, "/v1/overview")),
    ]


@contextmanager
def attacked(daemon: Service, running: str) -> Iterator[None]:
    """Have the attacker do all of it at once, in a process of that uid."""
    planned = attacks(daemon, running)
    (daemon.root / "go").touch()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(ATTACKER, ATTACKER, ATTACKER)
            os.setresuid(ATTACKER, ATTACKER, ATTACKER)
            os.nice(19)  # what is measured is the daemon, not who gets the processors
            for connections, attack in planned:
                for _ in range(connections):
                    threading.Thread(target=repeat, args=(attack,), daemon=True).start()
            signal.pause()
        finally:
            os._exit(0)  # a second process must not go on with the tests
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, "the attack has ended by itself"


def repeat(attack: Attack) -> None:
    while True:
        with suppress(RunnerError, ErrorResponse, OSError):
            attack()


def test_another_user_lists_cancels_and_runs_a_small_job_under_all_attacks_at_once(
    daemon: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    quiet = measure(daemon, VICTIM)
    running = leave_sparse_checkpoints(daemon)
    fill_queue(daemon)
    with attacked(daemon, running):
        busy = measure(daemon, VICTIM + 1)
    told = [
        f"{name}: {busy[name] / each_s:.1f} times {each_s * 1000:.0f} ms\n" for name, each_s in quiet.items()
    ]
    with capsys.disabled():  # told, and nothing decided: other programs take the processors as well
        sys.stdout.write("\n" + "".join(told))
