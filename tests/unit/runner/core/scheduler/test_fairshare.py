import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.scheduler.config import SchedulerConfig
from runner.core.scheduler.fairshare import FairShare, accrue_usage, charge_usage, decay_usage, jain_index
from runner.core.scheduler.snapshot import Snapshot
from tests.fakes.host.directories import NOW_S, gpus, host, running

DAY_S = 86400.0
SPANS = st.floats(0, 30 * DAY_S)


def test_a_device_second_counts_half_after_a_half_life() -> None:
    assert decay_usage(100.0, 7 * DAY_S, 7 * DAY_S) == 50.0


@given(st.floats(0, 1e9), st.floats(0, 64), SPANS, SPANS)
def test_it_does_not_matter_how_often_usage_is_charged(
    before: float, devices: float, first_s: float, second_s: float
) -> None:
    at_once = charge_usage(before, devices, first_s + second_s, 7 * DAY_S)
    in_two = charge_usage(charge_usage(before, devices, first_s, 7 * DAY_S), devices, second_s, 7 * DAY_S)
    assert in_two == pytest.approx(at_once, rel=1e-9, abs=1e-3)


def test_a_short_use_counts_as_what_it_was() -> None:
    assert accrue_usage(4, 60.0, 7 * DAY_S) == pytest.approx(240.0, rel=1e-3)


@pytest.mark.parametrize(
    ("values", "index"), [([3, 3, 3], 1.0), ([1, 0, 0, 0], 0.25), ([], 1.0), ([0, 0], 1.0)]
)
def test_jains_index_is_one_for_equals_and_one_nth_where_one_has_all(
    values: list[float], index: float
) -> None:
    assert jain_index(values) == pytest.approx(index)


def test_what_runs_is_charged_an_hour_ahead() -> None:
    known = Snapshot(NOW_S, (host(),), running=(running("1", ("h-0", "h-1"), hours=3.0),))
    assert FairShare.of(known).rank("bob", "")[1] == pytest.approx(2.01 * 3600, rel=0.01)


def test_what_has_no_known_end_is_charged_an_hour_ahead_too() -> None:
    known = Snapshot(NOW_S, (host(),), running=(running("1", ("h-0", "h-1"), hours=None),))
    assert FairShare.of(known).users == {"bob": pytest.approx(2.01 * 3600)}


def test_usage_is_compared_by_share_and_no_share_means_last() -> None:
    shares = FairShare({"a": 10.0, "b": 10.0}, {}, SchedulerConfig(user_shares={"a": 2.0, "c": 0.0}))
    assert shares.rank("a", "") < shares.rank("b", "") < shares.rank("c", "")


def test_what_starts_is_charged_to_the_group_too() -> None:
    shares = FairShare()
    shares.charge("a", "lab", gpus(2), 60.0)
    assert shares.rank("b", "lab") > shares.rank("a", "guests")
