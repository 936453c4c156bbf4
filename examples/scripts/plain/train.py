"""A plain PyTorch training as people write it: a loop, a progress bar, one file to resume from."""

import argparse
import os
from pathlib import Path

import torch
from torch import nn
from tqdm import tqdm

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--save-every", type=int, default=10)
parser.add_argument("--resume", type=Path)
args = parser.parse_args()

torch.manual_seed(7)
inputs = torch.randn(4096, 64)
targets = inputs.sin().sum(1, keepdim=True)
model = nn.Sequential(
    nn.Linear(64, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
first = 0
if args.resume is not None:
    state = torch.load(args.resume)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    schedule.load_state_dict(state["schedule"])
    torch.set_rng_state(state["random"])
    first = state["step"]
    print(f"resumed from step {first}", flush=True)

Path("out").mkdir(exist_ok=True)
for step in tqdm(range(first, args.steps), initial=first, total=args.steps):
    chosen = torch.randint(len(inputs), (256,))
    loss = nn.functional.mse_loss(model(inputs[chosen]), targets[chosen])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if (step + 1) % args.save_every == 0:
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "schedule": schedule.state_dict(),
            "random": torch.get_rng_state(),
            "step": step + 1,
        }
        torch.save(state, "out/last.pt.new")
        os.replace("out/last.pt.new", "out/last.pt")
        print(f"step {step + 1} loss {loss.item():.4f}", flush=True)
torch.save(model.state_dict(), "out/final.pt")
