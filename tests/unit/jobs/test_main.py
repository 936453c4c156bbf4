"""The program as the runner meets it: exit status, result file, one line on stderr."""

import errno

import pytest

from jobs.checkpoint.directory import load
from jobs.checkpoint.state import weights_sha256
from jobs.contract import Cause, Effective, ExitCode, RunPaths, verify
from tests.unit.jobs.conftest import JobDir


def test_a_finished_training_leaves_model_result_and_exit_status_zero(job: JobDir) -> None:
    assert job.train() == ExitCode.FINISHED
    result = job.result()
    assert result.cause is Cause.COMPLETED
    assert result.step == 8
    final = verify(RunPaths(job.root, 1, 1).final_dir)
    assert (
        final.state_sha256
        == result.weights_sha256
        == weights_sha256(load(job.lineage() / "final", "weights.pt"))
    )


def test_the_result_tells_losses_and_where_the_time_went(job: JobDir) -> None:
    job.train(workload={"eval_every": 4})
    metrics = job.result().metrics
    assert {
        "loss",
        "eval_loss",
        "baseline_eval_loss",
        "seconds_train",
        "seconds_eval",
        "seconds_save",
    } <= set(metrics)


def test_what_took_effect_is_written_down(job: JobDir) -> None:
    paths = job.attempt(profile={"micro_batch": 2, "threads": 1}, cpus=2)
    job.run(paths)
    effective = Effective.model_validate_json(paths.effective.read_bytes())
    assert (effective.device, effective.micro_batch, effective.accumulation) == ("cpu", 2, 2)
    assert (effective.threads, effective.precision) == (1, "fp32")
    assert effective.switches["deterministic"].applied == "true"


def test_without_a_thread_count_the_cpu_quota_decides(job: JobDir) -> None:
    paths = job.attempt(cpus=2.5, workload={"steps": 1})
    job.run(paths)
    assert Effective.model_validate_json(paths.effective.read_bytes()).threads == 2


def test_a_training_killed_after_publishing_finishes_at_once_with_the_same_hash(job: JobDir) -> None:
    job.train()
    first = job.result()
    assert job.train() == ExitCode.FINISHED
    again = job.result()
    assert again.weights_sha256 == first.weights_sha256
    assert "seconds_train" not in again.metrics


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "Invalid JSON"),
        ("[]", "object"),
        ('{"job_id": "j1", "attempt": 1, "lineage": 1}', "workload: Field required"),
        (
            '{"job_id": "j1", "attempt": 2, "lineage": 1, "workload": {"kind": "causal_lm", "data": "/d"}}',
            "attempt 2 of lineage 1",
        ),
        (
            """{"job_id": "j1", "attempt": 1, "lineage": 1,
                "workload": {"kind": "causal_lm", "data": "/d", "width": 9}}""",
            "multiple of heads",
        ),
        (" " * 2**20 + "{}", "larger than 1048576 bytes"),
    ],
)
def test_a_bad_spec_is_told_in_one_line_and_ends_with_78(
    job: JobDir, capfd: pytest.CaptureFixture[str], content: str, told: str
) -> None:
    paths = job.attempt()
    paths.spec.write_text(content)
    assert job.run(paths) == ExitCode.INVALID_SPEC
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert told in said
    result = job.result()
    assert result.cause is Cause.INVALID_SPEC
    assert told in result.message


def test_a_missing_spec_ends_with_78(job: JobDir) -> None:
    paths = job.attempt()
    paths.spec.unlink()
    assert job.run(paths) == ExitCode.INVALID_SPEC
    assert "No such file" in job.result().message


def test_a_lineage_that_nobody_made_ends_with_78(job: JobDir) -> None:
    paths = job.attempt()
    paths.lineage_dir.rmdir()
    assert job.run(paths) == ExitCode.INVALID_SPEC
    assert "no such directory" in job.result().message


def test_an_accelerator_that_is_not_there_ends_with_78(job: JobDir) -> None:
    assert job.train(accelerator="cuda") == ExitCode.INVALID_SPEC
    assert "sees no device" in job.result().message


def test_a_defect_is_recorded_and_its_traceback_is_left_to_python(
    job: JobDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("a defect\nof two lines")

    monkeypatch.setattr("jobs.training.loop.prepare", broken)
    with pytest.raises(KeyError):
        job.train()
    result = job.result()
    assert result.cause is Cause.EXCEPTION
    assert result.message.startswith("KeyError")
    assert "\n" not in result.message


def test_a_full_disk_outside_of_a_save_has_its_cause_too(
    job: JobDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("jobs.training.loop.prepare", full)
    assert job.train() == 1
    assert job.result().cause is Cause.DISK_FULL
