"""Compatibility of a checkpoint with a training."""

import pytest

from jobs.checkpoint.signatures import differences, same_training, signature
from jobs.training.failures import InvalidSpec

SAVED = {"model": "m", "optimizer": "o", "data": "d", "schedule": "s", "seed": "1", "numerics": "n"}


def test_equal_signatures_have_no_differences() -> None:
    assert differences(SAVED, SAVED) == ()
    assert same_training(SAVED, SAVED)


@pytest.mark.parametrize("name", ["model", "optimizer", "data"])
def test_a_state_that_cannot_be_taken_up_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidSpec, match=f"other {name};"):
        differences(SAVED, {**SAVED, name: "x"})


@pytest.mark.parametrize("name", ["schedule", "seed", "numerics"])
def test_a_state_that_only_goes_on_differently_is_named(name: str) -> None:
    assert differences(SAVED, {**SAVED, name: "x"}) == (name,)


def test_rounding_does_not_make_it_another_training() -> None:
    assert same_training(SAVED, {**SAVED, "numerics": "x"})
    assert not same_training(SAVED, {**SAVED, "schedule": "x"})


def test_a_checkpoint_without_signatures_fits_nothing() -> None:
    with pytest.raises(InvalidSpec, match="other model, optimizer, data"):
        differences({}, SAVED)


def test_a_signature_does_not_depend_on_the_order_of_keys() -> None:
    assert signature({"a": 1, "b": 2}) == signature({"b": 2, "a": 1})
