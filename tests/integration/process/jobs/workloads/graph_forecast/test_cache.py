"""Kept graphs: never other ones than those that would be built."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from jobs.workloads.graph_forecast import cache as graph_cache
from jobs.workloads.graph_forecast.cache import (
    Counts,
    GraphSource,
    Rebuilt,
    block_key,
)
from jobs.workloads.graph_forecast.graphs import Graphs, LongTable
from tests.unit.jobs.workloads.graph_forecast.test_cache import DAYS, RULE, equal, market, rebuilt


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_cache, "BLOCK_DAYS", 16)


def test_the_key_is_the_same_in_every_process() -> None:
    """Python's own hash() of a string is not, which is how the source project's disk cache never hit."""
    program = f"from {__name__} import *; print(block_key(market(), DAYS, RULE))"
    other = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": "4711"},
        cwd=Path(__file__).parents[6],
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout.strip() == block_key(market(), DAYS, RULE)


class _Days(Dataset[Graphs]):
    def __init__(self, source: GraphSource) -> None:
        self._source = source

    def __getitem__(self, day: int) -> Graphs:
        return self._source.of(torch.tensor([day]), validating=True)


def test_what_loader_processes_built_is_counted() -> None:
    source = Rebuilt(LongTable.of(market().returns_DN), RULE, Counts(shared=True))
    loaded = list(DataLoader(_Days(source), batch_size=None, sampler=[20, 21, 22], num_workers=2))
    assert equal(loaded[0], rebuilt().of(torch.tensor([20]), validating=True))
    assert source.counts.misses == 3
