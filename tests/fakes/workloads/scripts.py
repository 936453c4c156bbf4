"""The scripts of ``examples/scripts`` as jobs: untouched, and killed and held on their way."""

import re
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from tests.fakes.daemon.service import Service, until

SCRIPTS: Final = Path(__file__).parents[3] / "examples" / "scripts"

LONGEST_S: Final = 300.0
"""For packages, an image and a training, on a machine with much else to do; usually it takes seconds."""


@dataclass(frozen=True, slots=True)
class Script:
    """A script, and when to disturb it."""

    name: str
    kill_at: str
    """What it has printed when it is killed; by then it has a checkpoint if it saves any."""
    hold_at: str | None
    """What its next attempt has printed when it is held; None: it is not held."""
    final: str = "out/final.pt"
    """Its weights, below the directory that it runs in."""
    progress: str | None = None
    """A file below that directory, for a script that prints nothing."""


def submit(daemon: Service, script: Script, name: str) -> str:
    """Submit the job file of a script as it stands there."""
    path = made(daemon, script) / "job.yaml"
    answer = daemon.client.submit(str(path), path.read_bytes(), name)
    return str(answer["job"]["id"])


def made(daemon: Service, script: Script) -> Path:
    """Return a copy of the directory of a script; one in C is compiled there."""
    copy = daemon.root / script.name
    if not (copy / "job.yaml").exists():
        shutil.copytree(SCRIPTS / script.name, copy, dirs_exist_ok=True)
        if (copy / "Makefile").exists():
            subprocess.run(["make", "--silent", "LDFLAGS=-static"], cwd=copy, check=True)
    return copy


def place(daemon: Service, job_id: str) -> Path:
    """Return the directory that a script has run in."""
    return daemon.state / "jobs" / job_id / "work" / "1"


def run_whole(daemon: Service, script: Script) -> str:
    """Run a script untouched and return its id."""
    job = submit(daemon, script, f"{script.name}-whole")
    ended = daemon.ends(job, LONGEST_S)
    assert ended["outcome"] == "succeeded", daemon.log(job)[-2000:]
    assert len(ended["attempts"]) == 1, daemon.told(job)
    return job


def run_disturbed(daemon: Service, script: Script) -> str:
    """Kill a script in the middle, hold it further on, release it, and return its id."""
    job = submit(daemon, script, f"{script.name}-disturbed")
    wait_for(daemon, script, job, 1, script.kill_at)
    daemon.signal_container(job, signal.SIGKILL)
    if script.hold_at is not None:
        wait_for(daemon, script, job, 2, script.hold_at)
        daemon.runner("hold", job)
        daemon.reaches(job, "held", LONGEST_S)
        daemon.runner("release", job)
    ended, attempts = daemon.ends(job, LONGEST_S), 2 if script.hold_at is None else 3
    assert ended["outcome"] == "succeeded", (daemon.told(job), daemon.log(job, attempts)[-2000:])
    assert len(ended["attempts"]) == attempts, daemon.told(job)
    return job


def wait_for(daemon: Service, script: Script, job: str, attempt: int, pattern: str) -> None:
    """Wait until an attempt has said the line of its middle."""
    wanted = re.compile(pattern, re.MULTILINE)

    def look() -> Any:
        assert daemon.state_of(job) != "finished", (daemon.told(job), daemon.log(job, attempt)[-2000:])
        if script.progress is None:
            return wanted.search(daemon.log(job, attempt))
        path = place(daemon, job) / script.progress
        running = len(daemon.job(job)["attempts"]) == attempt
        return running and path.exists() and wanted.search(path.read_text())

    until(look, f"attempt {attempt} is in the middle", LONGEST_S, more=daemon.log_tail)


def assert_equal_weights(daemon: Service, script: Script, *jobs: str) -> None:
    """Compare what two jobs of a script have trained."""
    whole, disturbed = (place(daemon, job_id) / script.final for job_id in jobs)
    if not script.final.endswith(".pt"):
        assert whole.read_bytes() == disturbed.read_bytes()
        return
    there, here = torch.load(whole), torch.load(disturbed)
    assert there.keys() == here.keys()
    assert all(torch.equal(there[name], here[name]) for name in there)
