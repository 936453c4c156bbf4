"""A loop with Accelerate: save_state every few steps, --resume_from_checkpoint, skip_first_batches."""

import argparse
import os

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--num_epochs", type=int, default=8)
parser.add_argument("--checkpointing_steps", type=int, default=20)
parser.add_argument("--output_dir", default="out")
parser.add_argument("--resume_from_checkpoint")
args = parser.parse_args()

accelerator = Accelerator(cpu=True)
set_seed(42)
x = torch.randn(2048, 32)
loader = DataLoader(TensorDataset(x, x.cos().sum(1, keepdim=True)), batch_size=16)
model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, args.num_epochs * len(loader))
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

overall = 0
if args.resume_from_checkpoint:
    accelerator.print(f"Resumed from checkpoint: {args.resume_from_checkpoint}")
    accelerator.load_state(args.resume_from_checkpoint)
    overall = int(os.path.basename(args.resume_from_checkpoint).removeprefix("step_"))
starting_epoch, skipped = divmod(overall, len(loader))
for epoch in range(starting_epoch, args.num_epochs):
    model.train()
    batches = (
        accelerator.skip_first_batches(loader, skipped) if epoch == starting_epoch and skipped else loader
    )
    for inputs, targets in batches:
        loss = nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        overall += 1
        if overall % args.checkpointing_steps == 0:
            accelerator.save_state(os.path.join(args.output_dir, f"step_{overall}"))
            accelerator.print(f"step {overall} loss {loss.item():.4f}", flush=True)
torch.save(accelerator.unwrap_model(model).state_dict(), os.path.join(args.output_dir, "final.pt"))
