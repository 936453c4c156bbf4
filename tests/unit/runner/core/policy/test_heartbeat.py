"""Silence against what was learned, and never against what nobody can time."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.policy.heartbeat import (
    FLOOR_S,
    MAX_PROBE_GAP_S,
    SAMPLES,
    WARM_UP_STEPS,
    Heartbeat,
    ProgressReport,
)

TIMELESS = ["init", "compile", "eval", "save", "drain"]


def _sign(step: int, phase: str = "train", items: int | None = None, written: float = 0.0) -> ProgressReport:
    return ProgressReport(phase, step, written, items)


def _looks(
    signs: Iterable[tuple[float, ProgressReport | None]], heartbeat: Heartbeat | None = None
) -> Heartbeat:
    heartbeat = heartbeat or Heartbeat()
    for now, sign in signs:
        heartbeat = heartbeat.observe(sign, now)
    return heartbeat


def _steps(count: int, every_s: float = 1.0) -> Heartbeat:
    """Return what is known after so many steps of that length, each looked at."""
    return _looks((step * every_s, _sign(step)) for step in range(count + 1))


def test_without_a_report_nothing_is_known() -> None:
    nothing = _looks([(0, None), (1000, None)])
    assert (nothing.limit_s(), nothing.is_over_limit(), nothing.rate, nothing.recent) == (
        None,
        None,
        None,
        None,
    )


def test_before_a_silence_was_seen_to_end_none_can_have_been_longer_than_its_life_so_far() -> None:
    early = _looks([(8, None), (10, _sign(20)), (11, _sign(20))], Heartbeat(born=2.0))
    assert early.limit_s(floor_s=1) == 40
    assert _looks([(60, _sign(20))], early).is_over_limit(floor_s=1) is True


def test_whoever_resumed_has_not_taken_the_steps_before_that() -> None:
    resumed = _looks([(10, ProgressReport("train", 22, 0.0, begun=20))], Heartbeat(born=2.0))
    assert resumed.limit_s() is None


def test_a_start_lasts_until_the_first_step_that_is_seen() -> None:
    born = Heartbeat(born=2.0)
    fresh = _looks([(10, None), (60, _sign(0, "init")), (95, _sign(1)), (100, _sign(9))], born)
    assert fresh.start_s == 93
    assert _looks([(10, None), (60, _sign(0, "init"))], born).start_s is None
    loaded = [
        (40.0, ProgressReport("init", 20, 0.0, begun=20)),
        (45.0, ProgressReport("train", 21, 0.0, begun=20)),
    ]
    assert _looks(loaded, born).start_s == 43
    assert _looks([(4, _sign(3))], born).start_s == 2
    assert _looks([(4, _sign(3))], Heartbeat(born=9.0)).start_s == 0


def test_steps_that_were_taken_since_the_first_do_not_count_as_a_start() -> None:
    """Of 41 steps of 0.1 s that a probe finds, 40 came after the first one."""
    at_once = [(5.0, _sign(0, "init")), (10.0, ProgressReport("train", 41, 0.0, step_s=0.1))]
    assert _looks(at_once, Heartbeat(born=2.0)).start_s == 4
    much = [(5.0, _sign(0, "init")), (10.0, ProgressReport("train", 41, 0.0, step_s=9.0))]
    assert _looks(much, Heartbeat(born=2.0)).start_s == 3  # no step had been taken at 5


def test_a_first_step_that_nobody_looked_on_says_nothing_about_the_start() -> None:
    assert _looks([(1000, _sign(70)), (1005, _sign(71))], Heartbeat(born=2.0)).start_s is None
    away = [(10, _sign(0)), (10 + MAX_PROBE_GAP_S + 1, _sign(5)), (80, _sign(6))]
    assert _looks(away, Heartbeat(born=2.0)).start_s is None
    assert _steps(3).start_s is None


def test_the_first_five_steps_teach_nothing() -> None:
    slow_start = _looks([(0, _sign(0)), (50, _sign(1)), (100, _sign(WARM_UP_STEPS - 1))])
    assert slow_start.limit_s() is None
    warm = _looks([(101, _sign(WARM_UP_STEPS)), (102, _sign(WARM_UP_STEPS + 1))], slow_start)
    assert warm.limit_s(floor_s=0) == 5.0


def test_the_limit_is_five_times_the_longest_silence_of_the_phase() -> None:
    assert _steps(10, every_s=20).limit_s(floor_s=1) == 100


def test_no_limit_is_shorter_than_the_floor() -> None:
    assert _steps(10, every_s=0.5).limit_s() == FLOOR_S


def test_silence_below_the_limit_is_not_held_against_it() -> None:
    quiet = _looks([(60.0, _sign(10))], _steps(10))
    assert (quiet.age_s, quiet.is_over_limit(floor_s=60)) == (50, False)


def test_silence_beyond_the_limit_is() -> None:
    quiet = _looks([(60, _sign(10)), (71, _sign(10))], _steps(10))
    assert quiet.is_over_limit(floor_s=60) is True


def test_a_report_that_changes_without_a_step_is_a_sign_of_life() -> None:
    alive = _looks([(50, _sign(10, written=1)), (95, _sign(10, written=2))], _steps(10))
    assert (alive.age_s, alive.idle_s) == (0, 85)
    assert alive.is_over_limit(floor_s=20) is False


def test_of_a_program_without_reports_the_step_of_its_log_is_timed_and_its_silence_is_not() -> None:
    heart = Heartbeat()
    for now, told in ((10.0, 3), (40.0, 3), (65.0, 3)):
        heart = heart.observe(None, now, told)
    assert (heart.idle_s, heart.age_s, heart.limit_s()) == (55, 0, None)
    assert heart.observe(None, 70.0, 4).idle_s == 0
    assert heart.observe(None, 70.0, 1).idle_s == 0  # of another phase, which counts from the beginning
    assert heart.observe(None, 70.0).idle_s == 0


def test_a_report_that_cannot_be_read_for_a_moment_does_not_end_the_wait_for_a_step() -> None:
    waits = _looks([(40, _sign(10)), (50, _sign(10))], _steps(10))
    assert waits.observe(None, 55.0, 7).idle_s == waits.idle_s > 0


@pytest.mark.parametrize("phase", TIMELESS)
def test_what_nobody_can_time_has_no_limit(phase: str) -> None:
    long = _looks([(10 + each * 50, _sign(10, phase)) for each in range(200)], _steps(10))
    assert (long.age_s > 5000, long.limit_s(), long.is_over_limit()) == (True, None, None)


def test_a_silence_belongs_to_the_phase_in_which_it_began() -> None:
    looks = [(11.0, _sign(10, "eval")), (61.0, _sign(10, "eval")), (111.0, _sign(11)), (112.0, _sign(12))]
    assert _looks(looks, _steps(10)).limit_s(floor_s=0) == 5.0


def test_a_phase_in_which_no_silence_has_ended_yet_has_no_limit() -> None:
    reading = _looks([(11, _sign(10, "data")), (12, _sign(10, "data"))], _steps(10))
    assert reading.limit_s() is None


def test_time_in_which_nobody_looked_is_no_silence() -> None:
    away = _looks([(10_000, _sign(10))], _steps(10))
    assert (away.age_s, away.is_over_limit(floor_s=MAX_PROBE_GAP_S)) == (MAX_PROBE_GAP_S, False)


def test_a_report_that_cannot_be_read_is_no_silence_either() -> None:
    deaf = _looks([(20 + each, None) for each in range(500)], _steps(10))
    assert (deaf.age_s, deaf.is_over_limit(floor_s=10)) == (0, False)


def test_a_clock_that_goes_back_takes_nothing_away() -> None:
    assert _looks([(5, _sign(10))], _steps(10)).age_s == 0


def test_steps_that_shrink_are_not_counted_as_taken() -> None:
    assert _looks([(11, _sign(3))], _steps(10)).steps == 10


# --- Rates


def _worked(heartbeat: Heartbeat, seconds: int, per_s: int, start: int = 0, done: int = 0) -> Heartbeat:
    looks = ((start + s, _sign(done + s * per_s, items=done + s * per_s)) for s in range(1, seconds + 1))
    return _looks(looks, heartbeat)


def test_a_rate_is_items_over_time() -> None:
    busy = _worked(Heartbeat(), 100, 8)
    assert busy.rate == pytest.approx(8)
    assert busy.recent is not None
    assert [busy.recent.mean, busy.recent.deviation] == pytest.approx([8, 0])


def test_the_recent_rate_forgets_and_the_mean_one_does_not() -> None:
    slower = _worked(_worked(Heartbeat(window_s=60), 300, 10), 120, 1, start=300, done=3000)
    assert slower.recent is not None
    assert slower.recent.mean == pytest.approx(1, rel=0.05)
    assert slower.rate == pytest.approx(3120 / 420, rel=0.02)


def test_the_rate_of_one_that_hangs_falls_to_nothing() -> None:
    busy = _worked(Heartbeat(window_s=60), 100, 10)
    hung = _looks([(100 + s, _sign(1000, items=1000)) for s in range(1, 200)], busy)
    assert hung.recent is not None
    assert hung.recent.mean == 0


def test_a_few_seconds_are_no_rate() -> None:
    assert _worked(Heartbeat(), 5, 10).recent is None
    assert _worked(Heartbeat(), 5, 10).rate is None


def test_two_points_have_no_spread() -> None:
    two = _looks([(0, _sign(1, items=10)), (20, _sign(2, items=30))])
    assert two.recent is not None
    assert (two.recent.mean, two.recent.deviation, two.recent.count) == (1, 0, 1)


def test_a_window_is_covered_by_a_bounded_number_of_points() -> None:
    long = _worked(Heartbeat(window_s=64), 500, 1)
    assert SAMPLES / 2 < len(long.points) <= SAMPLES + 2
    assert long.points[-1].at - long.points[0].at >= 63


@given(
    st.lists(st.tuples(st.floats(0, 1000), st.integers(0, 50), st.sampled_from(["train", "eval", "data"])))
)
def test_an_age_never_exceeds_the_time_that_was_looked_at(looks: list[tuple[float, int, str]]) -> None:
    now, heartbeat = 0.0, Heartbeat()
    for passed, step, phase in looks:
        now += passed
        heartbeat = heartbeat.observe(_sign(step, phase, items=step), now)
        assert 0 <= heartbeat.age_s <= heartbeat.idle_s
        assert heartbeat.age_s <= now
