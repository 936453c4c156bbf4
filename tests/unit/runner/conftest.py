from collections.abc import Iterator

import pytest

from tests.fakes.host.machine import Host, fresh_host


@pytest.fixture
def host() -> Iterator[Host]:
    with fresh_host() as host:
        yield host
