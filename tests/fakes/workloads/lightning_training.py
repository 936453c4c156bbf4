"""A small training by Lightning; only tests that run it import it, for Lightning takes seconds to load."""

import logging
import os
import signal
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from gpu_job_runner.attach import Attempt
from gpu_job_runner.integrations.lightning import Attached

EPOCHS = 2


class Net(pl.LightningModule):
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


class Watched(Net):
    """Halves its rate after most epochs, for what its schedule watches never falls."""

    def __init__(self, validated: list[int], terminate_at: int | None) -> None:
        super().__init__()
        self.validated, self.terminate_at = validated, terminate_at

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        super().validation_step(batch, index)
        self.log("rising", float(self.global_step))
        if index == 0:
            self.validated.append(self.global_step)
            if self.global_step == self.terminate_at:
                os.kill(os.getpid(), signal.SIGTERM)

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "rising"}}


class Means(Net):
    """Logs means over its epochs, one of them by the name of the loss, and one when an epoch ends."""

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        loss = super().training_step(batch, index)
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log("mean", self.global_step + 1.0, on_step=False, on_epoch=True, reduce_fx="max")
        return loss

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        super().validation_step(batch, index)
        self.log("loss", -1.0)

    def on_train_epoch_end(self) -> None:
        self.log("last", float(self.global_step))


class StopAt(pl.Callback):
    """Asks the attempt to stop within a step."""

    def __init__(self, job: Attempt, step: int | None) -> None:
        self._job, self._step = job, step

    def on_train_batch_start(self, trainer: Any, *_: object) -> None:
        self._job.stopping |= trainer.global_step + 1 == self._step


def train(  # noqa: PLR0913  (one value per disturbance)
    job: Attempt,
    stop_at: int | None = None,
    *,
    accumulate: int = 1,
    poison: int | None = None,
    validated: list[int] | None = None,
    terminate_at: int | None = None,
    logs_means: bool = False,
    **trainer_arguments: Any,
) -> Tensor:
    """Train to the end, or to where it stops; return the weights.

    With ``validated``, ``Watched`` is trained, and adds each step after which it validates;
    ``terminate_at`` is that of a validation in which SIGTERM comes.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(0)
    rows, model, attached = TensorDataset(torch.randn(42, 4)), Net(poison), Attached(job)
    if validated is not None:
        model = Watched(validated, terminate_at)
    if logs_means:
        model = Means()
    trainer = pl.Trainer(
        accelerator="cpu",
        accumulate_grad_batches=accumulate,
        callbacks=[StopAt(job, stop_at), attached],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
        **{"max_epochs": EPOCHS, "num_sanity_val_steps": 0, **trainer_arguments},
    )
    trainer.fit(model, attached.loader(rows, 8), DataLoader(rows, 21), ckpt_path=attached.newest())
    return torch.cat([weights.detach().flatten() for weights in model.parameters()])
