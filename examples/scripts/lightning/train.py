"""Lightning with its own ModelCheckpoint at the end of each epoch; a resume continues with the next one."""

import argparse

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=16)
parser.add_argument("--ckpt")
args = parser.parse_args()


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)
        )

    def training_step(self, batch, index):
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.layers(inputs), targets)
        self.log("loss", loss)
        return loss

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch} is over", flush=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


pl.seed_everything(5)
inputs = torch.randn(2048, 32)
rows = TensorDataset(inputs, inputs.cos().mean(1, keepdim=True))
model = Net()
trainer = pl.Trainer(
    max_epochs=args.epochs,
    accelerator="cpu",
    callbacks=[ModelCheckpoint("out", filename="{epoch}", save_top_k=-1)],
    enable_progress_bar=False,
    logger=False,
)
sampler = DistributedSampler(
    rows, num_replicas=1, rank=0
)  # its order depends on the number of the epoch alone
trainer.fit(model, DataLoader(rows, batch_size=64, sampler=sampler), ckpt_path=args.ckpt)
torch.save(model.state_dict(), "out/final.pt")
