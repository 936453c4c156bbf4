"""A program that runs as a plain process and writes is shown with its rate, through a real daemon."""

from collections.abc import Iterator

import pytest

from tests.fakes.daemon.service import Service, service
from tests.fakes.workloads.writer import assert_the_rate_is_shown, on_a_disk


@pytest.fixture(scope="module")
def daemon() -> Iterator[Service]:
    with service(executor="process", watch_every_s=0.2) as made:
        yield made.start()


def test_a_process_that_writes_is_shown_with_its_rate(daemon: Service) -> None:
    with on_a_disk() as place:
        assert_the_rate_is_shown(daemon, str(place))
