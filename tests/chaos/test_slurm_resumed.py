"""A training on one node of Slurm is killed, loses its node, or its node freezes: the same bits."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fakes.daemon.service import Service, until
from tests.fakes.engine.slurm import Cluster, own_cluster
from tests.fakes.engine.slurm_training import training_site, weights

STEPS = 300


@dataclass(frozen=True)
class Place:
    """A cluster that nobody else uses, a daemon on it, and the weights of an undisturbed training."""

    cluster: Cluster
    daemon: Service
    undisturbed: str

    def begun(self, name: str) -> tuple[str, str]:
        """Submit a training, and return its id and its node once it has saved something."""
        job = self.daemon.submit(write(self.daemon, name))

        def step() -> int:
            return max(map(int, re.findall(r"step (\d+)/", self.daemon.log(job))), default=0)

        until(lambda: step() >= 30, f"job {job} is at step 30", more=self.daemon.log_tail)
        return job, str(self.daemon.job(job)["host"])


def write(daemon: Service, name: str) -> Path:
    return daemon.training(
        name,
        STEPS,
        workload={"batch_size": 8, "dropout": 0.2},
        resources={"cpus": 1, "memory": "3GiB"},
        parallel={"shards": 4},
        checkpoint={"every_steps": 10, "keep": 100},
    )


@pytest.fixture(scope="module")
def lonely(slurm_conf: str) -> Iterator[Place]:
    assert slurm_conf
    with own_cluster() as cluster, training_site(cluster) as daemon:
        yield Place(cluster, daemon, weights(daemon, daemon.submit(write(daemon, "undisturbed"))))


@pytest.fixture
def place(lonely: Place) -> Iterator[Place]:
    yield lonely
    lonely.cluster.mend()


def test_an_attempt_that_is_killed_through_slurm_goes_on_with_the_same_bits(place: Place) -> None:
    job, _ = place.begun("killed")
    (number,) = place.cluster.numbers(f"runner-{place.daemon.instance}-{job}-1")
    place.cluster.ask("scancel", "--batch", "--signal=KILL", number)
    assert weights(place.daemon, job) == place.undisturbed
    first, *rest = place.daemon.job(job)["attempts"]
    assert (first["exit_code"], first["cause"]) == (137, "killed")
    assert rest


def test_an_attempt_that_loses_its_node_goes_on_elsewhere_with_the_same_bits(place: Place) -> None:
    job, host = place.begun("lost")
    place.cluster.script("kill", host)
    assert weights(place.daemon, job) == place.undisturbed
    found = place.daemon.job(job)
    assert found["attempts"][0]["cause"] == "node_failed"
    assert found["host"] != host


def processes(host: str) -> set[int]:
    """Return the processes of the jobs of a node: all nodes are on this machine."""
    found = set()
    for place in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if (
                f"slurm_{host}/" in (place / "cgroup").read_text()
                or f"{host}_slurmstepd" in (place / "cgroup").read_text()
            ):
                found.add(int(place.name))
    return found


def published(daemon: Service, job: str) -> dict[str, bytes]:
    lineages = daemon.state / "jobs" / job / "lineages"
    return {str(path): path.read_bytes() for path in sorted(lineages.rglob("*.json"))}


def test_a_node_that_freezes_is_lost_and_what_thaws_on_it_publishes_nothing(place: Place) -> None:
    job, host = place.begun("frozen")
    frozen = {place.cluster.pid(host), *processes(host)}
    assert len(frozen) > 1
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        assert weights(place.daemon, job) == place.undisturbed
        found, before = place.daemon.job(job), published(place.daemon, job)
        assert found["attempts"][0]["cause"] == "node_failed"
        assert found["host"] != host
        assert before
    finally:
        for pid in frozen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    until(lambda: not processes(host) & frozen, "nothing of the frozen attempt is left")
    assert published(place.daemon, job) == before
