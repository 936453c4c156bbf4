from typing import Any

from tests.fakes.daemon.api import FakeApi
from tests.unit.runner.cli.conftest import Invoke

SAME: dict[str, Any] = {
    "before": "a@1",
    "after": "b@1",
    "class": "none",
    "changes": [],
    "code": [],
    "code_unknown": [],
}


def test_two_jobs_of_the_same_file_and_code_differ_in_nothing(api: FakeApi, invoke: Invoke) -> None:
    api.add("a")
    api.answers["diff"] = SAME
    assert invoke("diff", "a", "b").stdout == "a@1 and b@1: nothing differs\n"


def test_code_that_was_not_compared_is_not_said_to_be_the_same(api: FakeApi, invoke: Invoke) -> None:
    api.add("a")
    api.answers["diff"] = SAME | {"code_unknown": ["a@1"]}
    assert invoke("diff", "a", "b").stdout.splitlines() == [
        "--- a@1",
        "+++ b@1",
        "a@1: its code was not kept, and is not compared",
    ]
