"""One process per device: an all-reduce, and five data-parallel steps compared with one process."""

import json
import os
import sys
import time
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import torch
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

MIB: Final = 64
ROWS: Final = 16
TOLERANCE: Final = 1e-5


def main() -> None:
    """Spawn one process per device (two on a CPU) and print the results of rank 0."""
    kind, place = sys.argv[1], Path(sys.argv[2])
    world = torch.cuda.device_count() if kind == "cuda" else 2
    multiprocessing.spawn(_rank, (world, kind, str(place)), nprocs=world)
    print((place / "found.json").read_text())


def _rank(rank: int, world: int, kind: str, place: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29541")
    backend = "nccl" if kind == "cuda" else "gloo"
    distributed.init_process_group(backend, rank=rank, world_size=world)
    device = torch.device(kind, rank) if kind == "cuda" else torch.device("cpu")
    found = {
        "world": world,
        "backend": backend,
        "MiB": MIB,
        **_reduced(rank, world, device),
        **_trained(rank, world, device),
    }
    if rank == 0:
        (Path(place) / "found.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


def _reduced(rank: int, world: int, device: torch.device) -> dict[str, float]:
    summed = torch.full((1,), float(rank + 1), device=device)
    distributed.all_reduce(summed)
    large = torch.ones(MIB * 2**18, device=device)
    distributed.all_reduce(large)
    _settle(device)
    began = time.perf_counter()
    for _ in range(5):
        distributed.all_reduce(large)
    _settle(device)
    took = (time.perf_counter() - began) / 5 * 1000
    return {"sum": float(summed), "expected": world * (world + 1) / 2, "ms": took}


def _trained(rank: int, world: int, device: torch.device) -> dict[str, Any]:
    """Return the maximum weight difference between data-parallel and single-process training."""
    torch.manual_seed(0)
    alone = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    together = DistributedDataParallel(deepcopy(alone))
    rows, wanted = torch.randn(ROWS * world, 32, device=device), torch.randn(ROWS * world, 1, device=device)
    mine = slice(rank * ROWS, (rank + 1) * ROWS)
    for model, part in ((alone, slice(None)), (together, mine)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            (model(rows[part]) - wanted[part]).square().mean().backward()
            optimizer.step()
    pairs = zip(alone.parameters(), together.parameters(), strict=True)
    apart = max(float((a - b).abs().max()) for a, b in pairs)
    return {"apart": apart, "tolerance": TOLERANCE}


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
