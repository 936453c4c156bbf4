"""gogooku3's restart by the figures of its report, and how its replay on this machine is judged."""

from pathlib import Path
from typing import Any

import pytest

from bench.support.changes import Offer, choose
from runner.files.job.load import parse_job
from runner.files.policy.load import load_named_policy
from scripts.demo_daemon import Daemon
from scripts.demo_restart import (
    EPOCH,
    POLICY,
    SHARE,
    Case,
    Outcome,
    decision_s,
    job_file,
    report,
    told,
    told_well,
    way,
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


@pytest.mark.parametrize(
    ("done", "saved", "every", "verdict"),
    [(84, 0, 100, "restart"), (284, 200, 100, "keep"), (84, 80, 20, "resume")],
)
def test_late_in_an_epoch_the_verdict_depends_on_what_is_left_and_what_is_saved(
    done: int, saved: int, every: int, verdict: str
) -> None:
    offer = Offer("84 % of an epoch", 300, done, 1.0, 5.0, saved=saved, every=every, start_s=5)
    assert choose(offer, load_named_policy(POLICY)) == verdict


def case(outcome: str, took_s: float, kept_s: float) -> Case:
    answer: dict[str, Any] = {
        "outcome": outcome,
        "econ": {
            "start_s": 3.2,
            "seconds": {"keep": 60.0, "resume": None, "restart": 40.0},
            "expected": {"keep": 64.0, "resume": None, "restart": 32.0},
        },
    }
    return Case(answer, {"restart": Outcome(took_s, kept_s, took_s / kept_s)})


@pytest.mark.parametrize("load", [1.0, 7.0])
def test_a_verdict_is_right_if_it_was_the_fastest_and_an_end_out_of_bounds_is_told(
    load: float, capsys: pytest.CaptureFixture[str]
) -> None:
    right = case("restart", 39.0 * load, 70.0 * load)
    assert right.bounds("restart") == pytest.approx((0.475 * 0.75, 0.55 * 1.25))
    assert right.bounds("keep") == (0.75, 1.25)
    assert right.bounds("resume") is None
    assert told_well(right)
    assert not told_well(case("keep", 39.0 * load, 70.0 * load))
    assert not told_well(case("restart", 80.0 * load, 70.0 * load))
    assert right.fastest == "restart"
    report(right, saved=False)
    said = capsys.readouterr().out
    assert f"0.36 to 0.69 of going on; took {39.0 * load:.1f} s, 0.56 of its twin's way   chosen" in said
    assert "resume   not possible: nothing is saved" in said
    assert "outside" not in said
    assert f"keep     expected  64.0 s; took {70.0 * load:.1f} s" in said
    report(case("restart", 60.0 * load, 70.0 * load), saved=False)
    assert (
        "0.86 of its twin's way   chosen fastest   outside of what was predicted" in capsys.readouterr().out
    )


def twin(slow: float) -> list[dict[str, float]]:
    """Return the metrics of two epochs, of which the second is so many times slower."""
    lines = [{"step": step, "loss": 1.0, "time": 100.0 + step} for step in range(1, EPOCH + 1)]
    lines += [{"step": EPOCH, "eval_loss": 1.0, "time": 150.0 + EPOCH}]
    lines += [
        {"step": EPOCH + step, "loss": 1.0, "time": 150.0 + EPOCH + slow * step}
        for step in range(1, EPOCH + 1)
    ]
    return [*lines, {"step": 2 * EPOCH, "eval_loss": 1.0, "time": lines[-1]["time"] + 50 * slow}]


@pytest.mark.parametrize("slow", [1.0, 3.0])
def test_the_way_of_a_twin_is_work_whatever_the_load(slow: float) -> None:
    lines = twin(slow)
    began = decision_s(lines)
    assert began == pytest.approx(100 + EPOCH + 50 * SHARE)
    assert way(lines, began) == pytest.approx(0.0)
    assert way(lines, lines[-1]["time"]) == pytest.approx(1.0)
    half = next(line["time"] for line in lines if line["step"] == EPOCH * 3 // 2)
    whole = EPOCH + 50 * (2 - SHARE)
    assert way(lines, half) == pytest.approx((EPOCH / 2 + 50 * (1 - SHARE)) / whole, abs=0.02)


@pytest.mark.parametrize("before_eval", [True, False])
def test_the_job_files_are_valid(tmp_path: Path, *, before_eval: bool) -> None:
    path = job_file(Daemon(tmp_path), "told", "off", before_eval=before_eval)
    read = parse_job(path.read_bytes(), path)
    assert read.checkpoint.before_eval is before_eval
    assert read.policy == POLICY
