"""Kept graphs: never other ones than those that would be built."""

import dataclasses
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from jobs.workloads.graph_forecast import cache as graph_cache
from jobs.workloads.graph_forecast.cache import (
    Counts,
    GraphBlockCache,
    GraphSource,
    Market,
    Prebuilt,
    Rebuilt,
    block_key,
    prebuild,
)
from jobs.workloads.graph_forecast.graphs import EdgeRule, Graphs, LongTable, whole_returns

RULE = EdgeRule(neighbours=2, lookback=10, half_life=5.0, shrinkage=0.1, threshold=0.1)

DAYS = range(12, 40)


def market(assets: int = 5) -> Market:
    generator = torch.Generator().manual_seed(0)
    steps = 0.01 * torch.randn(40, assets, generator=generator, dtype=torch.float64)
    dates = tuple(f"2024-{day // 28 + 1:02d}-{day % 28 + 1:02d}" for day in range(40))
    names = tuple("ABCDE"[:assets])
    return Market(dates, names, whole_returns(steps.cumsum(0).exp()))


def built(block_cache: GraphBlockCache | None = None) -> Prebuilt:
    return prebuild(market(), DAYS, RULE, Counts(shared=False), block_cache)


def rebuilt() -> Rebuilt:
    return Rebuilt(LongTable.of(market().returns_DN), RULE, Counts(shared=False))


def equal(one: Graphs, other: Graphs) -> bool:
    return all(a.equal(b) for a, b in zip(one, other, strict=True))


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_cache, "BLOCK_DAYS", 16)


def files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.graphs"))


@pytest.mark.parametrize("validating", [True, False])
def test_graphs_are_the_same_wherever_they_come_from(tmp_path: Path, validating: bool) -> None:  # noqa: FBT001
    days = torch.tensor([12, 39, 20, 20])
    expected = rebuilt().of(days, validating=validating)
    for source in (built(), built(GraphBlockCache(tmp_path)), built(GraphBlockCache(tmp_path))):
        assert equal(source.of(days, validating=validating), expected)


def test_validation_rebuilds_every_time_and_training_remembers_a_hundred_days() -> None:
    source = rebuilt()
    for _ in range(2):
        source.of(torch.tensor([20, 21]), validating=True)
    assert (source.counts.hits, source.counts.misses) == (0, 4)
    for _ in range(2):
        source.of(torch.tensor([20, 21]), validating=False)
    assert (source.counts.hits, source.counts.misses) == (2, 6)
    assert source.remembered.capacity == 100
    assert source.note == "6 rebuilt, 2 remembered from the last 100 days"


def test_prebuilt_graphs_miss_once_for_each_day_and_never_again() -> None:
    source = built()
    assert (source.counts.hits, source.counts.misses) == (0, len(DAYS))
    source.of(torch.tensor([20, 21]), validating=True)
    assert (source.counts.hits, source.counts.misses) == (2, len(DAYS))
    assert source.note == "2 hits, 28 misses"


def test_the_next_attempt_finds_all_graphs_on_disk(tmp_path: Path) -> None:
    first, second = (
        built(GraphBlockCache(tmp_path / "new" / "graphs")),
        built(GraphBlockCache(tmp_path / "new" / "graphs")),
    )
    assert (first.counts.hits, first.counts.misses) == (0, 28)
    assert (second.counts.hits, second.counts.misses) == (28, 0)
    assert equal(first.graphs, second.graphs)
    assert len(files(tmp_path / "new" / "graphs")) == 3  # days 12-15, 16-31 and 32-39
    assert second.kind == "disk"


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "other"])
def test_a_damaged_file_is_built_again_and_that_is_said(tmp_path: Path, damage: str) -> None:
    whole = built(GraphBlockCache(tmp_path))
    victim = files(tmp_path)[0]
    content = victim.read_bytes()
    altered = {
        "cut": content[:-1],
        "flipped": content[:-1] + bytes([content[-1] ^ 1]),
        "empty": b"",
        "other": b"something else entirely",
    }
    victim.write_bytes(altered[damage])
    again = built(GraphBlockCache(tmp_path))
    assert equal(again.graphs, whole.graphs)
    assert 0 < again.counts.misses < 28
    assert again.note.endswith("; 1 damaged file(s) built again")
    assert built(GraphBlockCache(tmp_path)).counts.misses == 0


def test_a_whole_file_of_another_shape_is_not_taken(tmp_path: Path) -> None:
    """Two keys never share a name, but a file may have been renamed."""
    whole = built(GraphBlockCache(tmp_path))
    small, large = sorted(files(tmp_path), key=lambda path: path.stat().st_size)[::2]
    small.write_bytes(large.read_bytes())
    assert equal(built(GraphBlockCache(tmp_path)).graphs, whole.graphs)


def test_what_was_not_used_for_longest_makes_room(tmp_path: Path) -> None:
    built(GraphBlockCache(tmp_path))
    sizes = sum(path.stat().st_size for path in files(tmp_path))
    oldest = files(tmp_path)[1]
    os.utime(oldest, (1, 1))
    block_cache = GraphBlockCache(tmp_path, limit_bytes=sizes)
    block_cache.put("0" * 64, Graphs(torch.zeros(1, 5, 2, dtype=torch.int64), torch.zeros(1, 5, 2)))
    assert not oldest.exists()
    assert len(files(tmp_path)) == 3


def test_a_hit_counts_as_use(tmp_path: Path) -> None:
    built(GraphBlockCache(tmp_path))
    for path in files(tmp_path):
        os.utime(path, (1, 1))
    built(GraphBlockCache(tmp_path))
    assert all(path.stat().st_mtime > 1 for path in files(tmp_path))


def test_a_directory_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    source = built(GraphBlockCache(tmp_path / "file" / "graphs"))
    assert equal(source.graphs, built().graphs)
    assert "; not kept on disk: " in source.note
    assert "Not a directory" in source.note


def test_the_key_follows_from_everything_that_the_edges_follow_from() -> None:
    whole = market()
    key = block_key(whole, DAYS, RULE)
    moved = whole.returns_DN.copy()
    moved[20, 0] += 1
    others = [
        (dataclasses.replace(whole, returns_DN=moved), DAYS, RULE),
        (dataclasses.replace(whole, assets=("A", "B", "C", "D", "X")), DAYS, RULE),
        (dataclasses.replace(whole, dates=("2023-01-01",) * 40), DAYS, RULE),
        (whole, range(12, 39), RULE),
        *((whole, DAYS, dataclasses.replace(RULE, **change)) for change in CHANGES),
    ]
    keys = {block_key(*other) for other in others}
    assert key not in keys
    assert len(keys) == len(others)
    moved = whole.returns_DN.copy()
    moved[0] += 1  # before the lookback of the first day
    assert block_key(dataclasses.replace(whole, returns_DN=moved), DAYS, RULE) == key


CHANGES: list[dict[str, Any]] = [
    {"neighbours": 3},
    {"lookback": 11},
    {"half_life": 6.0},
    {"shrinkage": 0.2},
    {"threshold": 0.2},
]


@pytest.mark.parametrize("make", [built, rebuilt])
def test_a_source_of_graphs_can_be_sent_to_another_process(make: type) -> None:
    source: GraphSource = make()
    copy: GraphSource = pickle.loads(pickle.dumps(source))  # noqa: S301 - our own
    days = torch.tensor([20])
    assert equal(copy.of(days, validating=True), source.of(days, validating=True))


@pytest.mark.parametrize("make", [built, rebuilt])
def test_graphs_lie_where_they_are_wanted(make: type) -> None:
    source: GraphSource = make()
    there = torch.device("meta")
    assert source.on(there).of(torch.tensor([20]), validating=False).neighbours_DNK.device == there
