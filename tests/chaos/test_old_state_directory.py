"""A daemon opens a state directory that an earlier commit wrote, with a job that still runs.

``tests/fixtures/state_directory`` says what it contains and how it was made.
"""

import json
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from runner.adapters.host.clock import boot_id
from tests.fakes.daemon.service import Json, Service, service, until
from tests.fakes.patience import patience

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(os.geteuid() != 0, reason="the daemon that wrote the state directory was root"),
]

KEPT: Final = Path(__file__).parents[1] / "fixtures" / "state_directory"
"""The directory that is restored."""

FINISHED: Final = ("1", "2", "3", "4")
UID: Final = 65532
"""Whom the jobs of root run as."""

ENTRY: Final = 'umask 077; exec >>"$2" 2>&1; cd "$1" || exit 126; shift 2; exec "$@"'
"""What the commit gave to the shell before the program."""

VARIABLES: Final = 'variables=$(cat <&4) || exit 125; eval "$variables"; exec 4<&-; exec "$@"'
"""What the commit gave to a shell before that, which reads the variables from a file."""


@pytest.fixture(scope="module")
def daemon() -> Iterator[Service]:
    """A daemon on the restored directory, while the program of job 6 waits for a word of the test."""
    with service(executor="process", cpus=2, memory_bytes=4 * 1024**3) as made:
        restore(made)
        with subprocess.Popen(shim(made), close_fds=True, start_new_session=True) as running:
            try:
                until(lambda: made.log("6").endswith("begin wait\n"), "the program of job 6 runs")
                yield made.start()
            finally:
                let_go(made, "6")
                running.wait(timeout=patience())


def restore(made: Service) -> None:
    shutil.copytree(KEPT / "files", made.root, dirs_exist_ok=True)
    for path in [*made.root.rglob("*.json"), *made.root.rglob("*.sh")]:
        path.write_text(in_place(path.read_text(), made))
    with closing(sqlite3.connect(made.state / "store.db")) as store:
        store.executescript(in_place((KEPT / "store.sql").read_text(), made))
    (made.root / "code").chmod(0o755)
    (made.root / "code" / "main.sh").chmod(0o644)
    (made.state / "processes").chmod(0o700)
    record = next((made.state / "processes").iterdir())
    (record / "environment").write_text(in_place((record / "environment").read_text(), made))
    for number in range(1, 11):
        job = made.state / "jobs" / str(number)
        started = (job / "attempts" / "1").exists()
        home = job / "home"
        if (job / "homes").exists():
            home.symlink_to("homes/1")
            home = job / "homes" / "1"
        leaves = [home, *([job / "attempts" / "1", job / "lineages" / "1"] if started else [])]
        for folder in (job / "attempts", job / "lineages", *leaves):
            folder.mkdir(parents=True, exist_ok=True)
        for leaf in leaves:
            give(leaf)
        if (job / "work" / "1").exists():
            give(job / "work" / "1")


def give(leaf: Path) -> None:
    """Give a directory, and what is in it, to whom the job runs as."""
    for path in (leaf, *leaf.iterdir()):
        os.chown(path, UID, UID)
        path.chmod(0o700 if path == leaf else 0o600)


def in_place(text: str, made: Service) -> str:
    return text.replace("@ROOT@", str(made.root)).replace("@BOOT@", boot_id())


def shim(made: Service) -> list[str]:
    """Return the command by which the commit started job 6: the shim, then the program as its owner."""
    paths = made.paths("6")
    record = next((made.state / "processes").iterdir())
    as_owner = (
        *("/bin/sh", str(KEPT / "shim.sh"), str(record)),
        *("setpriv", "--no-new-privs", "--reuid", str(UID), "--regid", str(UID), "--clear-groups", "--"),
        *("env", "--ignore-environment", "--default-signal=INT,QUIT", f"PATH={os.environ['PATH']}"),
    )
    program = (str(paths.log), "/bin/sh", "main.sh", "wait")
    work = made.state / "jobs" / "6" / "work" / "1"
    return [
        *("/bin/sh", "-c", 'exec 4<"$0"; exec "$@"', str(record / "environment"), *as_owner),
        *("/bin/sh", "-c", VARIABLES, "runner", "/bin/sh", "-c", ENTRY, "runner", str(work), *program),
    ]


CHANGED = "a key is missing or has another value; new keys are allowed"


def known(now: Any, before: Any) -> Any:
    """Return an answer without the keys that were not there before, at any depth."""
    if isinstance(now, dict) and isinstance(before, dict):
        return {name: known(now[name], each) for name, each in before.items() if name in now}
    if isinstance(now, list) and isinstance(before, list) and len(now) == len(before):
        return [known(*pair) for pair in zip(now, before, strict=True)]
    return now


def let_go(made: Service, job_id: str) -> None:
    """Tell the program of a job to end."""
    (made.paths(job_id).home / "go").touch()


def kept(name: str, made: Service) -> list[Json]:
    """Return the JSON that a command of the commit printed."""
    return [json.loads(line) for line in in_place((KEPT / "expected" / name).read_text(), made).splitlines()]


def printed(made: Service, *arguments: str) -> list[Json]:
    """Return the JSON that the same command prints today."""
    return [json.loads(line) for line in made.runner(*arguments, "--json").splitlines()]


@pytest.mark.parametrize("job_id", FINISHED)
def test_a_finished_job_is_shown_as_before(daemon: Service, job_id: str) -> None:
    [before] = [job for job in kept("show.jsonl", daemon) if job["id"] == job_id]
    [now] = printed(daemon, "show", job_id)
    assert known(now, before) == before, CHANGED


def test_finished_jobs_are_listed_as_before(daemon: Service) -> None:
    listed = {job["id"]: job for job in printed(daemon, "list", "--all")}
    before = {job["id"]: job for job in kept("list.jsonl", daemon)}
    assert listed.keys() == before.keys()
    for job_id in FINISHED:
        assert known(listed[job_id], before[job_id]) == before[job_id], CHANGED


def test_why_answers_as_before_for_jobs_that_do_not_wait_in_the_queue(daemon: Service) -> None:
    before = [answer for answer in kept("why.jsonl", daemon) if answer["job"] in {*FINISHED, "9"}]
    for answer in before:
        [now] = printed(daemon, "why", answer["job"])
        assert known(now, answer) == answer, CHANGED


def test_events_decisions_and_revisions_are_printed_as_before(daemon: Service) -> None:
    before = kept("events.jsonl", daemon)
    assert printed(daemon, "events")[: len(before)] == before
    journal = [
        json.loads(line) for n in ("2", "5") for line in daemon.runner("policy", "journal", n).splitlines()
    ]
    assert journal[:3] == kept("journal.jsonl", daemon)
    assert printed(daemon, "revisions", "9") == kept("revisions.jsonl", daemon)


def test_the_usage_of_ended_attempts_is_reported_as_before(daemon: Service) -> None:
    def used(answer: Json) -> dict[str, tuple[int, float, float]]:
        """Return attempts, CPU seconds and efficiency by job, without those of which more becomes known."""
        return {
            use["who"]: (use["attempts"], use["cpu_s"], use["efficiency"])
            for use in answer["uses"]
            if use["who"].split()[0] in FINISHED
        }

    [now] = printed(daemon, "usage", "--by", "job", "--since", "3650d")
    [before] = kept("usage.json", daemon)
    assert used(now) == used(before)


def test_schedules_are_listed_as_before(daemon: Service) -> None:
    def terms(schedules: list[Json]) -> list[Json]:
        """Return schedules without their next times, which depend on today."""
        return [{**each, "next": None, "last": None} for each in schedules]

    assert terms(printed(daemon, "schedule", "list")) == terms(kept("schedules.jsonl", daemon))


def test_the_running_attempt_is_adopted_and_the_queue_goes_on(daemon: Service) -> None:
    assert (daemon.job("6")["state"], daemon.job("6")["attempt"]) == ("running", 1)
    assert [daemon.state_of(job_id) for job_id in ("5", "7", "8", "10")] == ["held", *["queued"] * 3]
    assert "job 6" in printed(daemon, "why", "8")[0]["why"]
    let_go(daemon, "5")
    daemon.runner("release", "5")
    let_go(daemon, "6")
    for job_id, attempt in {"5": 2, "6": 1, "7": 1, "8": 1, "10": 1}.items():
        ended = daemon.ends(job_id)
        assert (ended["outcome"], ended["attempt"]) == ("succeeded", attempt), daemon.told(job_id)
    assert (daemon.paths("6").home / "starts").read_text().split() == ["1"]
    assert daemon.log("6").splitlines() == ["begin wait", "end wait"]
    assert daemon.state_of("9") == "queued"
    until(lambda: not list((daemon.state / "processes").iterdir()), "no process record is left")
