"""Somebody works with the engine behind the daemon's back, or it is broken in part: nobody is blamed."""

from contextlib import closing

import docker
import pytest
from docker.models.containers import Container

from tests.fakes.daemon.service import Service, assert_consecutive, until
from tests.fakes.engine.engine_proxy import EngineProxy

pytestmark = pytest.mark.engine


def _container(daemon: Service, client: docker.DockerClient, job_id: str) -> Container:
    [found] = daemon.containers(job_id)
    return client.containers.get(found["Id"])


def test_a_restarted_container_ends_its_attempt_and_the_job_resumes(daemon: Service, engine: str) -> None:
    job_id = daemon.submit(daemon.counting("count", 60, environment={"STAY_AT": "12"}))
    daemon.runs(job_id, "step 12")
    with closing(docker.DockerClient(engine, version="auto")) as client:
        _container(daemon, client, job_id).restart(timeout=0)
    ended = daemon.ends(job_id)
    assert (ended["outcome"], ended["attempt"]) == ("succeeded", 2)
    assert ended["result"]["resumed_from"] >= 10
    assert_consecutive(daemon.log(job_id, 2))
    daemon.assert_whole()


def test_a_renamed_container_goes_on_as_the_same_attempt(daemon: Service, engine: str) -> None:
    job_id = daemon.submit(daemon.counting("count", 20, environment={"STAY_AT": "10"}))
    daemon.runs(job_id, "step 10")
    with closing(docker.DockerClient(engine, version="auto")) as client:
        container = _container(daemon, client, job_id)
        container.rename(f"renamed-{daemon.instance}")
        daemon.runner("restart", job_id)  # so it is found, signalled and removed
        assert daemon.ends(job_id)["attempt"] == 2
        until(lambda: container.id not in {each["Id"] for each in daemon.containers()}, "it is removed")
    daemon.assert_whole()


def test_an_engine_that_fails_every_start_for_a_while_fails_no_job(
    behind_proxy: Service, proxy: EngineProxy
) -> None:
    proxy.fail("/start")
    jobs = [behind_proxy.submit(behind_proxy.counting(f"count-{n}", 5)) for n in range(3)]
    for job_id in jobs:
        until(lambda job_id=job_id: "broken" in behind_proxy.job(job_id)["why"], "a reason")  # type: ignore[misc]
        assert behind_proxy.state_of(job_id) == "starting"
    proxy.mend()
    for job_id in jobs:
        assert behind_proxy.ends(job_id)["attempt"] == 1
    behind_proxy.assert_whole()
