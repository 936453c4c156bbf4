"""Messages to users while slurmctld is dead, and terminals and ports of attempts on nodes."""

from collections.abc import Iterator

import pytest

from tests.fakes.daemon.service import Service, until
from tests.fakes.engine.slurm import Cluster, own_cluster
from tests.fakes.engine.slurm_training import training_site

SILENT = "slurmctld has not answered since "


@pytest.fixture
def cluster(slurm_conf: str) -> Iterator[Cluster]:
    """A cluster that nobody else uses."""
    assert slurm_conf
    with own_cluster() as cluster:
        yield cluster


@pytest.fixture
def daemon(cluster: Cluster) -> Iterator[Service]:
    with training_site(cluster, containers="none") as daemon:
        yield daemon


def submit_sleeper(daemon: Service) -> str:
    program = {"kind": "program", "command": ["sleep", "1000"]}
    job = daemon.submit(daemon.file("long", workload=program, resources={"memory": "128MiB"}), end="any")
    daemon.reaches(job, "running")
    return job


def test_why_and_list_say_that_slurmctld_is_dead_and_nothing_has_ended(
    daemon: Service, cluster: Cluster
) -> None:
    job = submit_sleeper(daemon)
    (number,) = cluster.numbers(f"runner-{daemon.instance}-{job}-1")
    until(cluster.write_down(number), "slurmctld has written down the job")
    cluster.script("kill", "slurmctld")
    until(lambda: SILENT in daemon.runner("why", job), "why says it")
    assert "is taken to run there" in daemon.runner("why", job)
    until(lambda: SILENT in daemon.runner("list", "--json"), "the list says it")
    assert daemon.state_of(job) == "running"
    cluster.mend()
    until(lambda: SILENT not in daemon.runner("why", job), "why does not say it any more")
    assert daemon.job(job)["attempt"] == 1
    daemon.runner("cancel", job)
    assert daemon.ends(job)["outcome"] == "cancelled"


def test_a_terminal_and_a_port_of_an_attempt_on_a_node_are_refused_in_one_line(
    daemon: Service, cluster: Cluster
) -> None:
    shell = {"kind": "program", "command": ["bash"], "terminal": True}
    said = daemon.runner("submit", str(daemon.file("shell", workload=shell)), code=2)
    assert "workload.terminal: the terminal of a job on a node of Slurm cannot be reached" in said
    job = submit_sleeper(daemon)
    (number,) = cluster.numbers(f"runner-{daemon.instance}-{job}-1")
    said = daemon.runner("forward", job, "8080", code=set(range(1, 256)))
    assert f"srun --jobid={number} --overlap --pty sh" in said
    assert len(said.strip().splitlines()) == 1
    daemon.runner("cancel", job)
    daemon.ends(job)
