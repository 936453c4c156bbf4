"""The arithmetic of gogooku3's restart, by its own figures and by those of a job."""

from pathlib import Path

import pytest

from runner.files.job.load import read_job
from scripts.demo_restart_told import EPOCH, SHARE, Pace, arithmetic, job_file, pace, report, told


def test_by_the_figures_of_the_report_a_checkpoint_before_validation_saves_everything() -> None:
    said = "\n".join(told())
    assert "5,320 of 6,291 batches in 45 min 21 s: 0.51 s each" in said
    assert "keep       8.3 " in said
    assert "restart   25.0 " in said
    assert "resume     6.3   with a checkpoint before validation" in said
    assert "the restart lost 16.7 min against keeping" in said


OLD, NEW = Pace(5.0, 10.0, 50.0, 0.0), Pace(5.0, 8.0, 6.0, 0.0)


@pytest.mark.parametrize(
    ("saved", "seconds", "verdict"),
    [(False, (67.7, 33.0, 33.0), "restart"), (True, (67.7, 25.0, 33.0), "resume")],
)
def test_the_verdict_depends_on_whether_it_was_saved_before_the_validation(
    saved: bool,  # noqa: FBT001
    seconds: tuple[float, ...],
    verdict: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = arithmetic(OLD, NEW, saved=saved)
    assert list(found.values()) == pytest.approx(seconds, abs=0.1)
    assert report(found, found, saved=saved) == verdict
    assert "chosen" in capsys.readouterr().out


def test_the_pace_of_a_job_is_read_from_its_metrics() -> None:
    lines = [{"step": step, "loss": 1.0, "time": 100.0 + step} for step in range(1, EPOCH + 1)]
    lines += [{"step": EPOCH, "eval_loss": 1.0, "time": 110.0 + EPOCH}]
    lines += [
        {"step": EPOCH + step, "loss": 1.0, "time": 110.0 + EPOCH + step} for step in range(1, EPOCH + 1)
    ]
    lines += [{"step": 2 * EPOCH, "eval_loss": 1.0, "time": 120.0 + 2 * EPOCH}]
    found = pace(95.0, lines)
    assert (found.start_s, found.train_s, found.eval_s) == (6.0, EPOCH, 10.0)
    assert found.after_s == pytest.approx(20 + EPOCH - 10 * SHARE)


@pytest.mark.parametrize("before_eval", [True, False])
def test_the_job_files_are_valid(tmp_path: Path, *, before_eval: bool) -> None:
    read = read_job(job_file(tmp_path, "told", "off", before_eval=before_eval))
    assert read.checkpoint.before_eval is before_eval
