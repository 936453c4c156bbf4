"""Provides the graphs of days: rebuilt at each use, or built once and cached.

``Rebuilt`` does what the source project did: it builds a day's graph for each validation batch
that contains the day; in training, it caches the graphs of the last hundred days.  ``Prebuilt`` holds
all graphs, built together or read from disk.  Both give the same edges
(``jobs.workloads.graph_forecast.graphs``); only the time differs.

The key of a cached file is the sha256 of everything that determines the edges: dates,
assets, returns and rule.  (The source project used Python's ``hash()`` of strings, which
differs between processes, so its disk cache never hit after a restart.)
"""
# ruff: noqa: N803, N806, N815 - arrays carry their shape: B days of a batch, D days, N nodes, K neighbours

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from jobs.checkpoint import durable as files
from jobs.training.lru import LruCache
from jobs.workloads.graph_forecast.gaps import GappedReturns, Known, build_gapped_days, rebuild_gapped_day
from jobs.workloads.graph_forecast.graphs import EdgeRule, Graphs, LongTable, Whole, build_days, rebuild_day

REMEMBERED_DAYS: Final = 100
"""Days whose graphs the source project kept while training, and never while validating."""

BLOCK_DAYS: Final = 256
"""Days that are built, and kept on disk, together: more history changes the keys of the last two at most."""

DISK_BYTES: Final = 256 * 1024**2
"""Kept on disk at most; what was not used for longest goes first."""

PROCESSES: Final = 257
"""The trainer and as many loader processes as a profile may ask for."""

_MAGIC: Final = b"graphs 1 "


@dataclass(frozen=True, slots=True)
class Market:
    """The input of graphs: the returns of ``whole_returns``, with their dates (rows) and assets (columns).

    ``known_DN`` tells which returns there are; None: all of them.
    """

    dates: tuple[str, ...]
    assets: tuple[str, ...]
    returns_DN: Whole
    known_DN: Known | None = None

    def build(self, days: range, rule: EdgeRule) -> Graphs:
        """Return the graphs of consecutive days."""
        if self.known_DN is None:
            return build_days(self.returns_DN, days, rule)
        return build_gapped_days(GappedReturns(self.returns_DN, self.known_DN), days, rule)


class Counts:
    """Counts cached graphs (hits) and built graphs (misses), in the trainer and its loader processes.

    Every process has its own row in shared memory, so no lock is needed.
    """

    def __init__(self, *, shared: bool) -> None:
        self._table = torch.zeros(PROCESSES, 2, dtype=torch.int64)
        if shared:
            self._table.share_memory_()

    def add(self, hits: int = 0, misses: int = 0) -> None:
        """Add to the row of this process."""
        process = get_worker_info()
        row = self._table[0 if process is None else process.id + 1]
        row += torch.tensor([hits, misses])

    @property
    def hits(self) -> int:
        return int(self._table[:, 0].sum())

    @property
    def misses(self) -> int:
        return int(self._table[:, 1].sum())


class GraphSource(Protocol):
    """Provides the graphs of any days, always with the same edges; can be pickled."""

    @property
    def counts(self) -> Counts: ...

    @property
    def kind(self) -> str:
        """The value of the switch that this source implements."""

    @property
    def note(self) -> str:
        """The hits and misses of the cache so far, in one line."""

    @property
    def size_bytes(self) -> int:
        """Bytes that ``on`` takes on a device."""

    def on(self, device: torch.device) -> "GraphSource":
        """Return the same source with its graphs on a device."""

    def of(self, days_B: Tensor, *, validating: bool) -> Graphs:
        """Return the graphs of the given days; ``days_B`` is a CPU tensor."""


@dataclass(frozen=True, slots=True)
class Prebuilt:
    """The graphs of consecutive days, from day ``first`` on."""

    first: int
    graphs: Graphs
    counts: Counts
    kind: str = "memory"
    remark: str = ""

    @property
    def note(self) -> str:
        return f"{self.counts.hits:,} hits, {self.counts.misses:,} misses{self.remark}"

    @property
    def size_bytes(self) -> int:
        return sum(one.numel() * one.element_size() for one in self.graphs)

    def on(self, device: torch.device) -> "Prebuilt":
        return replace(self, graphs=self.graphs.to(device))

    def of(self, days_B: Tensor, *, validating: bool) -> Graphs:  # noqa: ARG002 - unused here
        self.counts.add(hits=len(days_B))
        place_B = (days_B - self.first).to(self.graphs.neighbours_DNK.device)
        return Graphs(*(one[place_B] for one in self.graphs))


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """Builds graphs on request, as the source project did."""

    table: "LongTable | GroupedTables"
    rule: EdgeRule
    counts: Counts
    remembered: LruCache[int, Graphs] = field(default_factory=partial(LruCache, REMEMBERED_DAYS))
    device: torch.device = field(default_factory=partial(torch.device, "cpu"))
    size_bytes: int = 0
    kind: str = "off"

    @property
    def note(self) -> str:
        counts = self.counts
        return f"{counts.misses:,} rebuilt, {counts.hits:,} remembered from the last {REMEMBERED_DAYS} days"

    def on(self, device: torch.device) -> "Rebuilt":
        return replace(self, device=device)

    def of(self, days_B: Tensor, *, validating: bool) -> Graphs:
        take = self._build if validating else self._recall
        parts = [take(day) for day in days_B.tolist()]
        return Graphs(*(torch.cat(list(one)).to(self.device) for one in zip(*parts, strict=True)))

    def _recall(self, day: int) -> Graphs:
        made = self.remembered.made
        graphs = self.remembered.get(day, partial(self._build, day))
        self.counts.add(hits=int(made == self.remembered.made))
        return graphs

    def _build(self, day: int) -> Graphs:
        self.counts.add(misses=1)
        if isinstance(self.table, GroupedTables):
            return self.table.rebuild(day, self.rule)
        return rebuild_day(self.table, day, self.rule)


@dataclass(frozen=True, slots=True)
class GroupedTables:
    """The long tables of several groups of stocks, whose graphs lie one group after the other."""

    tables: tuple[LongTable, ...]
    days: range

    def rebuild(self, place: int, rule: EdgeRule) -> Graphs:
        """Return the graph at a place: group by group, day by day."""
        group, day = divmod(place, len(self.days))
        return rebuild_gapped_day(self.tables[group], self.days[day], rule)


def joined(parts: Sequence[Prebuilt]) -> Prebuilt:
    """Return the graphs of several groups of stocks as one source, one group after the other."""
    graphs = Graphs(*(torch.cat(list(one)) for one in zip(*(part.graphs for part in parts), strict=True)))
    return replace(parts[-1], first=0, graphs=graphs)


def prebuild(
    market: Market, days: range, rule: EdgeRule, counts: Counts, block_cache: "GraphBlockCache | None"
) -> Prebuilt:
    """Return the graphs of all days; each block is read from the cache, or built and stored there."""
    edges = range(days.start - days.start % BLOCK_DAYS, days.stop, BLOCK_DAYS)
    blocks = [range(max(start, days.start), min(start + BLOCK_DAYS, days.stop)) for start in edges]
    parts = [_block(market, block, rule, counts, block_cache) for block in blocks]
    graphs = Graphs(*(torch.cat(list(one)) for one in zip(*parts, strict=True)))
    if block_cache is None:
        return Prebuilt(days.start, graphs, counts)
    return Prebuilt(days.start, graphs, counts, "disk", block_cache.remark)


def _block(
    market: Market, days: range, rule: EdgeRule, counts: Counts, block_cache: "GraphBlockCache | None"
) -> Graphs:
    if block_cache is None:
        counts.add(misses=len(days))
        return market.build(days, rule)
    key = block_key(market, days, rule)
    nodes = len(market.assets)
    found = block_cache.get(key, (len(days), nodes, min(rule.neighbours, nodes)))
    if found is not None:
        counts.add(hits=len(days))
        return found
    counts.add(misses=len(days))
    made = market.build(days, rule)
    block_cache.put(key, made)
    return made


def block_key(market: Market, days: range, rule: EdgeRule) -> str:
    """Return the sha256 of everything that determines the edges of the given days."""
    used = slice(days.start - rule.lookback + 1, days.stop)
    names = [asdict(rule), list(market.assets), list(market.dates[used]), len(days)]
    digest = hashlib.sha256(_MAGIC + json.dumps(names, sort_keys=True).encode())
    digest.update(np.ascontiguousarray(market.returns_DN[used], dtype="<i8").tobytes())
    if market.known_DN is not None:
        digest.update(np.ascontiguousarray(market.known_DN[used]).tobytes())
    return digest.hexdigest()


class GraphBlockCache:
    """A cache of graphs in a directory, one file for each block of days, named by its key.

    A file holds the sha256 of its content; a truncated or altered file is rebuilt.  If the directory
    cannot be written, the next attempt takes longer, and ``remark`` reports it.
    """

    def __init__(self, directory: Path, limit_bytes: int = DISK_BYTES) -> None:
        self._directory = directory
        self._limit = limit_bytes
        self._damaged = 0
        self._trouble = ""

    @property
    def remark(self) -> str:
        """Return the problems so far, as a suffix of a line."""
        damaged = f"; {self._damaged} damaged file(s) built again" if self._damaged else ""
        return damaged + (f"; not kept on disk: {self._trouble}" if self._trouble else "")

    def get(self, key: str, shape: Sequence[int]) -> Graphs | None:
        """Return the graphs of a key, or None if they are missing or damaged."""
        path = self._path(key)
        try:
            content = path.read_bytes()
            os.utime(path)  # mark as recently used, for the eviction
        except FileNotFoundError:
            return None
        except OSError as error:
            self._trouble = f"{path}: {error.strerror}"
            return None
        graphs = _unpacked(content, shape)
        self._damaged += graphs is None
        return graphs

    def put(self, key: str, graphs: Graphs) -> None:
        """Store graphs, and delete the least recently used files beyond the size limit."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            files.replace(self._path(key), _packed(graphs))
            self._make_room()
        except OSError as error:
            self._trouble = f"{self._directory}: {error.strerror}"

    def _path(self, key: str) -> Path:
        return self._directory / f"{key}.graphs"

    def _make_room(self) -> None:
        kept = [(path.stat(), path) for path in self._directory.glob("*.graphs")]
        total = sum(about.st_size for about, _ in kept)
        for about, path in sorted(kept, key=lambda one: one[0].st_mtime_ns):
            if total <= self._limit:
                return
            path.unlink(missing_ok=True)
            total -= about.st_size


def _packed(graphs: Graphs) -> bytes:
    neighbours_DNK, correlations_DNK = graphs
    payload = (
        neighbours_DNK.numpy().astype("<i4").tobytes() + correlations_DNK.numpy().astype("<f4").tobytes()
    )
    return _MAGIC + hashlib.sha256(payload).digest() + payload


def _unpacked(content: bytes, shape: Sequence[int]) -> Graphs | None:
    head, payload = content[: len(_MAGIC) + 32], content[len(_MAGIC) + 32 :]
    if head != _MAGIC + hashlib.sha256(payload).digest() or len(payload) != 8 * int(np.prod(shape)):
        return None
    half = len(payload) // 2
    neighbours = np.frombuffer(payload[:half], "<i4").astype(np.int64).reshape(shape)
    correlations = np.frombuffer(payload[half:], "<f4").astype(np.float32).reshape(shape)
    return Graphs(torch.from_numpy(neighbours), torch.from_numpy(correlations))
