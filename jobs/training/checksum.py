"""A checksum of what the processes of an attempt must hold alike, computed where the tensors are.

Every word of the tensors is mixed with its position, as the finaliser of SplitMix64 does, and the results
are added modulo 2**64.  So a change of one word always changes the sum, and a swap or changes that
compensate each other go unnoticed with a probability of 2**-64.  Source of the constants: Steele, Lea and
Flood, "Fast splittable pseudorandom number generators", 2014.
"""

from collections.abc import Iterable
from typing import Final

import torch
from torch import Tensor

_STRIDE: Final = 0x9E3779B97F4A7C15 - 2**64
_MIX_1: Final = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2: Final = 0x94D049BB133111EB - 2**64
_LOW: Final = 2**32 - 1

_WORDS: Final = {8: torch.int32, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
"""The type of word by the size of an element; complex128 has 16 bytes, and is seen as int32, too."""

_CHUNK: Final = {"cpu": 1 << 16, "cuda": 1 << 24}
"""Words that are mixed together: what fits the cache of a core, or keeps a GPU busy."""


def checksum(tensors: Iterable[Tensor]) -> Tensor:
    """Return a number, on the CPU, that depends on every bit of the tensors and on its position."""
    totals: dict[torch.device, Tensor] = {}
    position = 0
    for tensor in tensors:
        words = tensor.detach().contiguous().reshape(-1)
        words = words.view(_WORDS.get(words.element_size(), torch.int32))
        found = _mixed_sum(words, position)
        where = words.device
        totals[where] = totals[where] + found if where in totals else found
        position += words.numel()
    return sum((total.cpu() for total in totals.values()), torch.tensor([position]))


def _mixed_sum(words: Tensor, position: int) -> Tensor:
    total = torch.zeros(1, dtype=torch.int64, device=words.device)
    most = _CHUNK.get(words.device.type, _CHUNK["cuda"])
    count = min(words.numel(), most)
    strides = torch.arange(count, dtype=torch.int64, device=words.device).mul_(_STRIDE)
    for part in words.split(most):
        mixed = part.to(torch.int64).add_(strides[: part.numel()]).add_(_signed(position * _STRIDE))
        mixed.mul_(_MIX_1)
        mixed.bitwise_xor_((mixed >> 32).bitwise_and_(_LOW)).mul_(_MIX_2)
        total += mixed.bitwise_xor_((mixed >> 32).bitwise_and_(_LOW)).sum()
        position += part.numel()
    return total


def _signed(number: int) -> int:
    """Return a number modulo 2**64 as torch takes it."""
    low = number & (2**64 - 1)
    return low - 2**64 if low >> 63 else low
