"""DistributedDataParallel under torchrun: rank 0 writes snapshot.pt, and everybody takes it up if it is there."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SNAPSHOT, EPOCHS = "snapshot.pt", 60


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    x = torch.randn(2048, 32)
    data = TensorDataset(x, x.sum(1, keepdim=True).sin())
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 32, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first = 0
    if os.path.exists(SNAPSHOT):
        saved = torch.load(SNAPSHOT)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epoch"] + 1
        print(f"[rank {rank}] resuming from the snapshot of epoch {saved['epoch']}", flush=True)
    for epoch in range(first, EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} of {EPOCHS} | loss {loss.item():.4f}", flush=True)
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state, SNAPSHOT)
    if rank == 0:
        torch.save(model.module.state_dict(), "final.pt")
    dist.barrier()  # no rank leaves while another still writes
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
