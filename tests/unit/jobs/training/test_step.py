"""One step is a function of the state and its number, however it is cut into micro-batches."""

from typing import Any

import pytest
import torch

from jobs.checkpoint.state import clone, digest
from jobs.contract import Program
from jobs.training.device import Device, prepare
from jobs.training.signals import StopRequests
from jobs.training.step import Training
from jobs.training.switches import Switches
from jobs.workloads.protocol import BuildContext, build
from tests.unit.jobs.conftest import JobDir


def make(job: JobDir, **changes: object) -> Training:
    spec = job.spec(**changes)
    plan, switches = spec.workload, Switches(spec.profile)
    assert not isinstance(plan, Program)
    device = prepare(spec, switches)
    return Training(spec, plan, build(plan, BuildContext(spec.seed, switches)), device, switches)


def gradient(training: Training, step: int = 0) -> torch.Tensor:
    training._gradients(training.workload.source.batch(step), step)
    return torch.cat([p.grad.flatten() for p in training.workload.model.parameters()])


def test_a_step_depends_on_nothing_that_happened_before_it(job: JobDir) -> None:
    first, second = make(job), make(job)
    first.update(0)
    torch.rand(100)
    second.evaluate(StopRequests())
    second.rehearse()
    second.update(0)
    assert digest(clone(second.state(1))) == digest(clone(first.state(1)))


def test_training_a_loaded_state_is_training_on(job: JobDir) -> None:
    straight, resumed = make(job), make(job)
    for step in range(3):
        straight.update(step)
    for step in range(3):
        saved = clone(resumed.state(step))
        resumed = make(job)
        resumed.load(saved)
        resumed.update(step)
    assert digest(clone(resumed.state(3))) == digest(clone(straight.state(3)))


@pytest.mark.parametrize("micro", [1, 2, 4])
def test_uneven_micro_batches_add_up_to_the_gradient_of_the_whole_batch(job: JobDir, micro: int) -> None:
    plan = {"batch_size": 5, "dropout": 0.0}
    whole = gradient(make(job, workload=plan))
    parts = gradient(make(job, workload=plan, profile={"micro_batch": micro}))
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-6)


def test_a_micro_batch_larger_than_the_batch_is_the_batch(job: JobDir) -> None:
    effective = make(job, profile={"micro_batch": 99}).effective()
    assert (effective.micro_batch, effective.accumulation) == (3, 1)


def test_the_gradient_norm_is_limited(job: JobDir) -> None:
    assert gradient(make(job, workload={"grad_clip": 1e-3})).norm() == pytest.approx(1e-3, rel=1e-3)


def test_evaluating_twice_gives_one_number_and_leaves_the_model_training(job: JobDir) -> None:
    training = make(job)
    assert training.evaluate(StopRequests()) == training.evaluate(StopRequests())
    assert training.workload.model.training


@pytest.mark.parametrize("flags", [("loop", "fused"), ("fused", "loop")])
def test_hyper_parameters_and_flags_are_those_of_the_spec_after_a_load(
    job: JobDir, flags: tuple[str, str]
) -> None:
    before, after = ({"optimizer": kind} for kind in flags)
    old = make(job, profile=before)
    old.update(0)
    new = make(job, profile=after, workload={"weight_decay": 0.7})
    new.load(clone(old.state(1)))
    new.update(1)
    groups: list[dict[str, Any]] = new._optimizer.param_groups
    assert [group["fused"] for group in groups] == [flags[1] == "fused"] * 2
    assert [group["weight_decay"] for group in groups] == [0.7, 0.0]
    assert groups[0]["lr"] == new.learning_rate(1)


def test_the_learning_rate_warms_up_and_falls_to_a_tenth(job: JobDir) -> None:
    training = make(job, workload={"steps": 100, "warmup_steps": 10, "learning_rate": 1.0})
    rates = [training.learning_rate(step) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9] == rates[10] == pytest.approx(1.0)
    assert rates[100] == pytest.approx(0.1)
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_bf16_runs_under_autocast_and_keeps_the_weights_in_fp32(job: JobDir) -> None:
    training = make(job, profile={"precision": "bf16"})
    loss, _ = training.update(0)
    assert loss == pytest.approx(make(job).update(0)[0], rel=1e-2)
    assert {p.dtype for p in training.workload.model.parameters()} == {torch.float32}
    assert training.effective().precision == "bf16"
    assert not training._scaler.is_enabled()
    assert make(job, profile={"precision": "fp16"})._scaler.is_enabled()


def test_every_training_keeps_the_memory_that_a_step_frees(
    job: JobDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr("jobs.training.step.keep_freed_memory", lambda: asked.append(True))
    make(job)
    assert asked == [True]


def test_tf32_on_a_cpu_falls_back_and_says_so(job: JobDir) -> None:
    effective = make(job, profile={"precision": "tf32"}).effective()
    assert effective.precision == "fp32"
    assert effective.fallbacks[0].startswith("precision tf32: using fp32: a CPU has none")


def test_determinism_is_switched_on_where_it_is_asked_for(job: JobDir) -> None:
    make(job)
    assert torch.are_deterministic_algorithms_enabled()


def test_the_model_is_moved_to_its_device_once(job: JobDir, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[object] = []
    to = torch.nn.Module.to

    def counted(self: torch.nn.Module, place: torch.device) -> torch.nn.Module:
        moved.append(place)
        return to(self, place)

    monkeypatch.setattr(torch.nn.Module, "to", counted)
    training = make(job)
    for step in range(2):
        training.update(step)
    training.evaluate(StopRequests())
    assert moved == [training.device.torch_device]


def test_a_model_learns_what_is_in_the_text(job: JobDir) -> None:
    plan = {"steps": 60, "width": 32, "context": 32, "batch_size": 16, "learning_rate": 1e-2, "dropout": 0.0}
    training = make(job, workload=plan)
    for step in range(60):
        training.update(step)
    found = training.evaluate(StopRequests())
    assert found is not None
    assert found.metrics["eval_loss"] < found.baseline["eval_loss"]


def test_the_future_does_not_reach_a_prediction(job: JobDir) -> None:
    model = make(job).workload.model.eval()
    tokens = torch.arange(8)[None]
    other = tokens.clone()
    other[0, 5:] = 200
    with torch.inference_mode():
        assert model(tokens)[0, :5].equal(model(other)[0, :5])


def test_no_mask_is_saved_with_the_weights(job: JobDir) -> None:
    training = make(job)
    assert not list(training.workload.model.buffers())


def test_the_device_is_named(job: JobDir) -> None:
    device: Device = make(job).device
    assert device.torch_device.type == "cpu"
    assert device.name
    assert device.memory_bytes()
