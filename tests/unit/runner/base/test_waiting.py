"""Work for a request that nobody waits for any more."""

from contextvars import copy_context

import pytest

from runner.base.errors import Unavailable
from runner.base.waiting import check_wanted, is_wanted


def test_work_for_nobody_in_particular_is_wanted() -> None:
    check_wanted()


def test_work_is_broken_off_when_nobody_waits_for_its_answer() -> None:
    def work() -> None:
        is_wanted.set(lambda: False)
        check_wanted()

    with pytest.raises(Unavailable, match="nobody waits"):
        copy_context().run(work)
