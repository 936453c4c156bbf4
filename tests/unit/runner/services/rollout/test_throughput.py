"""Rates from what a job has written, which may be anything."""

import json
import math
from dataclasses import replace
from datetime import UTC, datetime
from random import Random

import pytest

from runner.core.policy.economics import Evaluations, Rate
from runner.services.rollout.throughput import (
    FEW,
    MetricsLine,
    Pair,
    RunningEvaluation,
    Throughput,
    comparable_rates,
    compare_beside,
    expect_evaluations,
    measure_throughput,
    parse_metrics,
    present_throughput,
    seconds_to_first_step,
    without_warm_up,
)


def steady(count: int, seconds: float, *, every: int = 1, began: float = 1000.0) -> list[MetricsLine]:
    return [MetricsLine(began + i * seconds, (i + 1) * every, trained=True) for i in range(count)]


def test_a_steady_job_has_the_rate_that_it_keeps_and_no_spread() -> None:
    found = measure_throughput(steady(31, 0.5))
    assert found is not None
    assert found.steps.mean == pytest.approx(2.0)
    assert found.steps.deviation == pytest.approx(0.0, abs=1e-9)
    assert found.steps.count == 30


def test_lines_every_ten_steps_give_the_same_rate() -> None:
    found = measure_throughput(steady(25, 5.0, every=10))
    assert found is not None
    assert found.steps.mean == pytest.approx(2.0)


def test_too_few_lines_are_no_rate() -> None:
    assert measure_throughput(steady(20, 0.5)) is None
    assert measure_throughput(steady(21, 0.5)) is not None
    assert measure_throughput([]) is None


def test_many_lines_become_a_few_dozen_windows() -> None:
    found = measure_throughput(steady(1001, 0.5))
    assert found is not None
    assert 30 <= found.steps.count <= 32


def test_only_what_lies_between_two_moments_counts() -> None:
    slow, fast = steady(30, 1.0), steady(30, 0.1, began=2000.0)
    fast = [MetricsLine(line.time, line.step + 30, trained=True) for line in fast]
    early, late = (
        measure_throughput([*slow, *fast], (0.0, 1500.0)),
        measure_throughput([*slow, *fast], (2000.0, math.inf)),
    )
    assert early is not None
    assert late is not None
    assert early.steps.mean == pytest.approx(1.0)
    assert late.steps.mean == pytest.approx(10.0)


def test_a_time_that_does_not_count_is_left_out_with_the_stretches_that_reach_into_it() -> None:
    alone = steady(30, 1.0)
    beside = [MetricsLine(1029.0 + 3.0 * i, 30 + i, trained=True) for i in range(1, 11)]
    after = [MetricsLine(1059.0 + i, 40 + i, trained=True) for i in range(1, 11)]
    found = measure_throughput([*alone, *beside, *after], without=(1029.5, 1058.5))
    assert found is not None
    assert found.steps.mean == pytest.approx(1.0)
    assert found.steps.count == 39


@pytest.mark.parametrize("load", [1.0, 2.5, 8.0])
def test_a_change_is_compared_with_the_job_of_the_same_time_whatever_the_load(load: float) -> None:
    alone = measure_throughput(steady(40, 1.0))
    beside = measure_throughput(steady(12, load), least=FEW)
    canary = measure_throughput(steady(40, load / 4, began=5000.0))
    pair = compare_beside(alone, beside, canary)
    assert pair.now is not None
    assert pair.new is not None
    assert pair.slowed == pytest.approx(load)
    assert pair.now.steps.mean == pytest.approx(1.0)
    assert pair.new.steps.mean == pytest.approx(4.0)


def test_both_bounds_are_those_of_the_time_in_which_they_were_compared() -> None:
    alone, new = Throughput(Rate(4.0, 0.0, 30), 8.0), Throughput(Rate(6.0, 1.5, 25), 1.0)
    pair = compare_beside(alone, Throughput(Rate(2.0, 0.5, 16)), new)
    assert pair.now == Throughput(Rate(4.0, 1.0, 16), 8.0)
    assert pair.new == Throughput(Rate(12.0, 3.0, 25), 0.5)


def test_without_steps_of_the_job_in_that_time_the_canary_is_a_lower_bound() -> None:
    alone, new = Throughput(Rate(4.0, 0.0, 30)), Throughput(Rate(2.0, 0.5, 25))
    assert measure_throughput(steady(FEW, 1.0), least=FEW) is None
    assert compare_beside(alone, None, new) == (alone, new, None)


def test_the_rate_is_steps_by_time_and_not_the_mean_of_rates() -> None:
    times = [0.0]
    for i in range(40):
        times.append(times[-1] + (0.5 if i % 2 else 1.5))
    found = measure_throughput([MetricsLine(time, i + 1, trained=True) for i, time in enumerate(times)])
    assert found is not None
    assert found.steps.mean == pytest.approx(1.0)
    assert found.steps.deviation == pytest.approx(0.5, rel=0.02)


def test_an_evaluation_is_counted_by_itself() -> None:
    before = steady(30, 1.0)
    looked = MetricsLine(before[-1].time + 4.0, 30, trained=False)
    after = [MetricsLine(looked.time + 1.0 + i, 31 + i, trained=True) for i in range(20)]
    found = measure_throughput([*before, looked, *after])
    assert found is not None
    assert found.steps.mean == pytest.approx(1.0)
    assert found.eval_s == pytest.approx(4.0)


SEEN = Throughput(Rate(2.0, 0.1, 25), eval_s=5.0)


@pytest.mark.parametrize(
    ("old", "new", "running", "expected"),
    [
        (SEEN, Throughput(Rate(2.0, 0.1, 25), eval_s=1.0), None, Evaluations(10, 5.0, 1.0)),
        (SEEN, Throughput(Rate(2.0, 0.1, 25)), None, Evaluations(10, 5.0, 5.0)),
        (None, None, None, Evaluations(10)),
        (SEEN, None, RunningEvaluation(4.0), Evaluations(10, 5.0, 5.0, 1.0)),
        (SEEN, None, RunningEvaluation(7.0), Evaluations(10, 7.0, 7.0, 0.0)),
        (SEEN, None, RunningEvaluation(4.0, 3.0), Evaluations(10, 7.0, 7.0, 3.0)),
        (None, None, RunningEvaluation(4.0), Evaluations(10, 4.0, 4.0, 0.0)),
        (Throughput(Rate(2.0, 0.1, 25)), SEEN, None, Evaluations(10, 5.0, 5.0)),
        (None, SEEN, RunningEvaluation(4.0), Evaluations(10, 5.0, 5.0, 1.0)),
    ],
)
def test_an_evaluation_takes_as_long_as_was_seen_of_it_or_as_its_log_tells(
    old: Throughput | None,
    new: Throughput | None,
    running: RunningEvaluation | None,
    expected: Evaluations,
) -> None:
    assert expect_evaluations(10, old, new, running) == expected


def test_a_step_that_is_reported_twice_takes_no_time() -> None:
    twice = [line for each in steady(31, 0.5) for line in (each, each)]
    found = measure_throughput(twice)
    assert found is not None
    assert found.steps.mean == pytest.approx(2.0)


@pytest.mark.parametrize(
    "foolish",
    [
        b"{",
        b"[]",
        b"null",
        b'{"step": 1}',
        b'{"time": "x", "step": 1}',
        b'{"time": 1e999, "step": 1}',
        b'{"time": 1, "step": -1}',
        b'{"time": 1, "step": 1e999}',
        b'{"time": null, "step": 1}',
        b"[" * 100_000,
        b"\xff",
    ],
)
def test_a_line_that_makes_no_sense_is_left_out(foolish: bytes) -> None:
    good = json.dumps({"time": 1.5, "step": 3, "loss": 0.1}).encode()
    assert parse_metrics(foolish + b"\n" + good) == (MetricsLine(1.5, 3, trained=True),)


def test_a_line_without_a_loss_is_about_an_evaluation() -> None:
    assert parse_metrics(b'{"time": 1, "step": 2, "eval_loss": 3}') == (MetricsLine(1.0, 2, trained=False),)


def test_an_evaluation_that_is_rarer_than_the_time_looked_at_is_known_all_the_same() -> None:
    """It was taken to cost nothing: that one makes evaluations 9 times as fast was worth nothing."""
    lines, at = [], 0.0
    for step in range(1, 401):
        at += 1.0
        lines.append(MetricsLine(at, step, trained=True))
        if step % 100 == 0:
            at += 900.0
            lines.append(MetricsLine(at, step, trained=False))
    recent = (at - 990.0, at - 890.0)
    alone = measure_throughput(lines, recent)
    assert alone is not None
    assert alone.eval_s is None
    found = present_throughput(lines, [(at + 1, at + 2), recent])
    assert found is not None
    assert (found.steps, found.eval_s) == (alone.steps, 900.0)
    assert present_throughput(lines, [(at + 1, at + 2)]) == measure_throughput(lines)


def test_steps_that_compile_belong_to_the_start() -> None:
    launched = datetime.fromtimestamp(990.0, UTC)
    even = steady(60, 0.5)
    assert without_warm_up(even) == even
    slow = [
        replace(line, time=line.time + (40.0 if i >= 2 else 0.0) + (20.0 if i >= 5 else 0.0))
        for i, line in enumerate(even)
    ]
    trained = without_warm_up(slow)
    assert trained == slow[5:]
    found = measure_throughput(trained)
    assert found is not None
    assert found.steps.mean == pytest.approx(2.0)
    assert found.steps.deviation == pytest.approx(0.0, abs=1e-9)
    assert seconds_to_first_step(slow, launched, 2.0) == pytest.approx(9.5)
    assert seconds_to_first_step(slow, launched, 2.0, trained) == pytest.approx(69.5)


def test_pauses_that_come_later_too_are_no_warm_up() -> None:
    """Left out of the first steps alone, they would make a change faster than it is."""
    pauses = [
        replace(line, time=line.time + 40.0 * (i > 5) + 40.0 * (i > 40))
        for i, line in enumerate(steady(60, 0.5))
    ]
    assert without_warm_up(pauses) == pauses


def test_an_evaluation_among_the_first_steps_is_no_warm_up() -> None:
    lines = [replace(line, time=line.time + 40.0 * (i > 5)) for i, line in enumerate(steady(60, 0.5))]
    lines.insert(6, MetricsLine(lines[5].time + 40.0, 6, trained=False))
    assert without_warm_up(lines) == lines
    found = measure_throughput(lines)
    assert found is not None
    assert found.eval_s == pytest.approx(40.0)


@pytest.mark.parametrize(("alike", "most"), [(0.0, 4), (0.9, 4)])
def test_neighbours_that_are_alike_tell_less_than_as_many_others(alike: float, most: int) -> None:
    """Of forty measurements of a load that comes and goes, 11 surely had another rate than they truly had."""
    draw, wrong = Random(3), 0  # noqa: S311  not for cryptography
    for _ in range(40):
        at, off, lines = 0.0, 0.0, []
        for step in range(1, 302):
            off = alike * off + math.sqrt(1 - alike**2) * draw.gauss(0, 1)
            at += 1 + 0.2 * max(off, -4.0)
            lines.append(MetricsLine(at, step, trained=True))
        found = measure_throughput(lines)
        assert found is not None
        wrong += not found.steps.low <= 1.0 <= found.steps.high
    assert wrong <= most


def test_a_slow_step_in_the_middle_is_the_spread_of_a_rate() -> None:
    late = [
        replace(line, time=line.time + (40.0 if i >= 30 else 0.0)) for i, line in enumerate(steady(60, 0.5))
    ]
    assert without_warm_up(late) == late
    few = [
        replace(line, time=line.time + (40.0 if i >= 2 else 0.0)) for i, line in enumerate(steady(21, 0.5))
    ]
    assert without_warm_up(few) == few


def test_the_ratio_of_two_rates_is_as_sure_as_each_of_them() -> None:
    one, other = Throughput(Rate(4.0, 1.0, 25)), Throughput(Rate(8.0, 2.0, 25))
    now, new = comparable_rates(Pair(one, other))
    assert now is not None
    assert new is not None
    assert (now.mean, new.mean) == (4.0, 8.0)
    assert now.high / now.mean - 1 == pytest.approx(0.1 / math.sqrt(2))
    assert new.low / now.high > other.steps.low / one.steps.high
    exact = Throughput(Rate(4.0, 0.0, 25))
    assert comparable_rates(Pair(exact, exact)) == (exact.steps, exact.steps)
    assert comparable_rates(Pair(exact, one)) == (exact.steps, one.steps)
    assert comparable_rates(Pair(None, one)) == (None, one.steps)
    assert comparable_rates(Pair(one, None)) == (one.steps, None)
