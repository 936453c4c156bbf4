"""The console script of the project."""

import argparse
from pathlib import Path

import torch
from tqdm import trange

from tinyfit.model import build


def main():
    parser = argparse.ArgumentParser(prog="tinyfit")
    parser.add_argument("command", choices=["train"])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--resume", type=Path)
    args = parser.parse_args()
    torch.manual_seed(9)
    model = build(128)
    optimizer = torch.optim.Adam(model.parameters())
    first = 0
    if args.resume:
        saved = torch.load(args.resume)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    runs = Path("runs")
    runs.mkdir(exist_ok=True)
    for step in trange(first, args.steps, initial=first, total=args.steps):
        x = torch.randn(32, 8, generator=torch.Generator().manual_seed(step))
        loss = (model(x) - x.norm(dim=1, keepdim=True)).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % 100 == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            torch.save(state, runs / f"ckpt-{step + 1:06d}.pt")
            print(f"step {step + 1} loss {loss.item():.4f}", flush=True)
    torch.save(model.state_dict(), runs / "final.pt")
