"""Steps are recorded as requested, and the training does not notice it."""

import gzip
import json
from collections.abc import Callable

import pytest
import torch
from pydantic import ValidationError
from torch.profiler import profile

from jobs.contract import ExitCode, Profile, RunPaths, TraceSummary
from tests.unit.jobs.conftest import JobDir

TRACED = {"trace": {"steps": [3, 5]}}


def paths(job: JobDir) -> RunPaths:
    return RunPaths(job.root, job.attempts, 1)


def summary(job: JobDir) -> TraceSummary:
    return TraceSummary.model_validate_json(paths(job).trace_summary.read_bytes())


def test_a_traced_training_has_the_bits_of_any_other(job: JobDir) -> None:
    assert job.train(profile=TRACED) == ExitCode.FINISHED
    assert job.train(lineage=2) == ExitCode.FINISHED
    assert job.run_weights(1) == job.run_weights(2)


def test_the_trace_and_its_table_are_kept(job: JobDir, capfd: pytest.CaptureFixture[str]) -> None:
    job.train(profile=TRACED)
    found = summary(job)
    assert (found.first_step, found.last_step, found.file) == (3, 5, "steps.pt.trace.json.gz")
    assert 0 < found.seconds < 60
    times = [each.cpu_s for each in found.operators]
    assert times == sorted(times, reverse=True)
    assert 0 < sum(times) <= found.seconds
    assert len(found.operators) == 10
    assert all(each.calls % 2 == 0 for each in found.operators)  # the same in both steps
    with gzip.open(paths(job).trace) as file:
        events = json.load(file)["traceEvents"]
    assert any(each.get("name") == "aten::addmm" for each in events)
    assert {path.name for path in paths(job).attempt_dir.glob("*trace*")} == {
        "trace.json",
        "steps.pt.trace.json.gz",
    }
    said = capfd.readouterr().out
    assert "trace of steps 3 to 5: " in said
    assert f"trace: {found.operators[0].name}: {found.operators[0].calls} calls, cpu " in said


def test_an_attempt_that_begins_within_the_steps_records_the_rest(
    job: JobDir, before_step: Callable[[dict[int, Callable[[], None]]], None]
) -> None:
    def die() -> None:
        raise KeyboardInterrupt

    before_step({4: die})
    with pytest.raises(KeyboardInterrupt):
        job.train(profile={"trace": {"steps": [2, 6]}})
    assert not paths(job).trace_summary.exists()
    before_step({4: lambda: None})
    job.train(profile={"trace": {"steps": [2, 6]}})
    assert summary(job).first_step == job.result().resumed_from
    job.train(profile={"trace": {"steps": [2, 6]}}, lineage=2)
    assert job.run_weights(1) == job.run_weights(2)


@pytest.mark.parametrize("steps", [[0, 1], [7, 8]])
def test_the_first_and_the_last_step_can_be_recorded(job: JobDir, steps: list[int]) -> None:
    job.train(profile={"trace": {"steps": steps}})
    assert [summary(job).first_step, summary(job).last_step] == steps


def test_steps_that_are_never_done_leave_nothing(job: JobDir) -> None:
    assert job.train(profile={"trace": {"steps": [100, 110]}}) == ExitCode.FINISHED
    assert not paths(job).trace_summary.exists()


def test_a_trace_that_cannot_be_written_is_given_up(
    job: JobDir, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(profile, "export_chrome_trace", full)
    assert job.train(profile=TRACED) == ExitCode.FINISHED
    assert summary(job).file == ""
    assert "steps.pt.trace.json.gz cannot be written" in capfd.readouterr().err
    assert not paths(job).trace.exists()


def test_a_profiler_that_does_not_start_ends_nothing(
    job: JobDir, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def busy(*_: object) -> None:
        raise RuntimeError("Profiler is already enabled on this thread")

    monkeypatch.setattr(profile, "start", busy)
    assert job.train(profile=TRACED) == ExitCode.FINISHED
    assert capfd.readouterr().err.count("torch.profiler does not start, and nothing is recorded") == 1


@pytest.mark.parametrize("steps", [[5, 5], [5, 4], [0, 101], [-1, 4], [1], [1, 2, 3], "all"])
def test_a_range_that_is_empty_or_long_is_refused(steps: object) -> None:
    with pytest.raises(ValidationError):
        Profile.model_validate({"trace": {"steps": steps}})


def test_a_profile_without_a_trace_is_written_as_in_earlier_versions() -> None:
    assert "trace" not in Profile().model_dump(mode="json")
    traced = Profile.model_validate(TRACED)
    assert Profile.model_validate_json(traced.model_dump_json()) == traced
    assert str(traced.trace) == "3 to 5"


def test_the_profiler_is_off_afterwards(job: JobDir) -> None:
    job.train(profile=TRACED)
    assert not torch.autograd._profiler_enabled()
