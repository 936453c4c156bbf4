"""A plain PyTorch training made resumable: the lines marked (+) are all that it took."""

import sys

import torch
from torch import nn

from gpu_job_runner.attach import apply_profile, attach_states  # (+)

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 300
BATCH = 32

torch.manual_seed(0)
rows = torch.randn(1024, 16)
targets = rows.pow(2).sum(dim=1, keepdim=True)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))
options = apply_profile().optimizer()  # (+) fused or foreach, as the profile has it
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, **options)

with attach_states(model=model, optimizer=optimizer) as job:  # (+)
    for step in job.steps(STEPS):  # (+) was: for step in range(STEPS)
        chosen = job.rows(step, len(rows), BATCH)  # (+) was: torch.randperm(len(rows))[:BATCH]
        loss = nn.functional.mse_loss(model(rows[chosen]), targets[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        job.report(loss=loss.item(), items=BATCH)  # (+)
        if step % 50 == 49:
            print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)
