import json
from typing import Any

import pytest

from runner.cli.bench import comparison
from runner.cli.bench.comparison import Measurement, as_json, compare, differences, make_measurement, table

RESULT = {"step": 40, "metrics": {"loss": 0.5, "eval_loss": 0.4, "seconds_train": 8.0, "seconds_eval": 3.0}}


def lines(*rates: float) -> list[dict[str, Any]]:
    return [{"step": i, "items_per_s": rate, "data_wait": 0.2} for i, rate in enumerate(rates)]


def one(rate: float = 100.0, **result: object) -> Measurement:
    evaluations: list[dict[str, Any]] = [{"step": 20, "eval_loss": 0.5}, {"step": 40, "eval_loss": 0.4}]
    said = [*lines(1.0, rate, rate), *evaluations]
    return make_measurement("000001", {**RESULT, **result}, said, {"device": "cpu"}, 2.0**30)


def test_the_first_lines_are_not_part_of_the_pace() -> None:
    assert one(100.0).items_per_s == 100.0
    assert make_measurement("1", RESULT, lines(7.0), {}, None).items_per_s == 7.0


def test_evaluation_time_is_that_of_one_evaluation_and_none_where_there_was_none() -> None:
    assert one().eval_s == 1.5
    assert make_measurement("1", RESULT, lines(7.0), {}, None).eval_s is None


def test_seconds_by_phase_are_apart_from_the_metrics() -> None:
    assert one().seconds == {"train": 8.0, "eval": 3.0}
    assert one().metrics == {"loss": 0.5, "eval_loss": 0.4}


def test_a_reported_peak_counts_more_than_the_last_heartbeat() -> None:
    assert make_measurement("1", RESULT, [{"memory_peak": 9.0}], {}, 4.0).memory_bytes == 9.0
    assert make_measurement("1", RESULT, [], {}, 4.0).memory_bytes == 4.0


def test_nonsense_in_a_report_is_no_number() -> None:
    found = make_measurement("1", {}, [{"items_per_s": "fast"}, {"items_per_s": True}], {}, None)
    assert (found.items_per_s, found.memory_bytes, found.step) == (None, None, 0)


def test_ratios_are_against_the_first_arm_and_say_how_much_faster() -> None:
    slow, fast = compare({"slow": [one(100.0), one(120.0)], "fast": [one(300.0), one(360.0)]})
    assert (slow.items_ratio, fast.items_ratio) == (1.0, 3.0)
    assert (fast.items_low, fast.items_high, fast.eval_ratio) == (300.0, 360.0, 1.0)
    assert fast.seconds == {"train": 8.0, "eval": 3.0}


def test_metrics_within_the_tolerance_are_equal_work_and_others_are_named() -> None:
    near = one(metrics={"eval_loss": 0.4 * (1 + comparison.TOLERANCE / 2)})
    far = one(metrics={"eval_loss": 0.5}, step=39)
    assert differences(near, one()) == []
    assert differences(far, one()) == ["39 steps, not 40", "eval_loss 0.5, not 0.4"]
    assert differences(one(metrics={}), one()) == ["eval_loss is missing"]


def test_the_table_says_whether_the_work_was_equal() -> None:
    assert "\nequal work" in table(compare({"a": [one()], "b": [one(200.0)]}))
    text = table(compare({"a": [one()], "b": [one(200.0, step=39)]}))
    assert "not equal work (more than 1%): b: 39 steps, not 40" in text
    assert "\nequal work" not in text


def test_the_table_has_a_dash_for_what_nobody_reported() -> None:
    row = table(compare({"a": [make_measurement("1", {}, [], {}, None)]})).splitlines()[1]
    assert row.split() == ["a", *["-"] * 7]


@pytest.mark.parametrize("rate", [100.0, 250.0])
def test_the_json_has_every_figure(rate: float) -> None:
    found = as_json(compare({"a": [one(rate)]}), {"graph_cache": "why"}, {"machine": {}})
    again = json.loads(json.dumps(found))
    assert again["arms"][0]["items_per_s"] == rate
    assert (again["skipped"], again["arms"][0]["effective"]) == ({"graph_cache": "why"}, {"device": "cpu"})
