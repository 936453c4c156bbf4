import json

import pytest

from tests.fakes.api import FakeApi, ended
from tests.unit.runner.cli.conftest import Invoke


def test_waiting_for_several_jobs_exits_with_the_first_that_did_not_succeed(
    api: FakeApi, invoke: Invoke
) -> None:
    api.add("one", **ended())
    api.add("two", **ended("cancelled", "cancelled by ada"))
    api.add("three", **ended("failed", "all 5 attempts used"))
    result = invoke("wait", "one", "two", "three")
    assert result.exit_code == 11
    assert result.stdout.splitlines()[1:] == [
        "two: cancelled by ada",
        "three: failed: all 5 attempts used",
    ]


def test_a_timeout_exits_124_and_leaves_the_job_alone(api: FakeApi, invoke: Invoke) -> None:
    api.add("train")
    result = invoke("wait", "--timeout", "0", "train")
    assert result.exit_code == 124
    assert result.stdout == "train: running (attempt 1 on cpu); still, after --timeout\n"


def test_a_job_that_ends_in_time_is_no_timeout(api: FakeApi, invoke: Invoke) -> None:
    api.add("train")
    api.happen("wait", lambda: None, lambda: None, ended())
    result = invoke("wait", "--timeout", "1.5h", "--json", "train")
    assert (result.exit_code, json.loads(result.stdout)["outcome"]) == (0, "succeeded")


@pytest.mark.parametrize("text", ["soon", "-1", "5 m", "1e3", "", "٣"])
def test_what_is_no_duration_is_a_usage_error(invoke: Invoke, text: str) -> None:
    result = invoke("wait", "--timeout", text, "train")
    assert (result.exit_code, "write 90, 90m or 1.5h" in result.stderr) == (2, True)
