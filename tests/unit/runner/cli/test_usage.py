import json
from typing import Any

import pytest

from runner.cli.table import format_table
from runner.cli.usage import format_share, make_usage_table
from tests.fakes.daemon.api import FakeApi
from tests.unit.runner.cli.conftest import Invoke

H = 3600.0


def a_use(who: str = "ada", **facts: object) -> dict[str, Any]:
    known = {"who": who, "attempts": 3, "device_s": 12 * H, "cpu_s": 96 * H, "share": 0.75}
    never = {"gave_way": 0, "gave_way_cost_s": 0.0, "preferred": 0, "spared_wait_s": 0.0}
    return {**known, **never, "efficiency": 0.91, "utilisation": None, **facts}


def an_answer(*uses: dict[str, Any], **facts: object) -> dict[str, Any]:
    return {
        "since": "2030-01-01T00:00:00.000Z", "until": "2030-01-08T00:00:00.000Z", "by": "user",
        "uses": list(uses), "total": a_use("", device_s=16 * H, utilisation=0.5, share=1.0),
        "there": {"device_s": 64 * H, "cpu_s": 640 * H}, "switching_budget": 0.03,
    } | facts  # fmt: skip


def test_a_pipe_gets_one_line_each_between_tabs(api: FakeApi, invoke: Invoke) -> None:
    api.answers["usage"] = an_answer(a_use(), a_use("b\tob", device_s=4 * H, utilisation=0.5))
    result = invoke("usage", "--since", "12h", "--by", "team")
    never = "0\t0.0\t0\t0.0"
    ada, bob = "ada\t12.0\t96.0\t0.75\t0.91\t-\t3", "b\\tob\t4.0\t96.0\t0.75\t0.91\t0.5\t3"
    assert result.stdout == f"{ada}\t{never}\n{bob}\t{never}\n"
    assert api.asked[-1][1] == "/v1/usage?since_s=43200.0&by=team"


@pytest.mark.parametrize("text", ["12h", "12h ago"])
def test_a_duration_may_say_that_it_is_ago(api: FakeApi, invoke: Invoke, text: str) -> None:
    api.answers["usage"] = an_answer(a_use())
    assert invoke("usage", "--since", text).exit_code == 0
    assert api.asked[-1][1] == "/v1/usage?since_s=43200.0&by=user"
    assert invoke("list", "--since", text).exit_code == 0


def test_json_is_what_the_daemon_answered(api: FakeApi, invoke: Invoke) -> None:
    api.answers["usage"] = an_answer(a_use())
    assert json.loads(invoke("usage", "--json").stdout) == api.answers["usage"]


@pytest.mark.parametrize(
    "wrong", [("--since", "0"), ("--since", "100000d"), ("--since", "soon"), ("--by", "dog")]
)
def test_what_makes_no_sense_is_a_usage_error_without_a_question(
    api: FakeApi, invoke: Invoke, wrong: tuple[str, str]
) -> None:
    assert invoke("usage", *wrong).exit_code == 2
    assert api.asked == []


def test_numbers_stand_below_each_other_to_the_last_column() -> None:
    lines = format_table(make_usage_table(an_answer(a_use(), a_use("bob", attempts=100))), 200)
    assert len({len(line) for line in lines}) == 1


@pytest.mark.parametrize(("device_s", "kept"), [(0.0, "CPU HOURS"), (16 * H, "DEVICE HOURS")])
def test_a_screen_of_80_columns_shows_what_giving_way_cost_and_the_hours_that_count(
    device_s: float, kept: str
) -> None:
    switches = {"gave_way": 12, "gave_way_cost_s": H, "preferred": 40, "spared_wait_s": 100 * H}
    user = a_use("lena", device_s=device_s, **switches)
    lines = format_table(
        make_usage_table(an_answer(user, total=a_use("", device_s=device_s, **switches))), 80
    )
    for column in (kept, "SHARE", "PREEMPTED", "COST", "PREFERRED", "SPARED WAIT"):
        assert column in lines[0], lines[0]
    assert all(len(line) <= 80 for line in lines)


def test_where_nothing_was_lent_it_is_said() -> None:
    assert format_table(make_usage_table(an_answer()), 80) == ["nothing was allocated"]


def test_a_machine_without_devices_counts_cpus() -> None:
    answer = an_answer(there={"device_s": 0.0, "cpu_s": 960 * H})
    assert format_share(answer) == "96.0 of 960 cpu hours were allocated (10%)"


def test_a_cluster_that_does_not_tell_how_much_it_has_is_no_share() -> None:
    assert (
        format_share(an_answer(there={"device_s": 0.0, "cpu_s": 0.0})) == "16.0 device hours were allocated"
    )


def test_the_goodput_of_the_machine_stands_beside_what_was_allocated() -> None:
    told = "16.0 of 64 device hours were allocated (25%), 23% to lasting work (goodput)"
    assert format_share(an_answer(goodput=0.2275)) == told


def test_what_giving_way_has_cost_stands_beside_what_it_may_cost() -> None:
    whole = a_use("", device_s=16 * H, gave_way=2, gave_way_cost_s=576.0)
    told = format_share(an_answer(total=whole, switching_budget=0.03))
    assert (
        told
        == "16.0 of 64 device hours were allocated (25%); preemption cost 1.00% of that, and may cost 3.00%"
    )
    assert format_share(an_answer(switching_budget=0.03)) == "16.0 of 64 device hours were allocated (25%)"


def test_a_number_without_a_unit_is_refused(api: FakeApi, invoke: Invoke) -> None:
    result = invoke("usage", "--since", "7")
    assert (result.exit_code, api.asked) == (2, [])
    assert "'7' has no unit; write a unit: 7d, 12h, 30m" in result.stderr
