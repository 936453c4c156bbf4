"""The dry run finds what does not work, and leaves no trace in what follows."""

import pytest
import torch
from torch import Tensor

from jobs.checkpoint.state import clone, digest
from jobs.contract import Cause, ExitCode
from jobs.training.batches import Batch
from jobs.training.failures import InvalidSpec
from jobs.workloads.causal_lm import CausalLanguageModel, Text
from tests.unit.jobs.conftest import JobDir
from tests.unit.jobs.training.test_step import make


def test_a_rehearsed_training_is_as_it_was(job: JobDir) -> None:
    training = make(job)
    before = digest(clone(training.state(0)))
    training.rehearse()
    assert digest(clone(training.state(0))) == before
    assert dict(training._stopwatch.take()) == {}


def test_an_operation_without_a_deterministic_form_ends_with_78_before_the_first_step(
    job: JobDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def restless(_self: CausalLanguageModel, _batch: Batch) -> Tensor:
        return torch.zeros(3).put_(torch.zeros(1, dtype=torch.long), torch.ones(1))

    monkeypatch.setattr(CausalLanguageModel, "loss_sum", restless)
    assert job.train() == ExitCode.INVALID_SPEC
    result = job.result()
    assert (result.cause, result.step) == (Cause.INVALID_SPEC, 0)
    assert result.message.endswith("Set deterministic: false, or change the model")
    assert result.message.startswith("put_ does not have a deterministic implementation")


def test_any_other_error_of_a_rehearsal_stays_what_it_is_and_puts_the_weights_back(
    job: JobDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = make(job)
    before = digest(clone(training.state(0)))
    count = CausalLanguageModel.count
    calls: list[int] = []

    def broken_at_the_second(self: CausalLanguageModel, batch: Batch) -> int:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("broken")
        return count(self, batch)

    monkeypatch.setattr(CausalLanguageModel, "count", broken_at_the_second)
    with pytest.raises(RuntimeError, match="broken"):
        training.rehearse()
    assert digest(clone(training.state(0))) == before


def test_a_parameter_that_is_elsewhere_is_named(job: JobDir, monkeypatch: pytest.MonkeyPatch) -> None:
    training = make(job)
    monkeypatch.setattr(type(training), "_where", torch.device("meta"))
    with pytest.raises(InvalidSpec, match=r"parameters token.weight \(cpu\), .* are not on meta"):
        training.rehearse()


def test_a_buffer_that_is_elsewhere_is_named(job: JobDir) -> None:
    """As a module leaves it that makes its buffer on a device of its own choice."""
    training = make(job)
    training.workload.model.register_buffer("scale", torch.ones(1, device="meta"), persistent=False)
    with pytest.raises(InvalidSpec, match=r"^buffers scale \(meta\) are not on cpu$"):
        training.rehearse()


def test_a_tensor_of_the_batch_that_is_elsewhere_is_named(
    job: JobDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch is moved as a whole by where its first tensor is: a source must not mix devices."""
    batch = Text.batch

    def mixed(self: Text, step: int) -> Batch:
        return batch(self, step) | {"weights": torch.ones(3, 2, device="meta")}

    monkeypatch.setattr(Text, "batch", mixed)
    assert job.train() == ExitCode.INVALID_SPEC
    assert job.result().message == "tensors of the batch weights (meta) are not on cpu"
    assert job.result().step == 0
