"""Random numbers as a function of (seed, purpose), so that no generator state is saved.

Every optimiser step re-seeds every generator that it may draw from.  Its draws therefore do not
depend on what happened before the step (an evaluation, a kill, another order of batches).
"""

import random
from hashlib import blake2b

import torch
from torch import Tensor


def derive(seed: int, *purpose: str | int) -> int:
    """Return a 63-bit number that depends on the seed and on every part of the purpose."""
    text = ":".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def seed_all(seed: int, *purpose: str | int) -> None:
    """Seed the global generators of Python, the CPU and the devices in use for a purpose."""
    key = derive(seed, *purpose)
    random.seed(key)
    # Not torch.manual_seed: it records a stack trace for devices that are not initialised (120 us).
    torch.default_generator.manual_seed(key)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(key)


def draw(limit: int, count: int, seed: int, *purpose: str | int) -> Tensor:
    """Return ``count`` integers below ``limit`` that depend on the arguments only."""
    generator = torch.Generator().manual_seed(derive(seed, *purpose))
    return torch.randint(limit, (count,), generator=generator)
