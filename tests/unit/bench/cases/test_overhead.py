"""The loops that are compared do the same work, and lines say what was found."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from bench.cases.overhead import CASES, SETTLING, Measured, compared, joined, spec_of
from bench.rivals import loops as arms
from bench.support.lockstep import Ended, Gate, Missing, Setup
from bench.support.result import NotMeasured, Result

STEPS = SETTLING + 2 * 3 + 1


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(mode=False)


class Open(Gate):
    """A gate that is never closed, and remembers who came by."""

    def __init__(self) -> None:
        self.stalled_s = 0.0
        self.seen: list[int] = []

    def pass_by(self, batch: int) -> None:
        self.seen.append(batch)


def train(loop: Callable[[Setup, Gate], Ended], directory: Path) -> tuple[Ended, list[int]]:
    gate = Open()
    directory.mkdir()
    return loop(Setup("", directory, spec_of(CASES[-1], 2, 3), SETTLING, 3), gate), gate.seen


def test_the_trainer_and_the_loop_by_hand_take_the_same_batches_to_the_same_bits(tmp_path: Path) -> None:
    ours, by_us = train(arms.ours, tmp_path / "ours")
    by_hand, by_it = train(arms.by_hand, tmp_path / "by hand")
    assert ours == by_hand
    assert by_us == by_it == list(range(STEPS))


ONE = Measured((0.2, 0.2), (0.1, 0.1), Ended(1.25, "abc"))
OTHER = Measured((0.4, 0.4), (0.4, 0.4), Ended(1.25, "def"))


def test_time_and_processor_time_are_compared_and_what_was_learnt() -> None:
    wall, busy = compared(CASES[0], "Lightning", ONE, OTHER)
    assert isinstance(wall, Result)
    assert isinstance(busy, Result)
    assert wall.ratio is not None
    assert busy.ratio is not None
    assert (wall.ratio.value, busy.ratio.value) == (0.5, 0.25)
    assert (wall.met, busy.met) == (True, None)
    assert wall.note.startswith("other bits at the end: held-out loss 1.250000")


def test_equal_weights_are_said_to_be_equal() -> None:
    wall, _ = compared(CASES[0], "loop by hand", ONE, ONE)
    assert isinstance(wall, Result)
    assert wall.note.startswith("same weights at the end, bit for bit")


@pytest.mark.parametrize("pair", [(ONE, Missing("lightning")), (Missing("lightning"), ONE)])
def test_a_missing_framework_is_a_line_that_says_so(
    pair: tuple[Measured | Missing, Measured | Missing],
) -> None:
    [line] = compared(CASES[0], "Lightning", *pair)
    assert line == NotMeasured("overhead", "step, beside Lightning", "lightning is not installed")


def test_sittings_are_put_one_after_the_other() -> None:
    assert joined([ONE, OTHER]) == Measured((0.2, 0.2, 0.4, 0.4), (0.1, 0.1, 0.4, 0.4), OTHER.ended)


def test_a_framework_that_is_missing_once_is_missing() -> None:
    assert joined([ONE, Missing("lightning")]) == Missing("lightning")
