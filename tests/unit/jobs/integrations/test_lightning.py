import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from jobs.attach import Attempt
from jobs.contract import Result, Status, verify
from tests.unit.jobs.integrations.conftest import Make

pl = pytest.importorskip("lightning.pytorch", exc_type=ImportError)

from jobs.integrations.lightning import FILE, Attached  # noqa: E402  (needs Lightning)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*"),  # Lightning's use of torch
    pytest.mark.filterwarnings("ignore:The `srun` command is available"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
]

EPOCHS, BATCHES = 2, 5


class Net(pl.LightningModule):  # type: ignore[name-defined]
    """Small, with dropout, a schedule by the step, and a validation that draws numbers."""

    def __init__(self, poison: int | None = None) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
        self.poison = poison

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        if self.global_step == self.poison:
            raise LookupError("poisoned")
        return (self.layers(batch[0]) - batch[0].sum(1, keepdim=True)).pow(2).mean()

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        self.log("drawn", self.layers(batch[0]).mean() * 0 + torch.rand(()))

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class StopAt(pl.Callback):  # type: ignore[name-defined]
    """Asks the attempt to stop within a step."""

    def __init__(self, job: Attempt, step: int | None) -> None:
        self._job, self._step = job, step

    def on_train_batch_start(self, trainer: Any, *_: object) -> None:  # noqa: ANN401
        self._job.stopping |= trainer.global_step + 1 == self._step


def train(job: Attempt, stop_at: int | None = None, *, accumulate: int = 1, net: Net | None = None) -> Tensor:
    """Train to the end, or to where it stops; return the weights."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(0)
    rows, model, attached = TensorDataset(torch.randn(42, 4)), net or Net(), Attached(job)
    trainer = pl.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        accumulate_grad_batches=accumulate,
        callbacks=[StopAt(job, stop_at), attached],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer.fit(model, attached.loader(rows, 8), DataLoader(rows, 21), ckpt_path=attached.newest())
    return torch.cat([weights.detach().flatten() for weights in model.parameters()])


@pytest.mark.parametrize(
    ("accumulate", "stop_at"),
    [(1, 1), (1, BATCHES - 1), (1, BATCHES), (1, BATCHES + 1), (2, 2), (2, 3), (2, 4)],
)
def test_a_training_that_was_stopped_ends_with_the_bits_of_one_that_was_not(
    attempt: Make, accumulate: int, stop_at: int
) -> None:
    whole = train(attempt("whole"), accumulate=accumulate)
    with pytest.raises(SystemExit, match="75"):
        train(attempt("stopped"), stop_at, accumulate=accumulate)
    resumed = attempt("stopped")
    assert torch.equal(train(resumed, accumulate=accumulate), whole)
    assert resumed.reports.known["resumed_from"] == stop_at


def test_a_finished_training_is_not_trained_again(attempt: Make) -> None:
    whole = train(attempt("whole"))
    assert torch.equal(train(attempt("whole"), net=Net(poison=EPOCHS * BATCHES)), whole)


def test_the_host_is_told_what_it_wants_to_know(attempt: Make) -> None:
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


def test_an_error_is_told_and_leaves_as_it_came(attempt: Make) -> None:
    job = attempt("broken")
    with pytest.raises(LookupError):
        train(job, net=Net(poison=3))
    directory = job.told.attempt_dir
    assert directory is not None
    result = Result.model_validate_json((directory / "result.json").read_bytes())
    assert (result.cause, result.message) == ("exception", "LookupError: poisoned")
