"""Usage is an integral: it does not matter in how many steps it is added up, or who does it."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.control.usage import UsageTracker, load_level_usage
from runner.core.ports.store import UsageRecord
from runner.core.scheduler.fairshare import accrue_usage
from runner.core.scheduler.level_usage import Holding, LevelUsage
from tests.fakes.daemon.history import NoHistory

NOW = datetime(2030, 1, 1, tzinfo=UTC)
HALF_S = 3600.0


class Past(NoHistory):
    """Some usage records, of which none is summed."""

    def __init__(self, *records: UsageRecord) -> None:
        self.records = records

    def since(self, at: datetime) -> Iterable[UsageRecord]:
        return [each for each in self.records if each.ended_at is None or each.ended_at > at]


def lending(owner: str, began_s: float, ended_s: float | None, team: str = "") -> UsageRecord:
    ended = None if ended_s is None else NOW + timedelta(seconds=ended_s)
    return UsageRecord("1", 1, owner, team, 2, 10.0, (), NOW + timedelta(seconds=began_s), ended)


@given(st.lists(st.floats(0.1, 9000), min_size=1, max_size=9))
def test_what_is_charged_in_steps_is_what_a_daemon_adds_up_that_begins_later(steps: list[float]) -> None:
    usage, now_s = UsageTracker(HALF_S, 0.01), 0.0
    usage.begin("1", ("ann", "vision", 2.1), now_s)
    for step_s in steps:
        now_s += step_s
        usage.advance(now_s)
    later = UsageTracker(HALF_S, 0.01)
    later.load(Past(lending("ann", 0, None, "vision")), NOW + timedelta(seconds=now_s))
    assert usage.users.used == pytest.approx(later.users.used)
    assert usage.groups.used == pytest.approx(later.groups.used)


def test_what_has_been_given_back_fades() -> None:
    usage = UsageTracker(HALF_S, 0.01)
    usage.load(Past(lending("ann", -7200, -3600), lending("bob", -3600, None)), NOW)
    whole = accrue_usage(2.1, 3600, HALF_S)
    assert usage.users.used == pytest.approx({"ann": whole / 2, "bob": whole})
    usage.advance(HALF_S)
    assert usage.users.used == pytest.approx({"ann": whole / 4, "bob": whole / 2})
    usage.advance(100 * HALF_S)
    assert usage.users.rounded() == {}


def test_nobody_is_charged_twice_for_a_job_or_after_it() -> None:
    usage = UsageTracker(HALF_S, 0.0)
    usage.begin("1", ("ann", "", 1.0), 0.0)
    usage.begin("1", ("ann", "", 1.0), 10.0)
    usage.end("1", 20.0)
    usage.end("1", 30.0)
    usage.end("never", 30.0)
    assert usage.users.rates == usage.groups.rates == {}
    assert usage.users.used["ann"] == pytest.approx(20, rel=0.01)


def test_what_a_job_counts_as_changes_while_it_runs() -> None:
    usage = UsageTracker(1e9, 0.0)
    usage.begin("1", ("ann", "vision", 1.0), 0.0)
    usage.begin("1", ("ann", "vision", 1.5), 100.0)
    usage.end("1", 200.0)
    assert usage.users.rates == usage.groups.rates == {}
    assert usage.users.used["ann"] == usage.groups.used["vision"] == pytest.approx(250, rel=0.001)


def test_a_clock_that_was_set_makes_no_usage_negative() -> None:
    usage = UsageTracker(HALF_S, 0.0)
    usage.load(Past(lending("ann", 500, 100), lending("bob", 500, None), lending("eve", -100, 900)), NOW)
    assert usage.users.rounded().keys() == {"eve"}
    usage.advance(10.0)
    usage.advance(5.0)
    assert usage.at_s == 10.0


def test_what_was_had_in_each_level_is_what_a_daemon_finds_that_begins_later() -> None:
    limits, kept = (600.0, 3600.0), LevelUsage(HALF_S)
    kept.begin("1", Holding(("vision", "ann"), 2.1, 0.0, 0.0))
    kept.end("1", 400.0, limits)  # it was preempted
    kept.begin("1", Holding(("vision", "ann"), 2.1, 840.0, 900.0))
    tracker = UsageTracker(HALF_S, 0.01, 3000.0)
    rows = [lending("ann", 0, 400, "vision"), lending("ann", 900, None, "vision")]
    found = load_level_usage(rows, NOW + timedelta(seconds=3000), 3000.0, tracker, limits)
    expected = kept.read(3000.0, limits)["vision", "ann"]
    assert len(expected) == 3
    assert found.read(3000.0, limits)["vision", "ann"] == pytest.approx(expected)
    found.begin("1", Holding(("vision", "ann"), 2.1, 2.1 * 2500, 3000.0))  # it still runs
    expected = kept.read(4000.0, limits)["vision", "ann"]
    assert found.read(4000.0, limits)["vision", "ann"] == pytest.approx(expected)


def test_a_clock_that_was_set_leaves_nothing_in_the_levels() -> None:
    tracker = UsageTracker(HALF_S, 0.0, 5.0)
    rows = [lending("ann", 500, 100), lending("bob", 500, None)]
    found = load_level_usage(rows, NOW, 5.0, tracker, (600.0,))
    assert sum(map(sum, found.read(5.0, (600.0,)).values())) == 0
