"""Jobs that take turns by attained service: a training that gave way ends as one that nobody disturbed."""

from collections.abc import Iterator

import pytest

from tests.fakes.daemon.service import Service, service, until

QUEUE = {
    "order": "attained",
    "cpu_weight": 1.0,
    "preemption": {"grace": "1s"},
    "switching": {"budget": 1.0, "levels": ["1s", "1h"]},
}
pytestmark = pytest.mark.engine

STEPS = 1000


@pytest.fixture
def shared() -> Iterator[Service]:
    """A daemon with room for one job at a time, and levels of seconds."""
    with service(cpus=1, watch_every_s=0.2, queue=QUEUE) as made:
        yield made.start()


def weights(daemon: Service, job_id: str) -> object:
    return daemon.job(job_id)["result"]["weights_sha256"]


def trains(daemon: Service, job_id: str, step: int) -> None:
    until(lambda: (daemon.job(job_id).get("progress") or {}).get("step", 0) >= step, f"step {step}")


def test_a_long_training_gives_way_to_short_ones_and_its_weights_are_the_same(shared: Service) -> None:
    long = shared.submit(shared.training("long", STEPS))
    for number, step in enumerate((STEPS // 8, STEPS // 4)):
        trains(shared, long, step)
        short = shared.submit(shared.training(f"short{number}", 3))
        if number == 1:  # the daemon is killed while they change places
            until(lambda: "gave way" in shared.told(long), "the long one was told")
            shared.kill()
            shared.runner("list")
        assert shared.ends(short)["outcome"] == "succeeded"
    assert shared.ends(long)["outcome"] == "succeeded"
    assert shared.told(long).count("gave way to job") >= 2
    untouched = shared.submit(shared.training("untouched", STEPS))
    assert shared.ends(untouched)["outcome"] == "succeeded"
    assert weights(shared, long) == weights(shared, untouched)
    assert len(shared.job(untouched)["attempts"]) == 1


def test_a_job_that_is_to_be_kept_does_not_give_way(shared: Service) -> None:
    long = shared.submit(shared.training("long", STEPS, queue={"preemptible": False}))
    trains(shared, long, STEPS // 8)
    short = shared.submit(shared.training("short", 3))
    assert shared.ends(short)["outcome"] == "succeeded"
    assert len(shared.job(long)["attempts"]) == 1
    assert shared.job(long)["outcome"] == "succeeded"
