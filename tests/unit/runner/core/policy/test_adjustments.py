"""Remedies as settled values: what "half" comes to is decided once, when the facts are there."""

import pytest

from runner.core.policy.facts import Known
from runner.core.policy.model import Adjustment, Knob
from runner.core.policy.turned import Turned, turn

MICRO = Adjustment(Knob.MICRO_BATCH, "halve")
EVAL = Adjustment(Knob.EVAL_BATCH, "halve")
WORKERS = Adjustment(Knob.WORKERS, "halve")
SAFER = Adjustment(Knob.PRECISION, "safer")
OFF = Adjustment(Knob.COMPILE, "off")
OTHER = Adjustment(Knob.DEVICE, "other")
PLAIN = Adjustment(Knob.PROFILE, "compat")


@pytest.mark.parametrize(
    ("adjustment", "facts", "after"),
    [
        (MICRO, {"effective.micro_batch": 256}, Turned(micro_batch=128)),
        (MICRO, {"effective.micro_batch": 5}, Turned(micro_batch=2)),
        (MICRO, {"effective.micro_batch": 1}, Turned(micro_batch=1)),
        (MICRO, {}, Turned()),
        (EVAL, {"effective.eval_batch": 64, "effective.micro_batch": 8}, Turned(eval_batch=32)),
        (WORKERS, {"effective.workers": 3}, Turned(loader_workers=1)),
        (WORKERS, {"effective.workers": 1}, Turned(loader_workers=0)),
        (SAFER, {"effective.precision": "fp16"}, Turned(precision="bf16")),
        (SAFER, {"effective.precision": "tf32"}, Turned(precision="fp32")),
        (SAFER, {"effective.precision": "fp32"}, Turned(precision="fp32")),
        (SAFER, {}, Turned(precision="fp32")),
        (OFF, {}, Turned(compile="off")),
        (OTHER, {}, Turned(avoid=("GPU-a", "GPU-b"))),
        (PLAIN, {}, Turned(profile="compat")),
    ],
)
def test_a_remedy_is_remembered_as_a_value(
    adjustment: Adjustment, facts: dict[str, Known], after: Turned
) -> None:
    assert turn(Turned(), (adjustment,), facts, ("GPU-a", "GPU-b")) == after


def test_remedies_add_up_and_a_number_that_nobody_knows_stays_as_it_was() -> None:
    before = Turned(micro_batch=64, avoid=("GPU-b", "GPU-c"))
    after = turn(before, (OFF, MICRO, OTHER), {}, ("GPU-a", "GPU-b"))
    assert after == Turned(micro_batch=64, compile="off", avoid=("GPU-b", "GPU-c", "GPU-a"))
    assert turn(before, (), {}, ("GPU-a",)) == before


def test_only_what_was_turned_is_laid_over_a_profile() -> None:
    assert Turned(loader_workers=0, precision="fp32", profile="cuda", avoid=("GPU-a",)).switches == {
        "loader_workers": 0,
        "precision": "fp32",
    }
    assert Turned().switches == {}
