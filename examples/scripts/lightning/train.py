"""Lightning that keeps the best checkpoint of a validation loss, and the last one."""

import argparse

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Regressor(pl.LightningModule):
    def __init__(self, lr=3e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Linear(16, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 1)
        )

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        # Noise is all there is to learn, so the first epochs are the best ones.
        self.log("val_loss", nn.functional.mse_loss(self.net(x), y))

    def on_validation_epoch_end(self):
        print(
            f"epoch {self.current_epoch} val_loss {self.trainer.callback_metrics['val_loss']:.4f}", flush=True
        )

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


def noise(rows, seed):
    drawn = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(rows, 16, generator=drawn), torch.randn(rows, 1, generator=drawn))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["fit"])
    parser.add_argument("--max_epochs", type=int, default=60)
    parser.add_argument("--ckpt_path")
    args = parser.parse_args()
    pl.seed_everything(11)
    train, val = noise(1024, 1), noise(512, 2)
    model = Regressor()
    trainer = pl.Trainer(
        max_epochs=args.max_epochs,
        accelerator="cpu",
        callbacks=[
            ModelCheckpoint(
                dirpath="out",
                filename="{epoch}-{val_loss:.2f}",
                monitor="val_loss",
                save_top_k=1,
                save_last=True,
            )
        ],
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        logger=False,
    )
    order = DistributedSampler(train, num_replicas=1, rank=0)
    trainer.fit(model, DataLoader(train, 32, sampler=order), DataLoader(val, 256), ckpt_path=args.ckpt_path)
    torch.save(model.state_dict(), "out/final.pt")


if __name__ == "__main__":
    main()
