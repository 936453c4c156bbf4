"""gogooku3's restart by the figures of its report, and how its replay on this machine is judged."""

from pathlib import Path
from typing import Any

import pytest

from bench.support.changes import Offer, choose
from runner.files.job.load import read_job
from runner.files.policy.load import load_named_policy
from scripts.demo_restart_told import (
    EPOCH,
    POLICY,
    SHARE,
    Case,
    job_file,
    report,
    seconds_from_decision,
    told,
    told_well,
)


def test_by_the_figures_of_the_report_a_checkpoint_before_validation_saves_everything() -> None:
    said = "\n".join(told())
    assert "5,320 of 6,291 batches in 45 min 21 s: 0.51 s each" in said
    assert "keep       8.3 " in said
    assert "restart   25.0 " in said
    assert "resume     6.3   with a checkpoint before validation" in said
    assert "the restart lost 16.7 min against going on" in said


@pytest.mark.parametrize(("saved", "verdict"), [(0, "restart"), (400, "resume")])
def test_the_verdict_depends_on_whether_it_was_saved_before_the_validation(saved: int, verdict: str) -> None:
    offer = Offer(
        "as told", 800, 400, 14.0, 37.0, saved=saved, eval_every=400, eval_now_s=31, eval_new_s=3,
        evaluated=SHARE, bar=True, start_s=10,
    )  # fmt: skip
    assert choose(offer, load_named_policy(POLICY)) == verdict


def case(outcome: str, real: dict[str, float]) -> Case:
    answer: dict[str, Any] = {
        "outcome": outcome,
        "econ": {
            "seconds": {"keep": 60.0, "resume": None, "restart": 40.0},
            "expected": {"keep": 64.0, "resume": None, "restart": 30.0},
        },
    }
    return Case(answer, real)


def test_a_verdict_is_right_if_it_was_the_fastest_and_each_end_lay_within_its_bounds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    right = case("restart", {"keep": 70.0, "restart": 39.0})
    assert right.bounds("restart") == (22.5, 40.0)
    assert right.bounds("keep") == (48.0, 80.0)
    assert right.bounds("resume") is None
    assert told_well(right)
    assert not told_well(case("keep", {"keep": 70.0, "restart": 39.0}))
    assert not told_well(case("restart", {"keep": 90.0, "restart": 39.0}))
    report(right, saved=False)
    said = capsys.readouterr().out
    assert "restart  predicted  22.5 to  40.0   took  39.0   chosen fastest" in said
    assert "resume   predicted not possible: nothing is saved" in said


def test_what_is_left_after_the_decision_is_read_from_the_metrics() -> None:
    lines = [{"step": step, "loss": 1.0, "time": 100.0 + step} for step in range(1, EPOCH + 1)]
    lines += [{"step": EPOCH, "eval_loss": 1.0, "time": 110.0 + EPOCH}]
    lines += [
        {"step": EPOCH + step, "loss": 1.0, "time": 110.0 + EPOCH + step} for step in range(1, EPOCH + 1)
    ]
    lines += [{"step": 2 * EPOCH, "eval_loss": 1.0, "time": 120.0 + 2 * EPOCH}]
    assert seconds_from_decision(lines) == pytest.approx(20 + EPOCH - 10 * SHARE)


@pytest.mark.parametrize("before_eval", [True, False])
def test_the_job_files_are_valid(tmp_path: Path, *, before_eval: bool) -> None:
    read = read_job(job_file(tmp_path, "told", "off", before_eval=before_eval))
    assert read.checkpoint.before_eval is before_eval
    assert read.policy == POLICY
