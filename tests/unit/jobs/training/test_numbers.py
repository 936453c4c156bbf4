"""Values that are not finite never reach the weights; fp16 skips what its scale was too large for."""

import math

import pytest
import torch
from torch import Tensor

from jobs.checkpoint.directory import load
from jobs.checkpoint.state import clone, digest
from jobs.contract import ExitCode
from jobs.training.batches import Batch
from jobs.training.failures import NonFinite
from jobs.training.signals import StopRequests
from jobs.training.step import MAX_SKIPPED, Training
from jobs.workloads.causal_lm import CausalLanguageModel
from tests.unit.jobs.conftest import JobDir
from tests.unit.jobs.training.test_step import make

FP16 = {"precision": "fp16"}


@pytest.fixture
def factor(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Multiply every loss with a factor that a test can change."""
    factors = [1.0]
    loss_sum = CausalLanguageModel.loss_sum
    monkeypatch.setattr(
        CausalLanguageModel, "loss_sum", lambda self, batch: loss_sum(self, batch) * factors[0]
    )
    return factors


@pytest.fixture
def overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every gradient overflows, as with a scale that is too large; the losses are finite."""
    loss_sum = CausalLanguageModel.loss_sum

    def overflowing(self: CausalLanguageModel, batch: Batch) -> Tensor:
        loss = loss_sum(self, batch)
        loss.register_hook(lambda gradient: gradient * math.inf)
        return loss

    monkeypatch.setattr(CausalLanguageModel, "loss_sum", overflowing)


def weights(training: Training) -> str:
    return digest(clone(dict(training.weights())))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_stops_before_the_update(
    job: JobDir, factor: list[float], value: float, precision: str
) -> None:
    training = make(job, profile={"precision": precision}, workload={"log_every": 100})
    training.update(0)
    before = weights(training)
    factor[0] = value
    with pytest.raises(NonFinite, match=r"step 1: .*the weights were not updated"):
        training.update(1)
    assert weights(training) == before


SELDOM = {"host_checks_every": 5}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_between_two_looks_of_the_cpu_the_device_notes_the_first_step_that_is_not_finite(
    job: JobDir, factor: list[float], value: float, precision: str
) -> None:
    training = make(job, profile={**SELDOM, "precision": precision}, workload={"log_every": 100})
    training.update(0)
    factor[0] = value
    assert training.update(1) == (None, None)
    factor[0] = 1.0
    training.update(2)
    training.update(3)
    with pytest.raises(NonFinite, match="step 1: loss or gradient not finite"):
        training.update(4)


def test_what_the_device_has_noted_is_neither_saved_nor_evaluated(job: JobDir, factor: list[float]) -> None:
    training = make(job, profile=SELDOM, workload={"log_every": 100})
    training.update(0)
    training.state(1)
    factor[0] = math.nan
    training.update(1)
    with pytest.raises(NonFinite, match="step 1: "):
        training.state(2)
    with pytest.raises(NonFinite, match="step 1: "):
        training.evaluate(StopRequests())


@pytest.mark.parametrize("save", [{"every_steps": 2}, {"every_steps": 100}], ids=str)
def test_no_checkpoint_is_saved_after_a_step_that_is_not_finite(
    job: JobDir, monkeypatch: pytest.MonkeyPatch, save: dict[str, int]
) -> None:
    """A save between two looks of the CPU waits for the device first."""
    update = Training.update

    def poisoned(self: Training, step: int) -> object:
        if step == 3:
            with torch.no_grad():
                next(iter(self.workload.model.parameters())).fill_(math.nan)
        return update(self, step)

    monkeypatch.setattr(Training, "update", poisoned)
    code = job.train(profile={**SELDOM, "dry_run": False}, checkpoint=save, workload={"log_every": 100})
    assert code == ExitCode.NON_FINITE
    assert job.names() <= {"step-00000002"}
    assert job.result().message.startswith("step 3: ")


@pytest.mark.parametrize("profile", [{}, {"host_checks_every": 5}, {"anomaly_detection": True}], ids=str)
def test_a_gradient_that_is_no_number_ends_with_97(job: JobDir, factor: list[float], profile: object) -> None:
    factor[0] = math.nan
    code = job.train(profile={**dict(profile), "dry_run": False})  # type: ignore[call-overload]
    assert code == ExitCode.NON_FINITE
    assert job.names() == set()


def test_what_anomaly_detection_finds_is_no_number(job: JobDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def root_of_nothing(self: CausalLanguageModel, _batch: Batch) -> Tensor:
        zero = sum(p.sum() for p in self.model.parameters()) * 0.0
        return torch.sqrt(zero - 1.0).nan_to_num() + zero.detach()

    monkeypatch.setattr(CausalLanguageModel, "loss_sum", root_of_nothing)
    training = make(job, profile={"anomaly_detection": True})
    before = weights(training)
    with (
        pytest.warns(UserWarning, match="Error detected in"),
        pytest.raises(NonFinite, match=r"returned nan values.*The weights were not updated"),
    ):
        training.update(0)
    assert weights(training) == before


def test_the_scale_of_fp16_is_saved_and_taken_up(job: JobDir) -> None:
    old, new = make(job, profile=FP16), make(job, profile=FP16)
    old._scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    new._scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=2)
    for step in range(3):
        old.update(step)
    new.load(clone(old.state(3)))
    assert new.state(3)["scaler"] == old.state(3)["scaler"]
    assert old.state(3)["scaler"]["scale"] == 16.0
    old.update(3)
    new.update(3)
    assert digest(clone(new.state(4))) == digest(clone(old.state(4)))


def test_fp16_resumes_bit_for_bit(job: JobDir) -> None:
    job.train(profile=FP16)
    assert job.train(profile=FP16, resume_step=4) == ExitCode.FINISHED
    assert job.result(2).weights_sha256 == job.result(1).weights_sha256
    assert "scaler" in load(job.lineage() / "step-00000008")


@pytest.mark.parametrize(("before", "after"), [("fp16", "fp32"), ("fp32", "fp16")])
def test_the_scale_can_be_switched_on_and_off_between_attempts(job: JobDir, before: str, after: str) -> None:
    old = make(job, profile={"precision": before})
    old.update(0)
    new = make(job, profile={"precision": after})
    new.load(clone(old.state(1)))
    loss, _ = new.update(1)
    assert loss is not None
    assert math.isfinite(loss)
    assert ("scaler" in new.state(2)) == (after == "fp16")


@pytest.mark.usefixtures("overflow")
def test_a_step_that_overflows_is_skipped_with_a_smaller_scale(job: JobDir) -> None:
    training = make(job, profile=FP16)
    before, scale = weights(training), training._scaler.get_scale()
    training.update(0)
    assert weights(training) == before
    assert training._scaler.get_scale() == scale / 2


@pytest.mark.usefixtures("overflow")
def test_an_overflow_without_a_scale_is_no_reason_to_skip(job: JobDir) -> None:
    with pytest.raises(NonFinite, match="gradient norm"):
        make(job, profile={"precision": "bf16"}).update(0)


@pytest.mark.usefixtures("overflow")
def test_too_many_skipped_steps_end_with_97(job: JobDir) -> None:
    training = make(job, profile=FP16)
    for step in range(MAX_SKIPPED):
        training.update(step % 8)
    with pytest.raises(NonFinite):
        training.update(0)
    assert job.train(profile=FP16, workload={"steps": MAX_SKIPPED + 4}) == ExitCode.NON_FINITE
    assert job.result().step == MAX_SKIPPED
