"""Train on a small Slurm cluster, lose the node, resume on another one, and compare with this machine.

One job file twice.  One runs on the cluster of ``scripts/slurm``; half-way its node is killed with everything
on it, Slurm says so after a while, and the runner resumes the job on another node.  The other one runs on
this machine without Slurm, undisturbed.  At the end the sha256 of both weights must be equal, bit for bit.
"""

import os
import pwd
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from scripts.demo_daemon import ROOT, Daemon, compare, place

JOB = "examples/demo.yaml"


def settings(executor: str) -> Mapping[str, Any]:
    """Return the settings of a daemon; root's jobs run as a user that the nodes know."""
    nobody = pwd.getpwnam("nobody")
    return {
        "executor": executor,
        "root_jobs_run_as": {"uid": nobody.pw_uid, "gid": nobody.pw_gid},
        "slurm": {
            "conf": os.environ["SLURM_CONF"],
            "poll_every_s": 1,
            "containers": "crun" if os.environ.get("DOCKER_HOST") else "none",
        },
    }


def lose(node: str) -> None:
    """Kill the node's daemon and every process of its jobs, as a power cut would."""
    print(f"$ scripts/slurm kill {node}        # slurmd, and every process of its jobs", flush=True)
    subprocess.run([str(ROOT / "scripts" / "slurm"), "kill", node], check=True)


@contextmanager
def daemon(name: str, executor: str) -> Iterator[Daemon]:
    """Configure a daemon, which its first command starts."""
    made = Daemon(place("demo-slurm") / name)
    made.configure(settings(executor))
    try:
        yield made
    finally:
        made.runner("stop", show=False, codes=(0, 4))  # 4: it did not start


def main() -> int:
    if not os.environ.get("SLURM_CONF"):
        sys.exit("demo: there is no Slurm; scripts/slurm, run by root, installs and starts one")
    began = time.monotonic()
    beside = os.environ.get("BESIDE") or "auto"
    with daemon("cluster", "slurm") as cluster, daemon("machine", beside) as machine:
        cluster.runner("submit", JOB, "--name", "lost")
        machine.runner("submit", JOB, "--name", "untouched", show=False)
        found = cluster.half_way("lost")
        lose(found["host"])
        cluster.ended("lost", tell=True)
        hashes = {"on Slurm, node lost": cluster.weights("lost")}
        subprocess.run([str(ROOT / "scripts" / "slurm"), "start", found["host"]], check=True)
        cluster.runner("events", "lost")
        beside = machine.about()["executor"]
        print(f"the same job file on this machine, undisturbed ({beside}):")
        machine.ended("untouched", tell=True)
        hashes[f"{beside}, untouched"] = machine.weights("untouched")
        attempts = cluster.job("lost")["attempt"]
    same = compare(hashes)
    print(f"the job on Slurm took {attempts} attempts; all in {time.monotonic() - began:.0f} s")
    return 0 if same and attempts > 1 else 1


if __name__ == "__main__":
    sys.exit(main())
