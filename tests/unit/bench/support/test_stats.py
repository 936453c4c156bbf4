import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.support.stats import median, p95, paired_ratio, percentile, ratio, slope

seconds = st.floats(0.001, 1000)


def test_the_95th_percentile_lies_between_the_values_around_it() -> None:
    assert p95([*range(101)]) == 95
    assert percentile([1.0, 2.0], 0.5) == 1.5


def test_one_value_is_its_own_median_and_tail() -> None:
    assert median([3.0]) == p95([3.0]) == 3.0


@given(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=8))
def test_the_ratio_of_medians_lies_in_the_range_of_what_the_rounds_allow(
    rounds: list[tuple[float, float]],
) -> None:
    ours, theirs = zip(*rounds, strict=True)
    found = ratio(ours, theirs)
    assert found.value == median(ours) / median(theirs)
    assert min(ours) / max(theirs) <= found.low <= found.high <= max(ours) / min(theirs)


def test_rounds_that_were_disturbed_for_both_do_not_widen_the_interval() -> None:
    theirs = [1.0, 9.0, 2.0, 30.0, 1.5]
    found = ratio([2 * value for value in theirs], theirs)
    assert (found.value, found.low, found.high) == (2.0, 2.0, 2.0)


def test_the_same_measurements_give_the_same_interval_again() -> None:
    ours, theirs = [1.0, 2.0, 3.0, 5.0], [2.0, 2.5, 2.0, 4.0]
    assert ratio(ours, theirs) == ratio(ours, theirs)


@pytest.mark.parametrize("theirs", [[], [1.0]])
def test_series_of_different_rounds_are_not_compared(theirs: list[float]) -> None:
    with pytest.raises(ValueError, match="not measured in the same rounds"):
        ratio(theirs * 2, theirs)


def test_a_straight_line_has_one_slope_and_no_doubt_about_it() -> None:
    found = slope([3.0, 5.0, 7.0, 9.0])
    assert (found.value, found.low, found.high) == (2.0, 2.0, 2.0)


def test_one_odd_value_does_not_tilt_the_slope() -> None:
    assert slope([1.0, 1.0, 1.0, 99.0, 1.0, 1.0]).value == 0.0


def test_one_value_has_no_slope() -> None:
    with pytest.raises(ValueError, match="have no slope"):
        slope([1.0])


def test_a_paired_ratio_ignores_what_lasts_longer_than_a_round() -> None:
    theirs = [1.0, 50.0, 60.0, 70.0, 2.0]
    found = paired_ratio([1.5 * value for value in theirs[:-1]] + [2.0], theirs)
    assert (found.value, found.high) == (1.5, 1.5)
