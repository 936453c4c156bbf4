"""A length in epochs is a length in steps, which the training counts from its data."""

from collections.abc import Callable

import pytest

from jobs.contract import AttemptSpec, Cause, ExitCode
from jobs.training.epochs import EpochLog
from jobs.workloads.causal_lm import CausalLanguageModel
from tests.unit.jobs.conftest import JobDir


@pytest.fixture(autouse=True)
def _short_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an epoch be four steps, whatever the corpus has."""
    monkeypatch.setattr(CausalLanguageModel, "steps_per_epoch", property(lambda _self: 4))


def test_epochs_give_the_bits_of_as_many_steps(job: JobDir, capfd: pytest.CaptureFixture[str]) -> None:
    assert job.train(workload={"epochs": 2}) == ExitCode.FINISHED
    assert job.status().total_steps == 8
    assert (job.result().step, job.status().step) == (8, 8)
    log = capfd.readouterr().out
    assert "epoch 1 of 2 (4 steps) took " in log
    assert "epoch 2 of 2 (4 steps) took " in log
    job.train(workload={"steps": 8}, lineage=2)
    assert job.run_weights(1) == job.run_weights(2)
    assert "epoch " not in capfd.readouterr().out


def test_a_part_of_an_epoch_is_rounded_up_to_whole_steps(job: JobDir) -> None:
    job.train(workload={"epochs": 0.6})
    assert job.result().step == 3


def test_before_the_data_are_read_nothing_is_said_about_the_total(job: JobDir) -> None:
    spec = job.spec(workload={"epochs": 1.0})
    assert spec.workload.known_steps is None
    assert AttemptSpec.model_validate_json(spec.model_dump_json()) == spec


def test_a_killed_training_counts_the_same_steps_again(
    job: JobDir, before_step: Callable[[dict[int, Callable[[], None]]], None]
) -> None:
    job.train(workload={"epochs": 2}, lineage=2)

    def die() -> None:
        raise KeyboardInterrupt

    before_step({5: die})
    with pytest.raises(KeyboardInterrupt):
        job.train(workload={"epochs": 2})
    before_step({})
    assert job.train(workload={"epochs": 2}) == ExitCode.FINISHED
    assert job.run_weights(1) == job.run_weights(2)


def test_more_steps_than_can_be_counted_are_refused(job: JobDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CausalLanguageModel, "steps_per_epoch", property(lambda _self: 10**9))
    assert job.train(workload={"epochs": 2}) == ExitCode.INVALID_SPEC
    assert job.result().cause is Cause.INVALID_SPEC
    assert job.result().message == "workload.epochs: these are 2,000,000,000 steps, more than 1,000,000,000"


def test_a_resumed_epoch_has_no_time(capfd: pytest.CaptureFixture[str]) -> None:
    times = iter([10.0, 12.5])
    epochs = EpochLog(3, 4, 5, clock=lambda: next(times))
    for step in range(6, 13):
        epochs.stepped(step)
    assert capfd.readouterr().out == "epoch 2 of 3 (4 steps) ended\nepoch 3 of 3 (4 steps) took 2.5 s\n"


def test_the_status_tells_the_seconds_of_a_step(job: JobDir) -> None:
    job.train(workload={"epochs": 2})
    found = job.status().step_s
    assert found is not None
    assert found > 0
