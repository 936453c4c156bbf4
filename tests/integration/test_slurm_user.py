"""A daemon of an ordinary user on a login node: Slurm needs no privilege of it."""

import json
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.daemon.service import RUNNER, until
from tests.fakes.engine.slurm import Cluster
from tests.fakes.patience import patience

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
USER = pwd.getpwnam("games")
READS = "+dac_read_search"  # the files of this Python may be out of other people's reach; nothing else


@dataclass(frozen=True)
class Person:
    """A user who is not root, with a state directory of his own."""

    root: Path
    cluster: Cluster

    def file(self, name: str, *command: str) -> str:
        workload = {"kind": "program", "command": command}
        content = {"name": name, "workload": workload, "resources": {"memory": "128MiB"}}
        (self.root / f"{name}.yaml").write_text(json.dumps(content))
        return str(self.root / f"{name}.yaml")

    def runner(self, *arguments: str) -> str:
        """Type a command as the user; the first one starts the daemon."""
        place = {"HOME": self.root, "RUNNER_STATE_DIR": self.root / "state"}
        settings = {"RUNNER_SETTINGS": self.root / "settings.yaml", "SLURM_CONF": self.cluster.conf}
        known = {name: str(path) for name, path in {**place, **settings}.items()}
        who = (f"--reuid={USER.pw_uid}", f"--regid={USER.pw_gid}", "--clear-groups")
        done = subprocess.run(
            ["setpriv", *who, f"--inh-caps={READS}", f"--ambient-caps={READS}", *RUNNER, *arguments],
            cwd=self.root,
            env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **known},
            capture_output=True,
            text=True,
            check=False,
            timeout=patience(),
        )
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    def submit(self, file: str) -> str:
        return str(json.loads(self.runner("submit", file, "--json"))["job"]["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        return dict(json.loads(self.runner("show", job_id, "--json")))

    def reaches(self, job_id: str, state: str) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            found = self.job(job_id)
            return found if found["state"] == state else None

        return until(look, f"job {job_id} is {state}", more=lambda: str(self.job(job_id)))


@pytest.fixture
def person(slurm_conf: str) -> Iterator[Person]:
    root = Path(tempfile.mkdtemp(prefix="runner-"))
    root.chmod(0o755)
    settings = {"executor": "slurm", "observe_every_s": 0.5, "slurm": {"poll_every_s": 0.5}}
    (root / "settings.yaml").write_text(json.dumps(settings))
    os.chown(root / "settings.yaml", USER.pw_uid, USER.pw_gid)
    os.chown(root, USER.pw_uid, USER.pw_gid)
    made = Person(root, Cluster(Path(slurm_conf)))
    try:
        yield made
    finally:
        made.runner("stop")
        shutil.rmtree(root)


def test_a_daemon_of_an_ordinary_user_runs_his_jobs_in_slurm(person: Person) -> None:
    ended = person.submit(person.file("short", "sh", "-c", 'id -u; test -n "$SLURM_JOB_ID"'))
    assert person.reaches(ended, "finished")["outcome"] == "succeeded"
    assert str(USER.pw_uid) in person.runner("logs", ended).split()
    assert (person.root / "state").stat().st_uid == USER.pw_uid
    long = person.submit(person.file("long", "sleep", "1000"))
    assert str(person.reaches(long, "running")["host"]).startswith("node")
    mine = person.cluster.ask("squeue", "--noheader", "--format=%u %j", f"--user={USER.pw_uid}")
    assert any(line.endswith(f"-{long}-1") for line in mine.splitlines())
    person.runner("stop")
    assert person.job(long)["attempt"] == 1  # the next daemon has found it
    person.runner("cancel", long)
    assert person.reaches(long, "finished")["outcome"] == "cancelled"
