"""Measures how long ``torch.distributed.checkpoint.async_save`` blocks its caller."""

import json
import os
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed import checkpoint

from jobs.contract import Profile
from jobs.contract.plans.causal_lm import CausalLm
from jobs.workloads.causal_lm import Transformer


def main() -> None:
    """Save several times, and print the median without the first save, which also starts threads."""
    told = json.loads(sys.argv[1])
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29543", RANK="0", WORLD_SIZE="1")
    distributed.init_process_group("gloo")
    device = torch.device("cpu" if told["rehearsal"] else "cuda")
    plan = CausalLm.model_validate({"data": "stdlib", **told["plan"]})
    model = Transformer(plan, Profile()).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.randint(256, (2, plan.context), device=device)
    stalls = [
        _saved(model, optimizer, tokens, Path(told["directory"]) / str(n)) for n in range(told["saves"])
    ]
    size = sum(t.numel() * t.element_size() for t in model.state_dict().values()) * 3
    print(json.dumps({"stall ms": statistics.median(stalls[1:]) * 1000, "MiB": size / 2**20}))
    distributed.destroy_process_group()


def _saved(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, tokens: torch.Tensor, place: Path
) -> float:
    """Take one step, and return the time until ``async_save`` returns."""
    optimizer.zero_grad()
    model(tokens).float().square().mean().backward()
    optimizer.step()
    _settle(tokens.device)
    state: dict[str, Any] = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    began = time.perf_counter()
    saving = checkpoint.async_save(state, checkpoint_id=str(place))
    took = time.perf_counter() - began
    saving.result()
    shutil.rmtree(place)
    return took


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
