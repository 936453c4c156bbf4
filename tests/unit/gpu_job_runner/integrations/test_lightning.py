from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from jobs.contract import Result, Status, verify
from tests.unit.gpu_job_runner.integrations.conftest import Make

Train = Callable[..., Tensor]

FILE = "lightning.ckpt"
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*"),  # Lightning's use of torch
    pytest.mark.filterwarnings("ignore:The `srun` command is available"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
]

EPOCHS, BATCHES = 2, 5


@pytest.fixture
def train() -> Train:
    pytest.importorskip("lightning.pytorch", exc_type=ImportError)
    from tests.fakes.workloads import lightning_training

    return lightning_training.train


@pytest.mark.parametrize(
    ("accumulate", "stop_at"),
    [(1, 1), (1, BATCHES - 1), (1, BATCHES), (1, BATCHES + 1), (2, 2), (2, 3), (2, 4)],
)
def test_a_training_that_was_stopped_ends_with_the_bits_of_one_that_was_not(
    attempt: Make, train: Train, accumulate: int, stop_at: int
) -> None:
    whole = train(attempt("whole"), accumulate=accumulate)
    with pytest.raises(SystemExit, match="75"):
        train(attempt("stopped"), stop_at, accumulate=accumulate)
    resumed = attempt("stopped")
    assert torch.equal(train(resumed, accumulate=accumulate), whole)
    assert resumed.reports.known["resumed_from"] == stop_at


def test_a_finished_training_is_not_trained_again(attempt: Make, train: Train) -> None:
    whole = train(attempt("whole"))
    assert torch.equal(train(attempt("whole"), poison=EPOCHS * BATCHES), whole)


def test_the_host_is_told_what_it_wants_to_know(attempt: Make, train: Train) -> None:
    job = attempt("whole")
    train(job)
    directory = job.told.attempt_dir
    assert directory is not None
    status = Status.model_validate_json((directory / "status.json").read_bytes())
    result = Result.model_validate_json((directory / "result.json").read_bytes())
    assert (status.step, status.total_steps) == (EPOCHS * BATCHES, EPOCHS * BATCHES)
    assert status.loss is not None
    assert (result.cause, set(result.metrics)) == ("completed", {"drawn"})
    assert set(verify(job.lineage.place(EPOCHS * BATCHES)).files) == {FILE}


def test_an_error_is_told_and_leaves_as_it_came(attempt: Make, train: Train) -> None:
    job = attempt("broken")
    with pytest.raises(LookupError):
        train(job, poison=3)
    directory = job.told.attempt_dir
    assert directory is not None
    result = Result.model_validate_json((directory / "result.json").read_bytes())
    assert (result.cause, result.message) == ("exception", "LookupError: poisoned")
