"""Attempts of several nodes: they begin, stop and end together, and the earliest failure is the end."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL, SIGTERM, SIGUSR1

import pytest

from runner.adapters.launch import attempt_name
from runner.core.ports.executor import LaunchRequest
from tests.contract.worlds import eventually
from tests.fakes.engine.slurm import Cluster
from tests.fakes.engine.slurm_site import Site, begun, end, site_on

NOTES = "echo $$ >attempts/1/pid.$RANK"
WAITS = "echo ready; while :; do sleep 0.1; done"


@pytest.fixture(scope="module")
def together(slurm_conf: str) -> Cluster:
    return Cluster(Path(slurm_conf))


@pytest.fixture
def site(together: Cluster) -> Iterator[Site]:
    with site_on(together) as site:
        yield site


def log_of(request: LaunchRequest, rank: int) -> str:
    path = request.log if rank == 0 else request.log.with_name(f"rank-{rank}.log.txt")
    return path.read_text() if path.exists() else ""


def all_ready(request: LaunchRequest, processes: int = 4) -> None:
    eventually(lambda: all("ready" in log_of(request, rank) for rank in range(processes)))


def test_each_process_is_told_its_number_and_where_all_meet(site: Site) -> None:
    script = (
        "echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE on $SLURMD_NODENAME;"
        " echo $MASTER_ADDR:$MASTER_PORT"
    )
    request = site.gang(script, job="told")
    executor = site.executor()
    executor.launch(request)
    gone = end(executor, request.key)
    assert gone.exit_code == 0, request.log.read_text()
    said = [log_of(request, rank).splitlines() for rank in range(4)]
    assert [lines[0].partition(" on ")[0] for lines in said] == [
        "0 of 4, 0 of 2",
        "1 of 4, 1 of 2",
        "2 of 4, 0 of 2",
        "3 of 4, 1 of 2",
    ]
    where = [lines[0].partition(" on ")[2] for lines in said]
    assert where[0] == where[1] != where[2] == where[3]
    assert len({lines[1] for lines in said}) == 1
    assert said[0][1].startswith("127.0.0.1:2")


def test_the_attempt_is_on_all_its_nodes(site: Site) -> None:
    request = site.gang(WAITS, job="hosts")
    executor = site.executor()
    executor.launch(request)
    assert str(begun(executor, request).host).startswith("node[")
    executor.signal(request.key, SIGKILL)
    end(executor, request.key)


@pytest.mark.parametrize(("how", "code"), [("exit 5", 5), ("kill -9 $$", 137)])
def test_a_process_of_another_node_that_fails_ends_the_attempt(site: Site, how: str, code: int) -> None:
    request = site.gang(
        f"echo $$ >attempts/1/pid.$RANK; [ $RANK != 3 ] || {how}; exec sleep 1000", job=f"fails{code}"
    )
    executor = site.executor()
    executor.launch(request)
    assert end(executor, request.key).exit_code == code
    assert re.search(r"gang: rank 3 of 4 on node\d decides the end: ", request.log.read_text())
    result = json.loads((request.log.parent / "result.json").read_text())
    assert (result["rank"], result["processes"]) == (3, 4)
    assert_none_lives(request)


def test_the_earliest_failure_is_the_end_and_not_the_first_that_is_heard_of(site: Site) -> None:
    first = "3) touch attempts/1/gone; exit 5"
    second = "0) until [ -e attempts/1/gone ]; do sleep 0.01; done; sleep 0.1; exit 7"
    request = site.gang(f"case $RANK in {first} ;; {second} ;; esac; exec sleep 1000", job="earliest")
    executor = site.executor()
    executor.launch(request)
    assert end(executor, request.key).exit_code == 5


def test_a_failure_on_the_first_node_ends_the_others(site: Site) -> None:
    request = site.gang(
        "echo $$ >attempts/1/pid.$RANK; [ $RANK != 0 ] || exit 6; exec sleep 1000", job="first"
    )
    executor = site.executor()
    executor.launch(request)
    assert end(executor, request.key).exit_code == 6
    assert_none_lives(request)


def test_all_are_asked_to_stop_and_save(site: Site) -> None:
    request = site.gang(f"trap 'echo saved; exit 75' TERM; {WAITS}", job="stops")
    executor = site.executor()
    executor.launch(request)
    all_ready(request)
    executor.signal(request.key, SIGTERM)
    assert end(executor, request.key).exit_code == 75
    assert all(log_of(request, rank) == "ready\nsaved\n" for rank in range(4))


def test_other_signals_reach_every_process_once(site: Site) -> None:
    request = site.gang(f"trap 'echo save' USR1; trap 'exit 0' TERM; {WAITS}", job="usr1")
    executor = site.executor()
    executor.launch(request)
    all_ready(request)
    executor.signal(request.key, SIGUSR1)
    eventually(lambda: all("save" in log_of(request, rank) for rank in range(4)))
    executor.signal(request.key, SIGTERM)
    assert end(executor, request.key).exit_code == 0
    assert all(log_of(request, rank) == "ready\nsave\n" for rank in range(4))


def test_a_kill_reaches_all_nodes(site: Site) -> None:
    request = site.gang(f"trap '' TERM; {NOTES}; {WAITS}", job="killed")
    executor = site.executor()
    executor.launch(request)
    all_ready(request)
    executor.signal(request.key, SIGKILL)
    assert end(executor, request.key).exit_code == 137
    assert_none_lives(request)


def test_an_attempt_of_several_nodes_is_one_job_of_slurm(site: Site) -> None:
    request = site.gang("true", job="once")
    executor = site.executor()
    executor.launch(request)
    site.executor().launch(request)
    assert end(executor, request.key).exit_code == 0
    assert len(site.cluster.numbers(attempt_name(request.key))) == 1


def assert_none_lives(request: LaunchRequest) -> None:
    pids = [pid for path in request.log.parent.glob("pid.*") if (pid := path.read_text().strip())]
    assert pids  # the file of a process that was ended while it wrote is empty
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
