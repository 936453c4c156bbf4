"""A DataLoader with two worker processes that shuffles, and draws random numbers for each row.

What makes a resume exact is in two lines: the generator of the loader is seeded by the epoch, and the script
saves at the end of an epoch.  The workers get their seeds from that generator.
"""

import os
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

EPOCHS = 20
LAST = Path(os.environ.get("RUNNER_RESUME_FROM", ""))


class Noisy(Dataset):
    """Rows with an augmentation that is random in the worker that makes it."""

    def __init__(self):
        self.rows = torch.randn(512, 64, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        return row + 0.1 * torch.randn(64), row.sum().sin()


def main():
    torch.manual_seed(11)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    first = 0
    if LAST.is_file():
        state = torch.load(LAST)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"]
        print(f"resumed after epoch {first}", flush=True)
    Path("out").mkdir(exist_ok=True)
    generator = torch.Generator()
    loader = DataLoader(Noisy(), batch_size=32, shuffle=True, num_workers=2, generator=generator)
    for epoch in range(first, EPOCHS):
        generator.manual_seed(epoch)
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs).squeeze(1), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
        torch.save(state, f"out/epoch-{epoch + 1:03d}.pt.new")
        os.replace(f"out/epoch-{epoch + 1:03d}.pt.new", f"out/epoch-{epoch + 1:03d}.pt")
        print(f"epoch {epoch + 1}/{EPOCHS} loss {loss.item():.4f}", flush=True)
    torch.save(model.state_dict(), "out/final.pt")


if __name__ == "__main__":
    main()
