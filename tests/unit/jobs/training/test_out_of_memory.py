"""Batches that do not fit are halved in process: same step, same draws, same effective batch."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from jobs.checkpoint.directory import load, training_digest
from jobs.checkpoint.state import clone
from jobs.contract import Cause, Effective, ExitCode, RunPaths, verify
from jobs.training import step as training
from jobs.training.batches import Batch, rows
from jobs.training.failures import DeviceOutOfMemory
from jobs.workloads.causal_lm import CausalLanguageModel
from tests.unit.jobs.conftest import JobDir
from tests.unit.jobs.training.test_step import make

SIX = {"batch_size": 6}

Room = Callable[[int], None]


@pytest.fixture
def room_for(monkeypatch: pytest.MonkeyPatch) -> Room:
    """Return a function that limits the device to so many rows; the failure comes after some draws."""
    loss_sum = CausalLanguageModel.loss_sum

    def limit(most: int, error: type[RuntimeError] = torch.OutOfMemoryError) -> None:
        def limited(self: CausalLanguageModel, batch: Batch) -> Tensor:
            loss = loss_sum(self, batch)
            if rows(batch) > most:
                raise error("DefaultCPUAllocator: can't allocate memory: 2 GiB.\nmore")
            return loss

        monkeypatch.setattr(CausalLanguageModel, "loss_sum", limited)

    return limit


def effective(job: JobDir) -> Effective:
    return Effective.model_validate_json(RunPaths(job.root, job.attempts, 1).effective.read_bytes())


@pytest.mark.parametrize(("most", "fits"), [(5, 3), (3, 3), (2, 2), (1, 1)])
def test_a_halved_step_is_the_step_of_a_training_that_began_with_less(
    job: JobDir, room_for: Room, most: int, fits: int
) -> None:
    small = make(job, workload=SIX, profile={"micro_batch": fits})
    room_for(most)
    halved = make(job, workload=SIX)
    for step in range(2):
        assert halved.update(step)[0] == small.update(step)[0]
    assert halved.micro_batch == fits
    assert training_digest(clone(halved.state(2))) == training_digest(clone(small.state(2)))


def test_a_step_that_runs_out_after_some_parts_is_done_again_from_its_beginning(
    job: JobDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = make(job, workload=SIX, profile={"micro_batch": 1})
    small.update(0)
    seen: list[int] = []
    loss_sum = CausalLanguageModel.loss_sum

    def full_at_the_third(self: CausalLanguageModel, batch: Batch) -> Tensor:
        seen.append(rows(batch))
        if len(seen) == 3:
            raise torch.OutOfMemoryError("fragmented")
        return loss_sum(self, batch)

    monkeypatch.setattr(CausalLanguageModel, "loss_sum", full_at_the_third)
    halved = make(job, workload=SIX, profile={"micro_batch": 2})
    halved.update(0)
    assert seen == [2, 2, 2, 1, 1, 1, 1, 1, 1]
    assert training_digest(clone(halved.state(1))) == training_digest(clone(small.state(1)))


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_step_that_runs_out_while_it_clips_is_done_again(
    job: JobDir, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    """With fp16 the gradients are unscaled by then, which a scaler does once in a step."""
    calls: list[float] = []

    def full_at_the_first(parameters: list[Tensor], most: float) -> Tensor:
        calls.append(most)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("no room for the norms")
        return clip_grad_norm_(parameters, most)

    small = make(job, workload=SIX, profile={"micro_batch": 3, "precision": precision})
    small.update(0)
    monkeypatch.setattr(training, "clip_grad_norm_", full_at_the_first)
    halved = make(job, workload=SIX, profile={"precision": precision})
    halved.update(0)
    assert (halved.micro_batch, len(calls)) == (3, 2)
    assert training_digest(clone(halved.state(1))) == training_digest(clone(small.state(1)))


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_halving_is_said_and_reported(
    job: JobDir, room_for: Room, capfd: pytest.CaptureFixture[str], *, dry_run: bool
) -> None:
    room_for(4)
    assert job.train(workload=SIX, profile={"dry_run": dry_run}) == ExitCode.FINISHED
    found = effective(job)
    assert (found.micro_batch, found.accumulation) == (3, 2)
    switch = found.switches["micro_batch"]
    assert (switch.requested, switch.applied) == ("null", "3")
    assert switch.note.startswith("6 rows did not fit: DefaultCPUAllocator")
    assert found.fallbacks[-1].startswith("micro_batch null: using 3: 6 rows did not fit")
    assert "out of memory with 6 rows; going on with 3 at the same batch" in capfd.readouterr().err


def test_a_resume_stays_with_what_fitted_and_loses_no_bit(
    job: JobDir, room_for: Room, capfd: pytest.CaptureFixture[str]
) -> None:
    room_for(4)
    job.train(workload=SIX, profile={"dry_run": False})
    room_for(99)
    saved = job.lineage() / "step-00000004"
    assert load(saved)["micro_batch"] == 3
    assert verify(saved).environment["micro_batch"] == "3"
    capfd.readouterr()
    assert job.train(workload=SIX, resume_step=4) == ExitCode.FINISHED
    assert load(job.lineage() / "step-00000008")["micro_batch"] == 3
    assert "other numerics" not in capfd.readouterr().err
    assert job.result(2).weights_sha256 == job.result(1).weights_sha256
    found = effective(job)
    assert (found.micro_batch, found.switches["micro_batch"].applied) == (3, "3")


def test_a_smaller_micro_batch_of_the_spec_is_kept_after_a_load(job: JobDir) -> None:
    large, small = make(job, workload=SIX), make(job, workload=SIX, profile={"micro_batch": 2})
    small.load(clone(large.state(0)))
    assert small.micro_batch == 2
    assert small.switches.report()["micro_batch"].note == ""


@pytest.mark.parametrize("dry_run", [True, False])
def test_not_even_one_row_ends_with_98(job: JobDir, room_for: Room, *, dry_run: bool) -> None:
    room_for(0)
    assert job.train(profile={"dry_run": dry_run}) == ExitCode.DEVICE_OUT_OF_MEMORY
    assert job.result().cause is Cause.DEVICE_OUT_OF_MEMORY
    assert "not even one row fits: DefaultCPUAllocator: can't allocate memory" in job.result().message


def test_the_allocator_of_the_cpu_runs_out_of_memory_too(
    job: JobDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def greedy(_self: CausalLanguageModel, _batch: Batch) -> Tensor:
        return torch.empty(2**60, dtype=torch.uint8)

    monkeypatch.setattr(CausalLanguageModel, "loss_sum", greedy)
    with pytest.raises(DeviceOutOfMemory, match="not even one row fits"):
        make(job).update(0)


@pytest.mark.parametrize(
    "words",
    ["CUDA error: out of memory", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"],
)
def test_memory_that_a_library_lacks_is_mended_as_well(
    job: JobDir, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """cuBLAS, cuDNN and the driver allocate for themselves, beside the allocator of torch."""
    loss_sum = CausalLanguageModel.loss_sum

    def lacking(self: CausalLanguageModel, batch: Batch) -> Tensor:
        if rows(batch) > 3:
            raise RuntimeError(words)
        return loss_sum(self, batch)

    monkeypatch.setattr(CausalLanguageModel, "loss_sum", lacking)
    assert job.train(workload=SIX) == ExitCode.FINISHED
    assert effective(job).micro_batch == 3


def test_another_error_is_not_mended(job: JobDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_self: CausalLanguageModel, _batch: Batch) -> Tensor:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(CausalLanguageModel, "loss_sum", broken)
    training = make(job)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        training.update(0)
    assert training.micro_batch == 3
