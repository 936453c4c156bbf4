from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from jobs.contract import Result, Status, verify
from tests.unit.gpu_job_runner.integrations.conftest import Make

Train = Callable[..., Tensor]

STEPS, BATCHES = 8, 5


@pytest.fixture
def train() -> Train:
    for name in ("transformers", "accelerate"):
        pytest.importorskip(name, exc_type=ImportError)
    from tests.fakes.workloads import huggingface_training

    return huggingface_training.train


@pytest.mark.parametrize("stop_at", [2, BATCHES, BATCHES + 1])
def test_a_training_that_was_stopped_ends_with_the_bits_of_one_that_was_not(
    attempt: Make, train: Train, tmp_path: Path, stop_at: int
) -> None:
    whole = train(attempt("whole"), tmp_path / "one")
    with pytest.raises(SystemExit, match="75"):
        train(attempt("stopped"), tmp_path / "two", stop_at)
    resumed = attempt("stopped")
    assert torch.equal(train(resumed, tmp_path / "two"), whole)
    assert resumed.reports.known["resumed_from"] == stop_at


def test_the_host_is_told_what_it_wants_to_know(attempt: Make, train: Train, tmp_path: Path) -> None:
    job = attempt("whole")
    train(job, tmp_path / "out")
    directory = job.told.attempt_dir
    assert directory is not None
    status = Status.model_validate_json((directory / "status.json").read_bytes())
    result = Result.model_validate_json((directory / "result.json").read_bytes())
    assert (status.step, status.total_steps, result.cause) == (STEPS, STEPS, "completed")
    assert status.loss is not None
    assert {"model.safetensors", "optimizer.pt"} <= verify(job.lineage.place(STEPS)).files.keys()


def test_what_the_trainer_saves_by_itself_is_left_alone(attempt: Make, train: Train, tmp_path: Path) -> None:
    job = attempt("whole")
    train(job, tmp_path / "out", save_strategy="steps", save_steps=3)
    own = {path.name for path in (tmp_path / "out").glob("checkpoint-*")}
    assert own == {"checkpoint-3", "checkpoint-6"}
