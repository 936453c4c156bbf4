"""A training that saves when it is asked to stop, and at no other time."""

import argparse
import os
import signal
import sys

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=3000)
parser.add_argument("--save-every", type=int, default=500)
parser.add_argument("--out", default="out")
args = parser.parse_args()
stopping = False


def stop(number, frame):
    global stopping  # noqa: PLW0603
    stopping = True


signal.signal(signal.SIGTERM, stop)
last = os.path.join(args.out, "last.pt")
torch.manual_seed(3)
x = torch.randn(512, 16)
model = nn.Sequential(nn.Linear(16, 256), nn.Tanh(), nn.Linear(256, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
step = 0
if os.path.exists(last):
    saved = torch.load(last)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]
    print(f"resumed at step {step}")


def save():
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, last + ".tmp"
    )
    os.replace(last + ".tmp", last)


while step < args.steps:
    rows = torch.arange(step, step + 64) % len(x)
    loss = (model(x[rows]) - x[rows].prod(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 100 == 0:
        print(f"step {step}/{args.steps} loss {loss.item():.5f}")
    if step % args.save_every == 0:
        save()
    if stopping:
        save()
        print(f"asked to stop: saved at step {step}")
        sys.exit(0)
torch.save(model.state_dict(), os.path.join(args.out, "final.pt"))
