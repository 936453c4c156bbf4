"""Jobs that take turns by attained service: a preempted training goes on as one that nobody disturbed."""

from collections.abc import Iterator

import pytest

from tests.chaos.endless import endless, saves, saves_at
from tests.fakes.daemon.service import Service, service, until

QUEUE = {
    "order": "attained",
    "cpu_weight": 1.0,
    "preemption": {"grace": "1s"},
    "switching": {"budget": 1.0, "levels": ["1s", "1h"]},
}
pytestmark = pytest.mark.engine


@pytest.fixture
def shared() -> Iterator[Service]:
    """A daemon with room for one job at a time, and levels of seconds."""
    with service(cpus=1, watch_every_s=0.2, queue=QUEUE) as made:
        yield made.start()


def test_a_long_training_gives_way_to_a_short_one_and_its_state_is_the_same(shared: Service) -> None:
    long = endless(shared, "long")
    saves(shared, long, 1)
    short = shared.submit(shared.training("short", 3))
    until(lambda: "preempted for job" in shared.told(long), "the long one was told")
    shared.kill()  # while they change places
    shared.runner("list")
    assert shared.ends(short)["outcome"] == "succeeded"
    found = saves(shared, long, 2)
    shared.runner("cancel", long)
    untouched = endless(shared, "untouched")
    expected = saves_at(shared, untouched, found.step)
    shared.runner("cancel", untouched)
    assert found.state_sha256 == expected.state_sha256
    assert len(shared.job(untouched)["attempts"]) == 1
