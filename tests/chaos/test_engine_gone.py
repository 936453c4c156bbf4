"""Engines that are down, hang, or die for real: jobs wait, go on or resume; nobody is blamed."""

import os
from collections.abc import Iterator

import pytest

from tests.chaos.own_engine import OwnEngine, own_engine
from tests.fakes.daemon.service import Service, assert_consecutive, service, until
from tests.fakes.engine.engine_proxy import EngineProxy

pytestmark = pytest.mark.engine


def test_jobs_submitted_while_the_engine_is_down_say_so_and_start_when_it_is_back(
    behind_proxy: Service, proxy: EngineProxy, trainer_image: str
) -> None:
    del trainer_image
    proxy.shut()
    counts = behind_proxy.submit(behind_proxy.counting("counts", 5))
    trains = behind_proxy.submit(behind_proxy.training("trains", 4))
    for job_id in (counts, trains):
        until(lambda job_id=job_id: "engine" in behind_proxy.job(job_id)["why"], "a reason")  # type: ignore[misc]
    assert behind_proxy.state_of(counts) == "preparing"  # its image is looked up too
    assert behind_proxy.state_of(trains) == "preparing"
    assert behind_proxy.runner("list").count("No such file or directory") == 2
    proxy.resume()
    for job_id in (counts, trains):
        assert behind_proxy.ends(job_id)["attempt"] == 1
    behind_proxy.assert_whole()


def test_an_engine_that_hangs_ends_and_restarts_nothing(behind_proxy: Service, proxy: EngineProxy) -> None:
    job_id = behind_proxy.submit(behind_proxy.counting("count", 100, environment={"PERIOD_S": "0.1"}))
    unwanted = behind_proxy.submit(behind_proxy.counting("unwanted", 100_000), end="cancelled")
    behind_proxy.runs(job_id, "step 3")
    behind_proxy.runs(unwanted, "step 3")
    before = behind_proxy.events(job_id)
    proxy.hang()
    behind_proxy.runner("cancel", unwanted)  # is recorded at once
    assert behind_proxy.state_of(unwanted) == "stopping"
    until(lambda: "executor.unavailable" in behind_proxy.daemon_log(), "the daemon finds no engine")
    behind_proxy.prints(job_id, "end")
    assert behind_proxy.state_of(job_id) == "running"  # nobody has said otherwise
    assert behind_proxy.events(job_id) == before
    proxy.go_on()
    assert behind_proxy.ends(job_id)["attempt"] == 1
    assert_consecutive(behind_proxy.log(job_id))
    behind_proxy.assert_whole()


def test_an_engine_that_is_away_for_several_looks_ends_and_restarts_nothing(
    behind_proxy: Service, proxy: EngineProxy
) -> None:
    job_id = behind_proxy.submit(behind_proxy.counting("count", 200))
    behind_proxy.runs(job_id, "step 3")
    before = behind_proxy.events(job_id)
    proxy.shut()
    until(
        lambda: behind_proxy.daemon_log().count("executor.unavailable") >= 3, "three rounds without an answer"
    )
    assert behind_proxy.state_of(job_id) == "running"
    assert behind_proxy.events(job_id) == before
    proxy.resume()
    assert behind_proxy.ends(job_id)["attempt"] == 1
    assert_consecutive(behind_proxy.log(job_id))
    behind_proxy.assert_whole()


@pytest.fixture
def engine_of_ours() -> Iterator[OwnEngine]:
    if os.geteuid() != 0:
        pytest.skip("only root may start an engine of its own")
    with own_engine() as engine:
        yield engine


def test_a_job_resumes_after_the_engine_has_died_and_taken_it_along(
    engine_of_ours: OwnEngine, engine: str, counter: str
) -> None:
    image = engine_of_ours.take_over(engine, counter, "runner-test-counter")
    settings = {"executor": "docker", "engine": engine_of_ours.url, "allowed_images": {"counter": image}}
    with service(**settings) as daemon:
        daemon.engine = engine_of_ours.url
        daemon.start()
        job_id = daemon.submit(daemon.counting("count", 200))
        daemon.runs(job_id, "step 12")
        engine_of_ours.kill()
        until(lambda: "executor.unavailable" in daemon.daemon_log(), "the daemon finds no engine")
        assert daemon.state_of(job_id) == "running"
        engine_of_ours.start()
        ended = daemon.ends(job_id)
        assert ended["attempt"] == 2
        assert ended["result"]["resumed_from"] >= 10
        assert_consecutive(daemon.log(job_id, 2))
        daemon.assert_whole()


def test_jobs_wait_for_an_engine_that_is_down_when_the_daemon_starts_and_run_when_it_is_back(
    counter: str, proxy: EngineProxy
) -> None:
    url = f"unix://{proxy.path}"
    with service(executor="auto", engine=url, allowed_images={"counter": counter}) as daemon:
        proxy.shut()
        daemon.start()
        job_id = daemon.submit(daemon.counting("count", 3))
        until(lambda: "does not answer" in daemon.runner("why", job_id), "why names the engine")
        proxy.resume()
        assert daemon.ends(job_id)["attempt"] == 1
        daemon.assert_whole()
