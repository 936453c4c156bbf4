"""``runner set``: what is asked of the daemon, and what it says."""

import json

import pytest

from tests.fakes.daemon.api import FakeApi
from tests.unit.runner.cli.conftest import Invoke


def test_limits_are_sent_as_numbers_and_told_with_when_they_hold(api: FakeApi, invoke: Invoke) -> None:
    api.add("train")
    api.limits = [
        {"field": "priority", "before": "50", "after": "90", "at_next_start": False},
        {"field": "resources.memory", "before": "4GiB", "after": "8GiB", "at_next_start": True},
    ]
    result = invoke("set", "train", "-p", "90", "--memory", "8GiB", "--time", "2h", "--class", "idle")
    assert result.stdout == "train: priority 50 → 90; resources.memory 4GiB → 8GiB at its next start\n"
    sent = {"priority": 90, "memory": 8 * 1024**3, "time_limit_s": 7200.0, "priority_class": "idle"}
    assert api.asked[-1] == ("POST", "/v1/jobs/train/limits", sent)
    invoke("set", "train", "--time", "none")
    assert api.asked[-1][2] == {"time_limit_s": 0.0}
    assert json.loads(invoke("set", "train", "--cpus", "2", "--json").stdout)["changes"]
    api.limits = []
    assert invoke("set", "train", "-p", "50").stdout == "train: no change\n"


@pytest.mark.parametrize(
    "args",
    [
        ("train",),
        ("train", "--memory", "8 parsecs"),
        ("-p", "1"),
        ("train", "-p", "101"),
        ("train", "--time", "9"),
    ],
)
def test_what_cannot_be_set_is_a_usage_error(api: FakeApi, invoke: Invoke, args: tuple[str, ...]) -> None:
    result = invoke("set", *args)
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert api.asked == []


@pytest.mark.parametrize("limit", ["0m", "999999999d"])
def test_a_limit_of_time_is_one_that_a_job_file_may_have(api: FakeApi, invoke: Invoke, limit: str) -> None:
    result = invoke("set", "train", "--time", limit)
    assert f"must be from 1s to 366d, not {limit}; none: no limit" in result.stderr
    assert (result.exit_code, api.asked) == (2, [])
