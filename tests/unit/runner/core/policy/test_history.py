import pytest

from runner.core.policy.catalog import validate_facts
from runner.core.policy.facts import DecisionPoint
from runner.core.policy.history import fingerprint


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("KeyError: 17", "KeyError: 4711"),
        ("ValueError at 0x7f1c00 in /a/b/train.py:88", "ValueError at 0x7fffff in /c/train.py:91"),
        ("lost 1.5 GiB", "lost 2 GiB"),
        ("run 0123456789abcdef failed\nand more", "run fedcba9876543210 failed\nand less"),
    ],
)
def test_what_varies_does_not_make_a_root_another(one: str, other: str) -> None:
    assert fingerprint("exception", one) == fingerprint("exception", other)


@pytest.mark.parametrize(
    ("one", "other"), [("KeyError: a", "KeyError: b"), ("ValueError in train.py", "ValueError in model.py")]
)
def test_what_is_said_does(one: str, other: str) -> None:
    assert fingerprint("exception", one) != fingerprint("exception", other)


def test_a_cause_that_says_it_all_is_its_own_fingerprint() -> None:
    assert fingerprint("device_out_of_memory", "tried to allocate 2 GiB") == "device_out_of_memory"
    assert fingerprint("exception", "  ") == "exception"


def test_a_fingerprint_is_a_fact() -> None:
    root = fingerprint("exception", "x" * 1000)
    assert len(root) == 120
    assert validate_facts({"root": root}, DecisionPoint.EXIT) == {"root": root}
