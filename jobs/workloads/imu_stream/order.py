"""Defines the endless order of windows of recordings, as a function of seed and step.

Recordings are distributed over shards, and step s uses shard s mod shards.  A loader process
that makes every W-th step therefore reads only its share of the recordings if W divides the shards.
Each pass over a shard shuffles its recordings and splits them into blocks; all rows of a block are
shuffled together.  A cache of ``shards * block`` recordings therefore reads none twice in a pass.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from jobs.training.lru import LruCache
from jobs.training.randomness import derive

Whole: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Order:
    """The endless order of all rows of the given recordings."""

    recordings: tuple[int, ...]
    windows: tuple[int, ...]  # of each recording
    combos: int
    shards: int
    block: int
    seed: int
    purpose: str

    def rows(self, step: int, count: int) -> Whole:
        """Return the rows of a step, of shape (count, 3)."""
        shard, turn = step % self.shards, step // self.shards
        found: list[Whole] = []
        position, left = turn * count, count
        while left:
            part = self._from(shard, position)[:left]
            position, left = position + len(part), left - len(part)
            found.append(part)
        return np.concatenate(found)

    @cached_property
    def shard_rows(self) -> tuple[int, ...]:
        """Rows in one pass over each shard."""
        places = range(len(self.recordings))
        return tuple(self._size(places[shard :: self.shards]) for shard in range(self.shards))

    @cached_property
    def _shuffled(self) -> "LruCache[tuple[int, int, int], Whole]":
        return LruCache(2 * self.shards)

    def _from(self, shard: int, position: int) -> Whole:
        """Return the rows from a position of a shard to the end of their block."""
        number, offset = divmod(position, self.shard_rows[shard])
        blocks = enumerate(self._blocks(shard, number))
        block, places = next(blocks)
        while offset >= (size := self._size(places)):
            offset -= size
            block, places = next(blocks)
        key = (shard, number, block)
        return self._shuffled.get(key, lambda: self._rows_of(key, places))[offset:]

    def _size(self, places: Iterable[int]) -> int:
        return sum(self.windows[place] for place in places) * self.combos

    def _blocks(self, shard: int, number: int) -> Iterator[list[int]]:
        """Yield the indices into ``recordings`` of every block of a pass."""
        mine = range(shard, len(self.recordings), self.shards)
        shuffled = [mine[each] for each in self._permutation(len(mine), "recordings", shard, number)]
        for start in range(0, len(shuffled), self.block):
            yield shuffled[start : start + self.block]

    def _rows_of(self, key: tuple[int, int, int], places: list[int]) -> Whole:
        rows = [
            (self.recordings[place], window, combo)
            for place in places
            for window in range(self.windows[place])
            for combo in range(self.combos)
        ]
        return np.array(rows, dtype=np.int64)[self._permutation(len(rows), "rows", *key)]

    def _permutation(self, length: int, *purpose: str | int) -> Whole:
        generator = torch.Generator().manual_seed(derive(self.seed, self.purpose, *purpose))
        return np.asarray(torch.randperm(length, generator=generator).numpy())
