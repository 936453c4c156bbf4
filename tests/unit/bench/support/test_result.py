import json

import pytest

from bench.support.result import Aim, NotMeasured, Result, Series, as_json, in_milliseconds

OURS = Series("ours", "ms", (30.0, 10.0, 20.0))
THEIRS = Series("theirs", "ms", (10.0, 5.0, 20.0))


@pytest.mark.parametrize(("limit", "met"), [(2.0, True), (1.9, False)])
def test_an_aim_for_a_ratio_is_met_by_the_ratio_of_the_medians(limit: float, *, met: bool) -> None:
    assert Result("x", OURS, THEIRS, Aim(limit, "ratio")).met is met


@pytest.mark.parametrize(("limit", "met"), [(20.0, True), (19.0, False)])
def test_an_aim_for_ourselves_is_met_whatever_stands_beside(limit: float, *, met: bool) -> None:
    assert Result("x", OURS, THEIRS, Aim(limit, "p50")).met is met


def test_without_an_aim_nothing_is_met_or_missed() -> None:
    assert Result("x", OURS).met is None


def test_the_kept_json_has_every_single_measurement() -> None:
    kept = json.loads(json.dumps(as_json(Result("x", OURS, THEIRS, Aim(2.0, "ratio"), "a note"))))
    assert kept["ours"]["values"] == [30.0, 10.0, 20.0]
    assert kept["theirs"]["values"] == [10.0, 5.0, 20.0]
    assert (kept["p50"], kept["met"], kept["ratio"]["value"]) == (20.0, True, 2.0)


def test_what_was_not_measured_is_kept_with_the_reason() -> None:
    assert as_json(NotMeasured("x", "beside y", "y is not installed"))["why"] == "y is not installed"


def test_seconds_become_milliseconds() -> None:
    assert in_milliseconds("x", (0.5, 2.0)).values == (500.0, 2000.0)


@pytest.mark.parametrize(("paired", "met"), [(False, False), (True, True)])
def test_an_aim_for_a_ratio_is_about_the_ratio_that_is_shown(*, paired: bool, met: bool) -> None:
    ours, theirs = Series("ours", "ms", (1.0, 8.0, 9.0)), Series("theirs", "ms", (1.0, 4.0, 9.0))
    assert Result("x", ours, theirs, Aim(1.5, "ratio"), paired=paired).met is met
