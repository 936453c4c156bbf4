"""Decisions of the default policy: changes of a running job against brute force, and attempts at failures.

A hundred situations, half of them held out, are decided by the code of the daemon, from steps with noise and
a canary, and then each admissible alternative is played out to the end of the job.  Fourteen programs that
fail as trainings do are started by a daemon, until the default policy ends them; how many attempts that takes
is counted, and whether the last one names the cause.
"""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final

from bench.support.changes import SITUATIONS, Offer, Played, play_all, table
from bench.support.daemon import BenchDaemon, running_daemon
from bench.support.failures import FAILURES
from bench.support.held_out import HELD_OUT
from bench.support.result import Aim, CannotMeasure, Line, Result, Series, Unit
from bench.support.scratch import Scratch
from runner.client.types import JobDetail
from runner.files.policy.load import load_named_policy

BENCH: Final = "decisions"
AIM_FASTEST: Final = 95.0
AIM_REGRET: Final = 5.0
AIM_ATTEMPTS: Final = 20
LIMIT_S: Final = 300.0
POLL_S: Final = 0.2

FIND_PYTHON: Final = (
    'for at in python3 /usr/bin/python3; do $at -c "" 2>/dev/null && exec $at -c "$1"; done; exit 69'
)
"""The first interpreter that the account of the jobs may execute."""


def measure(scratch: Scratch) -> Iterator[Line]:
    """Yield how often the fastest alternative is chosen, the regret, and the attempts at each failure."""
    played = play((*SITUATIONS, *HELD_OUT))
    print(table(played), file=sys.stderr)
    fastest = 100.0 * sum(each.is_fastest for each in played) / len(played)
    note = f"{len(played)} situations, each admissible alternative played out"
    yield _counted(
        "the fastest admissible alternative is chosen",
        "%",
        fastest,
        Aim(AIM_FASTEST, "p50", at_least=True),
        note,
    )
    regret = 100.0 * sum(each.regret for each in played) / len(played)
    yield _counted("longer than the fastest, mean", "%", regret, Aim(AIM_REGRET, "p50"))
    worse = float(sum(each.is_worse_than_nothing for each in played))
    yield _counted("situations in which doing nothing ends sooner", "jobs", worse, Aim(0.0, "p50"))
    with running_daemon(scratch.directory("daemon"), executor="process") as daemon:
        ends = {name: fail(daemon, name, text) for name, (text, _) in FAILURES.items()}
    attempts = {name: job["attempt"] for name, job in ends.items()}
    note = ", ".join(f"{name} {count}" for name, count in attempts.items())
    yield _counted(
        "attempts at 14 failures", "jobs", float(sum(attempts.values())), Aim(AIM_ATTEMPTS, "p50"), note
    )
    unnamed = [name for name, job in ends.items() if FAILURES[name][1] not in told(job)]
    yield _counted(
        "failures whose cause is not named", "jobs", float(len(unnamed)), Aim(0.0, "p50"), ", ".join(unnamed)
    )


def play(situations: Sequence[Offer] = SITUATIONS) -> list[Played]:
    """Return situations with what the default policy decides."""
    policy = load_named_policy("default")
    return [play_all(offer, policy) for offer in situations]


def fail(daemon: BenchDaemon, name: str, text: str) -> JobDetail:
    """Run a program that fails until the policy ends it, and return its job."""
    job = {
        "name": name,
        "workload": {"kind": "program", "command": ["sh", "-c", FIND_PYTHON, "sh", text]},
        "resources": {"cpus": 1, "memory": "256MiB"},
        "retry": {"backoff": "0s"},
    }
    job_id = daemon.submit(daemon.write(json.dumps(job), f"{name}.yaml"))  # JSON is YAML
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        found = daemon.client.job(job_id)
        if found["state"] in {"finished", "held"}:
            return found
        time.sleep(POLL_S)
    raise CannotMeasure(f"{name}: has not ended after {LIMIT_S:.0f} s")


def told(job: JobDetail) -> str:
    """Return the end of a job as a person sees it."""
    last = job["attempts"][-1]
    return f"{job['why']} {last['cause']} {last['message']}"


def _counted(label: str, unit: Unit, value: float, aim: Aim, note: str = "") -> Result:
    return Result(BENCH, Series(label, unit, (value,)), None, aim, note)
