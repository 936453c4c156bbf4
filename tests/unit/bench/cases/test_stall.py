from pathlib import Path

import pytest

from bench.cases.stall import AT_ONCE, BACKGROUND, NEVER, make_setups, stall_percent
from bench.support.lockstep import Turn
from bench.support.scratch import QUICK, Scratch


def test_each_turn_has_one_save_in_its_middle(tmp_path: Path) -> None:
    for name, setup in make_setups(Scratch(QUICK, tmp_path), every=50, turns=3).items():
        saving, steps = setup.spec.checkpoint.every_steps, setup.spec.workload.steps
        assert steps is not None
        saved_after = [step for step in range(1, steps) if saving and step % saving == 0]
        assert saved_after == ([] if name == NEVER else [50, 100, 150])
        assert (setup.first, setup.every) == (25, 50)
        assert steps == 25 + 3 * 50 + 1


@pytest.mark.parametrize(("name", "in_background"), [(BACKGROUND, True), (AT_ONCE, False)])
def test_only_the_way_of_saving_differs(name: str, *, in_background: bool, tmp_path: Path) -> None:
    made = make_setups(Scratch(QUICK, tmp_path), every=50, turns=3)
    assert made[name].spec.profile.async_save is in_background
    assert made[name].spec.workload == made[NEVER].spec.workload


def test_how_long_a_training_stands_is_a_share_of_the_turn() -> None:
    assert stall_percent([Turn(2.0, 2.0, 0.5), Turn(4.0, 4.0, 0.0)]) == (25.0, 0.0)
