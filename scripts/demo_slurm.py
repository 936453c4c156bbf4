"""Train on a small Slurm cluster, lose the node, resume on another one, and compare with this machine.

One job file twice.  One runs on the cluster of ``scripts/slurm``; half-way its node is killed with everything
on it, Slurm says so after a while, and the runner resumes the job on another node.  The other one runs on
this machine without Slurm, undisturbed.  At the end the sha256 of both weights must be equal, bit for bit.
"""

import json
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
JOB = "examples/demo.yaml"
RUNNER = str(Path(sys.executable).with_name("runner"))
PLACE = Path(os.environ.get("RUNNER_STATE_DIR") or ROOT / ".make" / "demo-slurm")
PATIENCE_S = 1200


@dataclass(frozen=True)
class Daemon:
    """A daemon of its own, with its state directory and settings."""

    name: str
    executor: str

    @property
    def environment(self) -> dict[str, str]:
        place = PLACE / self.name
        return {
            **os.environ,
            "RUNNER_STATE_DIR": str(place / "state"),
            "RUNNER_SETTINGS": str(place / "settings.yaml"),
        }

    def configure(self) -> None:
        """Write the settings; root's jobs run as a user that the nodes know."""
        (PLACE / self.name).mkdir(parents=True, exist_ok=True)
        nobody = pwd.getpwnam("nobody")
        settings = {
            "executor": self.executor,
            "root_jobs_run_as": {"uid": nobody.pw_uid, "gid": nobody.pw_gid},
            "slurm": {
                "conf": os.environ["SLURM_CONF"],
                "poll_every_s": 1,
                "containers": "crun" if os.environ.get("DOCKER_HOST") else "none",
            },
        }
        (PLACE / self.name / "settings.yaml").write_text(json.dumps(settings))

    def runner(self, *arguments: str, show: bool = True) -> str:
        """Run a command as a user would, and return its output."""
        if show:
            print(f"$ runner {' '.join(arguments)}", flush=True)
        done = subprocess.run(
            [RUNNER, *arguments],
            check=False,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=self.environment,
        )
        if show and done.stdout:
            print(done.stdout, end="", flush=True)
        if done.returncode:
            sys.exit(f"demo: runner {' '.join(arguments)} ended with exit code {done.returncode}")
        return done.stdout

    def job(self, reference: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.runner("show", reference, "--json", show=False))
        return found


def looks(daemon: Daemon, reference: str) -> Iterator[dict[str, Any]]:
    """Yield the job again and again, and print what has changed."""
    deadline, told = time.monotonic() + PATIENCE_S, ""
    while time.monotonic() < deadline:
        found = daemon.job(reference)
        line = _line(found)
        if line != told:
            print(f"  {line}", flush=True)
            told = line
        yield found
        time.sleep(0.5)
    sys.exit(f"demo: no progress of job {reference} in {PATIENCE_S} s")


def _line(found: dict[str, Any]) -> str:
    progress = found.get("progress") or {}
    if found["state"] != "running" or not progress.get("total_steps"):
        return f"{found['state']}: {found['why']}"
    step, where = progress["step"] - progress["step"] % 50, found["host"] or "this machine"
    return f"attempt {found['attempt']} on {where}: step {step} of {progress['total_steps']}"


def half_way(found: dict[str, Any]) -> bool:
    """Return True if a job has a checkpoint and has done half of its steps."""
    if found["state"] in {"finished", "held"}:
        sys.exit(f"demo: the job ended before its node could be lost: {found['why']}")
    progress = found.get("progress") or {}
    return bool(progress.get("checkpoint_step")) and progress["step"] * 2 >= progress["total_steps"]


def weights(daemon: Daemon, reference: str) -> str:
    """Wait for the end of a job, and return the sha256 of its weights."""
    found = next(found for found in looks(daemon, reference) if found["state"] in {"finished", "held"})
    if found["outcome"] != "succeeded":
        sys.exit(f"demo: job {reference} ended as {found['state']}: {found['why']}")
    return str(found["result"]["weights_sha256"])


def lose(node: str) -> None:
    """Kill the node's daemon and every process of its jobs, as a power cut would."""
    print(f"$ scripts/slurm kill {node}        # slurmd, and every process of its jobs", flush=True)
    subprocess.run([str(ROOT / "scripts" / "slurm"), "kill", node], check=True)


@contextmanager
def daemons(*each: Daemon) -> Iterator[None]:
    """Configure daemons; their first commands start them."""
    for daemon in each:
        daemon.configure()
    try:
        yield
    finally:
        for daemon in each:
            subprocess.run([RUNNER, "stop"], check=False, env=daemon.environment, stdout=subprocess.DEVNULL)


def main() -> int:
    if not os.environ.get("SLURM_CONF"):
        sys.exit("demo: there is no Slurm; scripts/slurm, run by root, installs and starts one")
    began = time.monotonic()
    cluster, machine = Daemon("cluster", "slurm"), Daemon("machine", os.environ.get("BESIDE") or "auto")
    with daemons(cluster, machine):
        cluster.runner("submit", JOB, "--name", "lost")
        machine.runner("submit", JOB, "--name", "untouched", show=False)
        found = next(found for found in looks(cluster, "lost") if half_way(found))
        lose(found["host"])
        hashes = {"on Slurm, node lost": weights(cluster, "lost")}
        subprocess.run([str(ROOT / "scripts" / "slurm"), "start", found["host"]], check=True)
        cluster.runner("events", "lost")
        beside = json.loads(machine.runner("version", "--json", show=False))["daemon"]["executor"]
        print(f"the same job file on this machine, undisturbed ({beside}):")
        hashes[f"{beside}, untouched"] = weights(machine, "untouched")
        attempts = cluster.job("lost")["attempt"]
    for name, value in hashes.items():
        print(f"{name:>20}: {value}")
    same = len(set(hashes.values())) == 1
    verdict = "equal, bit for bit" if same else "DIFFERENT: this is a bug, please report it"
    print(f"{verdict}; the job on Slurm took {attempts} attempts; all in {time.monotonic() - began:.0f} s")
    return 0 if same and attempts > 1 else 1


if __name__ == "__main__":
    sys.exit(main())
