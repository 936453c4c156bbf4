"""A Lightning training made resumable: the lines marked (+) are all that it took."""

import os
import sys

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from gpu_job_runner.integrations.lightning import Attached  # (+)

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 10


class Regression(pl.LightningModule):
    """Learns the squared length of a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        """Return the loss of one batch."""
        rows, targets = batch
        return nn.functional.mse_loss(self.layers(rows), targets)

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        """Log the error on rows that were not trained on."""
        rows, targets = batch
        self.log("validation_loss", nn.functional.mse_loss(self.layers(rows), targets))

    def configure_optimizers(self) -> dict[str, object]:
        """Return AdamW and a schedule by the step."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


pl.seed_everything(0)
rows = torch.randn(1280, 16)
targets = rows.pow(2).sum(dim=1, keepdim=True)
training = TensorDataset(rows[:1024], targets[:1024])
validation = TensorDataset(rows[1024:], targets[1024:])

trainer = pl.Trainer(
    max_epochs=EPOCHS,
    accelerator="auto",
    devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),  # as many as the launcher starts
    enable_checkpointing=False,  # Attached saves
    logger=False,
    enable_progress_bar=False,
)
loader, validated = DataLoader(training, 32, shuffle=True), DataLoader(validation, 64)
Attached().fit(
    trainer, Regression(), loader, validated
)  # (+) was: trainer.fit(Regression(), loader, validated)
