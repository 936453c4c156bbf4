"""A training that logs to TensorBoard and to MLflow, both into the directory of its job.

Look at it while it runs: "runner exec JOB -- sh -c 'tensorboard --logdir $HOME/tensorboard'" in one terminal,
and "runner forward JOB 6006" in another.
"""

import argparse
import os
from pathlib import Path

import mlflow
import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=120)
parser.add_argument("--resume", type=Path)
args = parser.parse_args()

home = Path(os.environ["HOME"])
mlflow.set_tracking_uri((home / "mlruns").as_uri())
mlflow.set_experiment("tracked")

torch.manual_seed(2)
inputs = torch.randn(1024, 128)
model = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
first, run_id = 0, None
if args.resume is not None:
    state = torch.load(args.resume)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first, run_id = state["step"], state["run"]
    print(f"resumed from step {first}", flush=True)

Path("out").mkdir(exist_ok=True)
# purge_step: what the killed attempt has logged behind its checkpoint is logged again
with mlflow.start_run(run_id=run_id) as run, SummaryWriter(home / "tensorboard", purge_step=first) as board:
    for step in range(first, args.steps):
        chosen = torch.randint(1024, (128,), generator=torch.Generator().manual_seed(step))
        loss = model(inputs[chosen]).sub(inputs[chosen].norm(dim=1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        board.add_scalar("loss", loss.item(), step)
        mlflow.log_metric("loss", loss.item(), step=step)
        if (step + 1) % 10 == 0:
            board.flush()
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "step": step + 1,
                "run": run.info.run_id,
            }
            torch.save(state, "out/last.pt.new")
            os.replace("out/last.pt.new", "out/last.pt")
            print(f"step {step + 1} loss {loss.item():.4f}", flush=True)
torch.save(model.state_dict(), "out/final.pt")
