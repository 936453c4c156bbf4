from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.accounting.usage import (
    GroupBy,
    Switch,
    UsageRow,
    UsageSpan,
    Used,
    goodput,
    total_usage,
    usage_by,
)

H = 3600.0
ONE = UsageSpan("train", "ada", "vision", gpus=2, cpus=8, placed_s=0, ended_s=4 * H, started_s=0)


def test_hours_are_devices_times_time_and_only_of_the_span() -> None:
    [use] = usage_by(Used.of([ONE], H, 3 * H), GroupBy.USER)
    assert (use.who, use.attempts, use.device_s, use.cpu_s) == ("ada", 1, 4 * H, 16 * H)


def test_what_is_still_lent_counts_until_now() -> None:
    [use] = usage_by(Used.of([replace(ONE, ended_s=None)], 0, 10 * H), GroupBy.USER)
    assert use.device_s == 20 * H


def test_what_was_before_or_is_after_the_span_is_left_out() -> None:
    assert usage_by(Used.of([ONE], 5 * H, 6 * H), GroupBy.USER) == ()
    assert usage_by(Used.of([replace(ONE, placed_s=9 * H, ended_s=None)], 0, 6 * H), GroupBy.USER) == ()
    assert total_usage(Used.of([], 0, H)).efficiency is None


def test_uses_are_put_together_by_user_team_or_job_the_most_first() -> None:
    usage_records = [ONE, replace(ONE, job="other", user="bob", gpus=6), replace(ONE, job="third")]
    assert [use.who for use in usage_by(Used.of(usage_records, 0, 4 * H), GroupBy.USER)] == ["bob", "ada"]
    assert [use.who for use in usage_by(Used.of(usage_records, 0, 4 * H), GroupBy.TEAM)] == ["vision"]
    assert [use.who for use in usage_by(Used.of(usage_records, 0, 4 * H), GroupBy.JOB)] == [
        "other",
        "third",
        "train",
    ]
    assert [use.share for use in usage_by(Used.of(usage_records, 0, 4 * H), GroupBy.USER)] == [0.6, 0.4]


def test_where_no_device_was_lent_the_share_and_the_efficiency_are_of_cpus() -> None:
    plain = replace(ONE, gpus=0)
    uses = usage_by(
        Used.of([plain, replace(plain, user="bob", cpus=24, started_s=2 * H)], 0, 4 * H), GroupBy.USER
    )
    assert [(use.who, use.share, use.efficiency) for use in uses] == [("bob", 0.75, 0.5), ("ada", 0.25, 1.0)]


def test_starting_and_what_was_lost_at_the_end_are_not_useful() -> None:
    [use] = usage_by(Used.of([replace(ONE, started_s=H, lost_s=H)], 0, 4 * H), GroupBy.USER)
    assert use.efficiency == 0.5
    [use] = usage_by(
        Used.of([replace(ONE, started_s=H, lost_s=H)], 0, 2 * H), GroupBy.USER
    )  # the loss came later
    assert use.efficiency == 0.5
    [use] = usage_by(Used.of([replace(ONE, started_s=None)], 0, 4 * H), GroupBy.USER)
    assert use.efficiency == 0


def test_utilisation_is_the_mean_over_the_device_time_that_was_looked_at() -> None:
    usage_records = [replace(ONE, util=0.9), replace(ONE, gpus=6, util=0.1), replace(ONE, gpus=100)]
    assert total_usage(Used.of(usage_records, 0, 4 * H)).utilisation == pytest.approx(0.3)
    assert total_usage(Used.of([ONE], 0, 4 * H)).utilisation is None


def test_what_giving_way_cost_the_one_and_spared_the_other() -> None:
    switch = Switch(told_s=H, cost_s=30, spared_s=2 * H, job="short", user="bob", team="speech")
    long = replace(ONE, ended_s=H + 10, switch=switch)
    short = replace(ONE, job="short", user="bob", team="speech", placed_s=H + 10, gpus=1)
    ada, bob = usage_by(Used.of([long, short], 0, 4 * H), GroupBy.USER)[::-1]
    assert (ada.who, ada.gave_way, ada.gave_way_cost_s) == ("ada", 1, 2 * 30)  # of two devices
    assert (ada.preferred, ada.spared_wait_s) == (0, 0)
    assert (bob.gave_way, bob.preferred, bob.spared_wait_s) == (0, 1, 2 * H)
    whole = total_usage(Used.of([long, short], 0, 4 * H))
    assert (whole.gave_way, whole.gave_way_cost_s, whole.preferred, whole.spared_wait_s) == (1, 60, 1, 2 * H)
    by_job = usage_by(Used.of([long, short], 0, 4 * H), GroupBy.JOB)
    assert [(each.who, each.preferred) for each in by_job] == [("short", 1), ("train", 0)]
    assert total_usage(Used.of([long, short], H + 1, 4 * H)).gave_way == 0  # it was told before
    unused = replace(long, switch=replace(switch, spared_s=None))
    whole = total_usage(Used.of([unused, short], 0, 4 * H))
    assert (whole.gave_way, whole.gave_way_cost_s, whole.preferred, whole.spared_wait_s) == (1, 60, 0, 0)


SOME = st.builds(
    UsageSpan,
    job=st.sampled_from("abc"),
    user=st.sampled_from("xy"),
    team=st.just("t"),
    gpus=st.integers(0, 8),
    cpus=st.floats(0.1, 64),
    placed_s=st.floats(0, 100),
    ended_s=st.none() | st.floats(0, 100),
    started_s=st.none() | st.floats(0, 100),
    lost_s=st.floats(0, 100),
    util=st.none() | st.floats(0, 1),
)


@given(usage_records=st.lists(SOME, max_size=8), since=st.floats(0, 100), until=st.floats(0, 100))
def test_parts_make_up_the_whole(usage_records: list[UsageSpan], since: float, until: float) -> None:
    whole, parts = (
        total_usage(Used.of(usage_records, since, until)),
        usage_by(Used.of(usage_records, since, until), GroupBy.JOB),
    )
    assert sum(use.device_s for use in parts) == pytest.approx(whole.device_s)
    assert sum(use.share for use in parts) == pytest.approx(1.0 if parts else 0.0)
    assert all(use.efficiency is None or use.efficiency >= 0 for use in parts)


def test_what_was_summed_and_what_is_held_now_add_up() -> None:
    kept, now = Used.of([ONE], 0, H), Used.of([ONE], H, 4 * H)
    assert total_usage(kept + now).device_s == total_usage(Used.of([ONE], 0, 4 * H)).device_s


def test_goodput_is_lasting_work_by_all_the_time_there_is() -> None:
    row = UsageRow("", 1, device_s=40.0, cpu_s=100.0, share=1.0, efficiency=0.5)
    assert goodput(row, {"device_s": 80.0, "cpu_s": 1000.0}) == 0.25
    assert goodput(row, {"device_s": 0.0, "cpu_s": 1000.0}) == 0.05
    assert goodput(UsageRow("", 0, 0.0, 0.0, 0.0), {"device_s": 80.0, "cpu_s": 1.0}) == 0
    assert goodput(row, {"device_s": 0.0, "cpu_s": 0.0}) is None
