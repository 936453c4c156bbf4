"""The rate of a large bf16 matrix product: ``near_limit_worker DEVICE SIZE`` prints it as JSON."""

import json
import statistics
import sys
import time
from typing import Final

import torch

PRODUCTS: Final = 20


def main() -> None:
    """Print the median FLOP rate of products of random data."""
    kind, size = sys.argv[1], int(sys.argv[2])
    a, b = (torch.randn(size, size, device=torch.device(kind), dtype=torch.bfloat16) for _ in range(2))
    seconds = [_timed(a, b) for _ in range(PRODUCTS + 3)][3:]
    rates = sorted(2 * size**3 / each for each in seconds)
    flops, low, high = statistics.median(rates), rates[0] / 1e12, rates[-1] / 1e12
    summary = f"{flops / 1e12:,.1f} TFLOP/s ({low:,.1f}-{high:,.1f}), {size} x {size} x {size}"
    print(json.dumps({"flops": flops, "summary": summary, "seconds": seconds}))


def _timed(a: torch.Tensor, b: torch.Tensor) -> float:
    _settle(a.device)
    began = time.perf_counter()
    for _ in range(5):
        a @ b
    _settle(a.device)
    return (time.perf_counter() - began) / 5


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
