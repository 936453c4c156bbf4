"""A training on several nodes of the small Slurm, disturbed and not, through a daemon of its own."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fakes.daemon.service import Service, service, until
from tests.fakes.engine.slurm import Cluster
from tests.fakes.engine.slurm_site import NOBODY

STEPS = 40
CONTAINERS = {"containers": "crun", "nodes_network": "host"}  # which have a torch for every user

FEWER = """\
policy: 1
name: fewer
extends: default
on_exit:
  - name: lost-a-node
    when: {any: [{engine.ended: node_failed}, {cause: rank_lost}]}
    do: resume
    with: {nodes: fewer}
    charge: false
    spent: next
"""


SMALLER = FEWER.replace("{cause: rank_lost}", "{cause: {in: [rank_lost, killed]}}").replace(
    "fewer\n", "smaller\n", 1
)


@contextmanager
def training_site(cluster: Cluster, **slurm: object) -> Iterator[Service]:
    """Yield a running daemon whose jobs run on the cluster."""
    settings = {
        "executor": "slurm",
        "root_jobs_run_as": {"uid": NOBODY.uid, "gid": NOBODY.gid},
        "slurm": {**CONTAINERS, "conf": str(cluster.conf), "poll_every_s": 0.5, **slurm},
    }
    with service(**settings) as daemon:
        (daemon.root / "fewer.yaml").write_text(FEWER)
        (daemon.root / "smaller.yaml").write_text(SMALLER)
        daemon.start()
        try:
            yield daemon
        finally:
            cluster.mend()
            _end_jobs(cluster, f"runner-{daemon.instance}-")


def _end_jobs(cluster: Cluster, prefix: str) -> None:
    """End what a test that failed has left: it writes where the test removes."""
    cluster.ask("sh", "-c", f"squeue -h -o '%i %j' | awk '$2 ~ /^{prefix}/ {{print $1}}' | xargs -r scancel")
    until(
        lambda: prefix not in cluster.ask("squeue", "--noheader", "--states=PD,R,CG", "--format=%j"),
        "no job of the daemon is in Slurm",
    )


def write_training(daemon: Service, name: str, nodes: int, processes: int, policy: str = "fewer") -> Path:
    """Write a job file of a training in four shards."""
    return daemon.training(
        name,
        STEPS,
        workload={"batch_size": 8, "dropout": 0.2},
        resources={"cpus": 1, "memory": "3GiB", "nodes": nodes},
        parallel={"processes": processes, "shards": 4},
        policy=str(daemon.root / f"{policy}.yaml"),
        checkpoint={"every_steps": 5, "keep": 100},
    )


def reaches_step(daemon: Service, job_id: str, attempt: int, step: int) -> None:
    """Wait until an attempt has reported a step."""
    lines = [f"step {at}/" for at in range(step, STEPS + 1)]
    until(
        lambda: any(line in daemon.log(job_id, attempt) for line in lines),
        f"attempt {attempt} of job {job_id} is at step {step}",
        more=lambda: daemon.log(job_id, attempt)[-2000:] + daemon.told(job_id) + daemon.log_tail(),
    )


def kill_rank(daemon: Service, job_id: str, rank: int, number: int = signal.SIGKILL) -> None:
    """Kill or stop one process of a training in Slurm, as the kernel would: all nodes are on this machine."""
    run_directory = (daemon.state / "jobs" / job_id).stat()
    for place in Path("/proc").iterdir():
        try:
            variables = (place / "environ").read_bytes().split(b"\0")
            words = (place / "cmdline").read_bytes().split(b"\0")
            is_its = os.path.samestat((place / "root" / "job").stat(), run_directory)
        except OSError:
            continue
        if is_its and f"RANK={rank}".encode() in variables and b"jobs" in words:
            os.kill(int(place.name), number)
            return
    raise AssertionError(f"job {job_id} has no rank {rank}")


def weights(daemon: Service, job_id: str) -> str:
    """Return the sha256 of the weights of a job that has succeeded."""
    found = daemon.ends(job_id, 240)
    assert found["outcome"] == "succeeded", daemon.told(job_id) + daemon.log_tail()
    return str(found["result"]["weights_sha256"])


def node_names(host: str) -> list[str]:
    """Return the nodes of an attempt: ``node[1-2]``, ``node[1,3]`` or ``node1``."""
    [(name, numbers)] = re.findall(r"(.*?)\[?([\d,-]+)\]?$", host)
    names = []
    for part in numbers.split(","):
        first, _, last = part.partition("-")
        names += [f"{name}{number}" for number in range(int(first), int(last or first) + 1)]
    return names
