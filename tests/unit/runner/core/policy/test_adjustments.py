"""Remedies as settled values: what "half" comes to is decided once, when the facts are there."""

import pytest

from runner.core.policy.adjustments import (
    Overrides,
    apply_adjustments,
    can_adjust,
    describe_change,
    describe_exhausted,
)
from runner.core.policy.facts import FactValue
from runner.core.policy.model import Adjustment, Setting

MICRO = Adjustment(Setting.MICRO_BATCH, "halve")
EVAL = Adjustment(Setting.EVAL_BATCH, "halve")
WORKERS = Adjustment(Setting.WORKERS, "halve")
SAFER = Adjustment(Setting.PRECISION, "safer")
OFF = Adjustment(Setting.COMPILE, "off")
OTHER = Adjustment(Setting.DEVICE, "other")
FEWER = Adjustment(Setting.NODES, "fewer")
MORE = Adjustment(Setting.MEMORY, "1.5x")
GIB = 1024**3
PLAIN = Adjustment(Setting.PROFILE, "compat")


@pytest.mark.parametrize(
    ("adjustment", "facts", "after"),
    [
        (MICRO, {"effective.micro_batch": 256}, Overrides(micro_batch=128)),
        (MICRO, {"effective.micro_batch": 5}, Overrides(micro_batch=2)),
        (MICRO, {"effective.micro_batch": 1}, Overrides(micro_batch=1)),
        (MICRO, {}, Overrides()),
        (EVAL, {"effective.eval_batch": 64, "effective.micro_batch": 8}, Overrides(eval_batch=32)),
        (WORKERS, {"effective.workers": 3}, Overrides(loader_workers=1)),
        (WORKERS, {"effective.workers": 1}, Overrides(loader_workers=0)),
        (SAFER, {"effective.precision": "fp16"}, Overrides(precision="bf16")),
        (SAFER, {"effective.precision": "tf32"}, Overrides(precision="fp32")),
        (SAFER, {"effective.precision": "fp32"}, Overrides(precision="fp32")),
        (SAFER, {}, Overrides(precision="fp32")),
        (OFF, {}, Overrides(compile="off")),
        (OTHER, {}, Overrides(avoid=("GPU-a", "GPU-b"))),
        (FEWER, {"effective.nodes": 4}, Overrides(nodes=2)),
        (FEWER, {"effective.nodes": 1}, Overrides(nodes=1)),
        (MORE, {"effective.memory": 8 * GIB, "host.memory": 64 * GIB}, Overrides(memory_bytes=12 * GIB)),
        (MORE, {"effective.memory": 8 * GIB, "host.memory": 9 * GIB}, Overrides(memory_bytes=9 * GIB)),
        (MORE, {"effective.memory": 8 * GIB}, Overrides()),
        (PLAIN, {}, Overrides(profile="compat")),
    ],
)
def test_a_remedy_is_remembered_as_a_value(
    adjustment: Adjustment, facts: dict[str, FactValue], after: Overrides
) -> None:
    assert apply_adjustments(Overrides(), (adjustment,), facts, ("GPU-a", "GPU-b")) == after


def test_remedies_add_up_and_a_number_that_nobody_knows_stays_as_it_was() -> None:
    before = Overrides(micro_batch=64, avoid=("GPU-b", "GPU-c"))
    after = apply_adjustments(before, (OFF, MICRO, OTHER), {}, ("GPU-a", "GPU-b"))
    assert after == Overrides(micro_batch=64, compile="off", avoid=("GPU-b", "GPU-c", "GPU-a"))
    assert apply_adjustments(before, (), {}, ("GPU-a",)) == before


def test_only_what_was_turned_is_laid_over_a_profile() -> None:
    assert Overrides(loader_workers=0, precision="fp32", profile="cuda", avoid=("GPU-a",)).switches == {
        "loader_workers": 0,
        "precision": "fp32",
    }
    assert Overrides().switches == {}


def test_a_number_of_nodes_that_nobody_knows_cannot_be_halved() -> None:
    assert not can_adjust(FEWER, {})
    assert can_adjust(FEWER, {"effective.nodes": 2})
    assert not can_adjust(FEWER, {"effective.nodes": 1})


def test_memory_grows_up_to_that_of_the_machine_also_for_a_program_without_settings() -> None:
    facts: dict[str, FactValue] = {
        "turnable": False,
        "effective.memory": 48 * GIB,
        "host.memory": 64 * GIB,
    }
    assert can_adjust(MORE, facts)
    assert describe_change(MORE, facts) == "memory 48GiB → 64GiB"
    odd = {**facts, "host.memory": 52 * GIB + 7}  # as nine tenths of a machine are
    assert describe_change(MORE, odd) == "memory 48GiB → 52GiB"
    assert not can_adjust(MORE, {**odd, "effective.memory": 52 * GIB})
    full = {**facts, "effective.memory": 64 * GIB}
    assert not can_adjust(MORE, full)
    assert describe_exhausted((MORE,), full) == "memory cannot go any further"
    assert not can_adjust(MORE, {"effective.memory": 8 * GIB})
    assert describe_change(MORE, {}) == "memory 1.5x"
