"""Comparison at the scale of 10,000 sequences, and the counts in it."""

import pytest

from bench.cases.loader_memory import Seen
from bench.cases.stream_scale import make_lines, make_plan, ways
from bench.support.process import HeldMemory
from bench.support.result import CannotMeasure, Result


def seen(at_s: float, step: int, distinct: float) -> Seen:
    return Seen(at_s, step, HeldMemory(2 * distinct, distinct))


def test_every_way_reads_the_same_rows_and_each_process_its_own_share() -> None:
    plans = [make_plan(10_000, 8, way) for way in ways(10_000)]
    assert {plan.shards for plan in plans} == {8}
    assert {(plan.batch_size, plan.synthetic_sequences) for plan in plans} == {(512, 10_000)}
    one, buffered, loaded = (plan.steps for plan in plans)
    assert buffered == loaded == round(2 * 8_000 * 4 / 512)
    assert 16 <= one < buffered / 4


def test_a_small_trial_has_several_steps_for_each_process() -> None:
    assert all(make_plan(48, 2, way).steps >= 4 for way in ways(48))


def test_the_rate_is_that_of_the_second_half_and_the_memory_the_most_in_it() -> None:
    looks = [seen(0, 1, 900.0), seen(9, 10, 10.0), seen(10, 12, 30.0), seen(13, 20, 20.0)]
    rate, memory = make_lines("a way", looks, rows=8)
    assert isinstance(rate, Result)
    assert isinstance(memory, Result)
    assert rate.ours.values == (8 * 10 / 4,)
    assert memory.ours.values == (30.0,)
    assert memory.note == "60 MiB if each process counts what it shares"


@pytest.mark.parametrize("looks", [[seen(0, 5, 1.0)], [seen(0, 1, 1.0), seen(9, 10, 1.0)]])
def test_a_training_that_nobody_saw_twice_is_not_measured(looks: list[Seen]) -> None:
    with pytest.raises(CannotMeasure, match="the training was over before"):
        make_lines("a way", looks, rows=8)
