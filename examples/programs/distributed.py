"""A DistributedDataParallel training made resumable: the lines marked (+) are all that it took."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gpu_job_runner.attach import attach_states  # (+)

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 300
BATCH = 32  # of all processes together

on_gpus = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpus else torch.device("cpu")
dist.init_process_group("nccl" if on_gpus else "gloo")
rank, processes = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
rows = torch.randn(1024, 16)
targets = rows.pow(2).sum(dim=1, keepdim=True)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1)).to(device)
replica = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

with attach_states(model=model, optimizer=optimizer) as job:  # (+) after init_process_group
    for step in job.steps(STEPS):  # (+) was: for step in range(STEPS)
        chosen = job.rows(step, len(rows), BATCH)[rank::processes]  # (+) was: torch.randperm(...)
        job.seed(step, "rank", rank)  # (+) each process drops other units
        loss = nn.functional.mse_loss(replica(rows[chosen].to(device)), targets[chosen].to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        job.report(loss=loss.item(), items=BATCH)  # (+) what rank 0 says counts
        if step % 50 == 49 and rank == 0:
            print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)
dist.destroy_process_group()
