import json
from collections.abc import Callable
from typing import Any

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


@pytest.mark.parametrize("rest", [{}, {"max_steps": 4 * BATCHES - 1}, {"check_val_every_n_epoch": None}])
@pytest.mark.parametrize("stop_at", [2 * BATCHES - 2, 2 * BATCHES - 1, 2 * BATCHES, 2 * BATCHES + 3])
def test_a_stop_loses_no_validation_and_no_update_of_a_schedule_that_watches_it(
    attempt: Make, train: Train, stop_at: int, rest: dict[str, int | None]
) -> None:
    how: dict[str, Any] = {"max_epochs": 4, "val_check_interval": 3, **rest}
    undisturbed: list[int] = []
    whole = train(attempt("whole"), validated=undisturbed, **how)
    seen: list[int] = []
    with pytest.raises(SystemExit, match="75"):
        train(attempt("stopped"), stop_at, validated=seen, **how)
    resumed = attempt("stopped")
    assert torch.equal(train(resumed, validated=seen, **how), whole)
    assert (seen, resumed.reports.known["resumed_from"]) == (undisturbed, stop_at)


@pytest.mark.parametrize("terminate_at", [3, BATCHES])
def test_a_stop_while_it_validates_saves_after_the_next_step_and_leaves_with_75(
    attempt: Make, train: Train, terminate_at: int
) -> None:
    how: dict[str, Any] = {"val_check_interval": terminate_at, "validated": []}
    whole = train(attempt("whole"), **how)
    with pytest.raises(SystemExit, match="75"):
        train(attempt("stopped"), terminate_at=terminate_at, **how)
    resumed = attempt("stopped")
    assert torch.equal(train(resumed, **how), whole)
    assert resumed.reports.known["resumed_from"] == terminate_at + 1


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


@pytest.mark.usefixtures("train")  # it is skipped without Lightning
def test_a_loader_of_batches_that_the_data_cannot_fill_is_refused(attempt: Make) -> None:
    """Lightning would skip the training, and succeed."""
    from gpu_job_runner.integrations.lightning import Attached

    with pytest.raises(ValueError, match="a batch of 4 of 3 rows"):
        Attached(attempt("small")).loader(torch.utils.data.TensorDataset(torch.ones(3)), 4)


def test_an_error_is_told_and_leaves_as_it_came(attempt: Make, train: Train) -> None:
    job = attempt("broken")
    with pytest.raises(LookupError):
        train(job, poison=3)
    directory = job.told.attempt_dir
    assert directory is not None
    result = Result.model_validate_json((directory / "result.json").read_bytes())
    assert (result.cause, result.message) == ("exception", "LookupError: poisoned")


@pytest.mark.parametrize(("rung", "validated"), [(BATCHES, [BATCHES]), (BATCHES - 1, [])])
def test_a_candidate_pauses_at_its_rung_when_what_is_validated_there_is_reported(
    attempt: Make, train: Train, rung: int, validated: list[int]
) -> None:
    whole, job = train(attempt("whole")), attempt("paused")
    job.told = job.told._replace(pauses=(rung,))
    with pytest.raises(SystemExit, match="75"):
        train(job)
    assert job.told.attempt_dir is not None
    rows = [json.loads(line) for line in (job.told.attempt_dir / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "drawn" in row] == validated
    assert [row["step"] for row in rows if "loss" in row] == [*range(1, rung + 1)]
    resumed = attempt("paused")
    assert torch.equal(train(resumed), whole)
    assert resumed.reports.known["resumed_from"] == rung


@pytest.mark.parametrize("stop_at", [None, BATCHES])
def test_means_over_an_epoch_are_reported_at_its_end_and_the_loss_is_that_of_the_step(
    attempt: Make, train: Train, stop_at: int | None
) -> None:
    job = attempt("means")
    if stop_at is not None:
        with pytest.raises(SystemExit, match="75"):
            train(job, stop_at, logs_means=True, val_check_interval=2)
    train(attempt("means"), logs_means=True, val_check_interval=2)
    assert job.told.attempt_dir is not None
    rows = [json.loads(line) for line in (job.told.attempt_dir / "metrics.jsonl").read_text().splitlines()]
    ends = [BATCHES, 2 * BATCHES]
    for name in ("mean", "last"):
        assert [(row["step"], row[name]) for row in rows if name in row] == [(end, end) for end in ends]
    assert [row["step"] for row in rows if "drawn" in row] == [2, 4, 7, 9]
    assert [row["step"] for row in rows if "loss" in row] == [*range(1, 2 * BATCHES + 1)]
