"""Five running jobs of each executor see a daemon of one version replaced by one of another; none restarts.

    python -m scripts.upgrade_check OLD NEW [docker process slurm]

OLD and NEW are directories with a ``runner`` each, such as the ``bin`` of two environments.  An executor that
this machine lacks is told and left out, unless it was named.
"""

import json
import os
import pwd
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

JOBS: Final = 5
PATIENCE_S: Final = 300.0
SLURM: Final = Path(os.environ.get("SLURM_CONF", "/run/runner-slurm/slurm.conf"))
BASE: Final = "runner-base:bookworm"
PROGRAM: Final = ["/bin/sh", "-c", "echo begun; while :; do sleep 1; done"]


@dataclass(frozen=True)
class Site:
    """A state directory, whichever version has the daemon of it."""

    state: Path

    def __call__(self, version: Path, *arguments: str) -> str:
        """Type a command of a version, and return what it prints."""
        known = {"RUNNER_STATE_DIR": str(self.state), "RUNNER_SETTINGS": str(self.state / "settings.yaml")}
        others = {name: value for name, value in os.environ.items() if not name.startswith("RUNNER_")}
        done = subprocess.run(
            [version / "runner", *arguments],
            cwd=self.state,
            env=others | known,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"runner {' '.join(arguments)}: {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def attempts(self, version: Path, job: str) -> list[Mapping[str, Any]]:
        """Return number and launch of each attempt of a job, with the state and the outcome of the job."""
        shown = json.loads(self(version, "show", job, "--json"))
        kept = ("number", "launched_at")
        whole = {each: shown[each] for each in ("state", "outcome")}
        return [whole | {each: attempt[each] for each in kept} for attempt in shown["attempts"]]


def settings(executor: str) -> Mapping[str, object]:
    """Return the settings of a daemon with an executor."""
    nobody = pwd.getpwnam("nobody")
    known: dict[str, object] = {"executor": executor, "cpus": 8, "memory_bytes": 2**31}
    if os.geteuid() == 0:
        known["root_jobs_run_as"] = {"uid": nobody.pw_uid, "gid": nobody.pw_gid}
    if executor == "docker":
        known["allowed_images"] = {"base": BASE}
    if executor == "slurm":
        known["slurm"] = {"conf": str(SLURM), "poll_every_s": 0.5}
    return known


def why_not(executor: str) -> str:
    """Return the reason why an executor cannot be checked here; empty if it can."""
    if executor == "slurm":
        return "" if SLURM.exists() else f"there is no {SLURM}"
    if executor == "docker":
        asked = subprocess.run(["docker", "image", "inspect", BASE], capture_output=True, check=False)
        return f"no engine answers that has {BASE}" if asked.returncode else ""
    return ""


def wait_for(look: Callable[[], bool], what: str) -> None:
    """Return once something is so.

    Raises:
        SystemExit: it does not become so in five minutes.
    """
    until = time.monotonic() + PATIENCE_S
    while not look():
        if time.monotonic() > until:
            raise SystemExit(f"not within {PATIENCE_S:.0f} s: {what}")
        time.sleep(0.2)


def check(executor: str, old: Path, new: Path) -> None:
    """Replace the daemon under five running jobs.

    Raises:
        SystemExit: a job is not as it was.
    """
    with tempfile.TemporaryDirectory() as folder:
        site = Site(Path(folder))
        site.state.chmod(0o755)
        (site.state / "settings.yaml").write_text(json.dumps(settings(executor)))
        job = {"workload": {"kind": "program", "command": PROGRAM}, "resources": {"memory": "64MiB"}}
        image = {"image": "base"} if executor == "docker" else {}
        jobs = []
        try:
            for number in range(JOBS):
                file = site.state / f"job{number}.yaml"
                file.write_text(json.dumps(job | image | {"name": f"job{number}"}))
                jobs.append(site(old, "submit", str(file)).split()[0])
            before = _all_running(site, old, jobs, executor)
            site(old, "stop")
            after = _all_running(site, new, jobs, executor)
            if before != after:
                raise SystemExit(f"{executor}: the jobs are not as they were:\n{before}\n{after}")
            for each in jobs:
                site(new, "cancel", each)
            wait_for(lambda: _ended(site, new, jobs), f"{executor}: all jobs are cancelled")
            logs = [site(new, "logs", each).split() for each in jobs]
            if logs != [["begun"]] * JOBS:
                raise SystemExit(f"{executor}: a program has begun twice: {logs}")
        finally:
            for each in jobs:
                site(new, "cancel", each)
            site(new, "stop")
    print(f"upgrade-check: {executor}: {JOBS} jobs have run through, none restarted")


def _all_running(site: Site, version: Path, jobs: list[str], executor: str) -> list[list[Mapping[str, Any]]]:
    def seen() -> list[list[Mapping[str, Any]]]:
        return [site.attempts(version, each) for each in jobs]

    def run() -> bool:
        return all(len(each) == 1 and each[0]["state"] == "running" for each in seen())

    wait_for(run, f"{executor}: all jobs run")
    return seen()


def _ended(site: Site, version: Path, jobs: list[str]) -> bool:
    return all(each[-1]["outcome"] == "cancelled" for each in (site.attempts(version, job) for job in jobs))


def main(arguments: list[str]) -> None:
    """Check the named executors, or all that this machine has."""
    old, new, *named = arguments
    for executor in named or ("process", "docker", "slurm"):
        if reason := why_not(executor):
            if named:
                raise SystemExit(f"{executor}: {reason}")
            print(f"upgrade-check: {executor}: left out, {reason}")
        else:
            check(executor, Path(old).absolute(), Path(new).absolute())


if __name__ == "__main__":
    main(sys.argv[1:])
