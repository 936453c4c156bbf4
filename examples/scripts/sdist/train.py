"""Train a small network.

Usage:
  train.py [--steps=N] [--resume=FILE]

Options:
  --steps=N      Steps in all [default: 160].
  --resume=FILE  Continue from this file.
"""

import os

import torch
from docopt import docopt
from torch import nn

args = docopt(__doc__)
steps, first = int(args["--steps"]), 0

torch.manual_seed(4)
inputs = torch.randn(2048, 64)
targets = inputs.abs().sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1))
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
if args["--resume"]:
    state = torch.load(args["--resume"])
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["step"]
    print(f"resumed from step {first}", flush=True)

for step in range(first, steps):
    rows = torch.arange(step * 256, (step + 1) * 256) % 2048
    loss = nn.functional.smooth_l1_loss(model(inputs[rows]), targets[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if (step + 1) % 10 == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
        torch.save(state, "last.pt.new")
        os.replace("last.pt.new", "last.pt")
        print(f"step {step + 1} loss {loss.item():.4f}", flush=True)
torch.save(model.state_dict(), "final.pt")
