"""The loops that are compared do the same work, and lines say what was found."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from bench.cases.overhead import CASES, SETTLING, LoopTimes, compare, make_spec, merge_repeats
from bench.rivals import loops as arms
from bench.support.lockstep import MissingPackage, Setup, StepGate, TrainingResult
from bench.support.result import NotMeasured, Result

STEPS = SETTLING + 2 * 3 + 1


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(mode=False)


class Open(StepGate):
    """A gate that is never closed, and remembers who came by."""

    def __init__(self) -> None:
        self.stalled_s = 0.0
        self.seen: list[int] = []

    def wait_at(self, batch: int) -> None:
        self.seen.append(batch)


def train(
    loop: Callable[[Setup, StepGate], TrainingResult], directory: Path
) -> tuple[TrainingResult, list[int]]:
    gate = Open()
    directory.mkdir()
    return loop(Setup("", directory, make_spec(CASES[-1], 2, 3), SETTLING, 3), gate), gate.seen


def test_the_trainer_and_the_loop_by_hand_take_the_same_batches_to_the_same_bits(tmp_path: Path) -> None:
    ours, by_us = train(arms.train_with_runner, tmp_path / "ours")
    by_hand, by_it = train(arms.train_by_hand, tmp_path / "by hand")
    assert ours == by_hand
    assert by_us == by_it == list(range(STEPS))


ONE = LoopTimes((0.2, 0.2), (0.1, 0.1), TrainingResult(1.25, "abc"))
OTHER = LoopTimes((0.4, 0.4), (0.4, 0.4), TrainingResult(1.25, "def"))


def test_time_and_processor_time_are_compared_and_what_was_learnt() -> None:
    wall, busy = compare(CASES[0], "Lightning", ONE, OTHER)
    assert isinstance(wall, Result)
    assert isinstance(busy, Result)
    assert wall.ratio is not None
    assert busy.ratio is not None
    assert (wall.ratio.value, busy.ratio.value) == (0.5, 0.25)
    assert (wall.met, busy.met) == (True, None)
    assert wall.note.startswith("other bits at the end: held-out loss 1.250000")


def test_equal_weights_are_said_to_be_equal() -> None:
    wall, _ = compare(CASES[0], "loop by hand", ONE, ONE)
    assert isinstance(wall, Result)
    assert wall.note.startswith("same weights at the end, bit for bit")


@pytest.mark.parametrize("pair", [(ONE, MissingPackage("lightning")), (MissingPackage("lightning"), ONE)])
def test_a_missing_framework_is_a_line_that_says_so(
    pair: tuple[LoopTimes | MissingPackage, LoopTimes | MissingPackage],
) -> None:
    [line] = compare(CASES[0], "Lightning", *pair)
    assert line == NotMeasured("overhead", "step, beside Lightning", "lightning is not installed")


def test_sittings_are_put_one_after_the_other() -> None:
    assert merge_repeats([ONE, OTHER]) == LoopTimes((0.2, 0.2, 0.4, 0.4), (0.1, 0.1, 0.4, 0.4), OTHER.ended)


def test_a_framework_that_is_missing_once_is_missing() -> None:
    assert merge_repeats([ONE, MissingPackage("lightning")]) == MissingPackage("lightning")
