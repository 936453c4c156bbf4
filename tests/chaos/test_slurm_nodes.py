"""Trainings of several nodes lose processes and nodes, and end with the bits of an undisturbed one."""

import signal
from collections.abc import Iterator

import pytest

from tests.chaos.slurm_campaign import run_kills
from tests.fakes.engine.slurm import Cluster, own_cluster
from tests.fakes.engine.slurm_training import (
    kill_rank,
    node_names,
    reaches_step,
    training_site,
    weights,
    write_training,
)


@pytest.fixture
def broken(slurm_conf: str) -> Iterator[Cluster]:
    """A cluster that nobody else uses."""
    assert slurm_conf
    with own_cluster() as cluster:
        yield cluster


def test_two_nodes_lose_a_process_and_a_node_and_one_node_ends_with_equal_bits(broken: Cluster) -> None:
    with training_site(broken) as daemon:
        alone = daemon.submit(write_training(daemon, "alone", 1, 1))
        undisturbed = weights(daemon, alone)
        job = daemon.submit(write_training(daemon, "disturbed", 2, 2))
        reaches_step(daemon, job, 1, 10)
        kill_rank(daemon, job, 3)
        reaches_step(daemon, job, 2, 20)
        assert daemon.job(job)["attempts"][0]["exit_code"] == 137
        hosts = node_names(daemon.job(job)["host"])
        assert len(hosts) == 2
        kill_rank(daemon, job, 3, signal.SIGSTOP)  # the training does not end before its node
        broken.script("kill", hosts[1])
        reaches_step(daemon, job, 3, 30)
        [host] = node_names(daemon.job(job)["host"])
        assert host != hosts[1]
        assert weights(daemon, job) == undisturbed
        told = daemon.told(job)
        assert "nodes 2 → 1" in told
        assert daemon.job(job)["attempts"][1]["cause"] in {"node_failed", "rank_lost"}


@pytest.mark.slow
def test_daemon_and_controller_are_killed_and_no_attempt_is_lost_or_runs_twice(broken: Cluster) -> None:
    assert list(run_kills(broken, 3, seed=1)) == []
