"""Results of a training, whatever happens around it."""

import os
import signal
from collections.abc import Callable

import pytest
import torch

from jobs.checkpoint.directory import load
from jobs.checkpoint.state import Plain
from jobs.contract import Cause, ExitCode, Phase
from jobs.training.batches import Batch
from jobs.training.signals import StopRequests
from jobs.training.step import Training
from tests.unit.jobs.conftest import JobDir

Arrange = Callable[[dict[int, Callable[[], None]]], None]


def raise_signal(number: signal.Signals) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    "changes",
    [
        {"workload": {"eval_every": 1}},
        {"workload": {"log_every": 1}},
        {"checkpoint": {"every_steps": 1}},
        {"checkpoint": {"every_steps": None, "every_s": 1e-6}},
        {"checkpoint": {"every_steps": None, "every_s": 1e-6, "mean_between_s": 1e-6}},
        {"checkpoint": {"every_steps": None}},
        {"profile": {"async_save": False}},
    ],
    ids=lambda changes: str(changes).replace("'", ""),
)
def test_what_only_looks_on_does_not_change_a_bit(job: JobDir, changes: dict[str, dict[str, object]]) -> None:
    job.train(lineage=1)
    job.train(lineage=2, **changes)
    assert job.state_sha256(8, 2) == job.state_sha256(8, 1)
    assert job.result(2).weights_sha256 == job.result(1).weights_sha256


def test_another_seed_trains_another_model(job: JobDir) -> None:
    job.train(lineage=1)
    job.train(lineage=2, seed=4)
    assert job.result(2).weights_sha256 != job.result(1).weights_sha256


def test_a_training_pauses_at_its_rungs_and_ends_with_the_same_bits(job: JobDir) -> None:
    job.train(lineage=1)
    pauses = {"every_steps": 100, "pauses": [3, 6]}
    for resume_step, paused_at in ((None, 3), (None, 3), (3, 6)):
        assert job.train(lineage=2, checkpoint=pauses, resume_step=resume_step) == ExitCode.STOPPED
        assert (job.result().cause, job.result().step) == (Cause.STOPPED, paused_at)
    assert job.train(lineage=2, checkpoint=pauses, resume_step=6) == ExitCode.FINISHED
    assert job.run_weights(2) == job.run_weights(1)


def test_a_training_asked_to_stop_saves_leaves_with_75_and_loses_nothing(
    job: JobDir, before_step: Arrange
) -> None:
    job.train(lineage=1)
    before_step({4: raise_signal(signal.SIGTERM)})
    assert job.train(lineage=2) == ExitCode.STOPPED
    stopped = job.result()
    assert (stopped.cause, stopped.step) == (Cause.STOPPED, 5)
    before_step({4: raise_signal(signal.SIGTERM)})  # never reached: step 4 is done
    assert job.train(lineage=2) == ExitCode.FINISHED
    assert job.result().resumed_from == 5
    assert job.state_sha256(8, 2) == job.state_sha256(8, 1)


def test_a_training_that_saves_only_on_its_way_leaves_at_once_and_loses_what_is_not_saved(
    job: JobDir, before_step: Arrange
) -> None:
    on_its_way: dict[str, object] = {"every_steps": 3, "every_s": None, "on_stop": False}
    before_step({4: raise_signal(signal.SIGTERM)})
    assert job.train(checkpoint=on_its_way) == ExitCode.STOPPED
    assert (job.result().cause, job.result().step) == (Cause.STOPPED, 5)
    before_step({})
    assert job.train(checkpoint=on_its_way) == ExitCode.FINISHED
    assert job.result().resumed_from == 3


def test_asking_twice_to_stop_changes_nothing(job: JobDir, before_step: Arrange) -> None:
    def twice() -> None:
        raise_signal(signal.SIGTERM)()
        raise_signal(signal.SIGINT)()

    before_step({4: twice})
    assert job.train() == ExitCode.STOPPED
    assert job.result().step == 5


def test_a_stop_before_the_first_step_of_a_resume_needs_no_save(
    job: JobDir, before_step: Arrange, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_step({3: raise_signal(signal.SIGTERM)})
    job.train()
    before = job.names()
    requests = StopRequests()
    monkeypatch.setattr("jobs.__main__.listen", lambda: requests)
    load_state = Training.load

    def interrupted(self: Training, state: Plain) -> None:
        load_state(self, state)
        requests.stop = True

    monkeypatch.setattr(Training, "load", interrupted)
    assert job.train() == ExitCode.STOPPED
    assert job.result().resumed_from == 4
    assert job.names() == before


def test_a_stop_before_training_leaves_nothing(job: JobDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.__main__.listen", lambda: StopRequests(stop=True))
    assert job.train() == ExitCode.STOPPED
    assert job.names() == set()


def test_a_stop_during_the_last_step_finishes(job: JobDir, before_step: Arrange) -> None:
    before_step({7: raise_signal(signal.SIGTERM)})
    assert job.train() == ExitCode.FINISHED


def test_a_stop_during_an_evaluation_ends_the_evaluation(
    job: JobDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    add_scores = Training._add_scores

    def interrupted(self: Training, batch: Batch, sums: dict[str, torch.Tensor]) -> None:
        seen.append(1)
        raise_signal(signal.SIGTERM)()
        add_scores(self, batch, sums)

    monkeypatch.setattr(Training, "_add_scores", interrupted)
    assert job.train(workload={"eval_every": 3, "eval_batches": 50}) == ExitCode.STOPPED
    assert (len(seen), job.result().step) == (1, 3)


def test_a_save_can_be_asked_for_at_any_step(job: JobDir, before_step: Arrange) -> None:
    before_step({2: raise_signal(signal.SIGUSR1)})
    assert job.train(checkpoint={"every_steps": None}) == ExitCode.FINISHED
    assert job.names() == {"step-00000003", "step-00000008", "final"}


def test_a_loss_that_is_no_number_ends_with_97_and_does_not_reach_the_weights(job: JobDir) -> None:
    assert job.train(workload={"learning_rate": 1e30, "warmup_steps": 0}) == ExitCode.NON_FINITE
    result = job.result()
    assert result.cause is Cause.NON_FINITE
    assert "the weights were not updated" in result.message
    for name in job.names():
        assert all(t.isfinite().all() for t in load(job.lineage() / name)["model"].values())


def test_a_device_without_room_ends_with_98_and_says_what_to_lower(job: JobDir, before_step: Arrange) -> None:
    def full() -> None:
        raise torch.OutOfMemoryError("Tried to allocate 2 GiB.\nmore")

    before_step({3: full})
    assert job.train() == ExitCode.DEVICE_OUT_OF_MEMORY
    assert job.result().cause is Cause.DEVICE_OUT_OF_MEMORY
    assert "micro_batch" in job.result().message
    assert "step-00000002" in job.names()


def test_a_given_step_is_resumed_and_newer_ones_are_set_aside(job: JobDir) -> None:
    job.train(checkpoint={"keep": 10})
    first = job.result()
    assert job.train(resume_step=4) == ExitCode.FINISHED
    result = job.result()
    assert result.resumed_from == 4
    assert result.weights_sha256 == first.weights_sha256
    aside = {name.rsplit("-", 1)[0] for name in job.names() if name.startswith("superseded")}
    assert aside == {"superseded-step-00000006", "superseded-step-00000008", "superseded-final"}


def test_a_given_step_that_is_not_there_ends_with_78_and_lists_those_that_are(job: JobDir) -> None:
    job.train()
    before = job.names()
    assert job.train(resume_step=5) == ExitCode.INVALID_SPEC
    assert "has 4, 6, 8" in job.result().message
    assert job.names() == before


def test_a_given_step_that_is_damaged_ends_with_78(job: JobDir) -> None:
    job.train()
    (job.lineage() / "step-00000006" / "state.pt").write_bytes(b"")
    assert job.train(resume_step=6) == ExitCode.INVALID_SPEC
    assert "0 bytes where the manifest says" in job.result().message


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"width": 16}, "model"), ({"heads": 1}, "model"), ({"include": ("d*.py",)}, "data")],
)
def test_a_checkpoint_that_does_not_fit_ends_with_78_and_names_the_difference(
    job: JobDir, changes: dict[str, object], named: str
) -> None:
    job.train(workload={"steps": 4})
    before = job.names()
    assert job.train(workload=changes) == ExitCode.INVALID_SPEC
    assert f"other {named}" in job.result().message
    assert job.names() == before


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"workload": {"learning_rate": 1e-4}}, "schedule"),
        ({"seed": 9}, "seed"),
        ({"profile": {"micro_batch": 1, "optimizer": "fused"}}, "numerics"),
    ],
)
def test_a_usable_difference_is_said_and_training_goes_on(
    job: JobDir, capfd: pytest.CaptureFixture[str], changes: dict[str, dict[str, object]], named: str
) -> None:
    job.train(workload={"steps": 4})
    assert job.train(**changes) == ExitCode.FINISHED
    assert job.result().resumed_from == 4
    assert f"{named} than when step 4 was saved" in capfd.readouterr().err


def test_a_spec_with_fewer_steps_than_were_trained_ends_with_78(job: JobDir) -> None:
    job.train()
    assert job.train(workload={"steps": 6}) == ExitCode.INVALID_SPEC
    assert "beyond the 6 steps" in job.result().message


def test_more_steps_go_on_from_the_finished_model(job: JobDir) -> None:
    job.train(workload={"steps": 4})
    first = job.result()
    assert job.train(workload={"steps": 8}) == ExitCode.FINISHED
    assert job.result().resumed_from == 4
    assert job.result().weights_sha256 != first.weights_sha256


def test_heartbeat_and_metrics_tell_pace_and_loss(job: JobDir) -> None:
    job.train(workload={"eval_every": 4})
    status = job.status()
    assert (status.phase, status.step, status.total_steps, status.checkpoint_step) == (Phase.DRAIN, 8, 8, 8)
    assert status.items_per_s
    assert status.memory_bytes
    assert status.data_wait is not None
    lines = job.metrics()
    assert [line["step"] for line in lines if "loss" in line] == [2, 4, 6, 8]
    assert [line["step"] for line in lines if "eval_loss" in line] == [4, 8]
