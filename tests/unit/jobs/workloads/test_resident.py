"""A data set that is on the device leaves no copy of itself in the host's memory."""

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from jobs.contract import PLANS, Profile, TrainingPlan, kind_of
from jobs.training.feed import Feed
from jobs.training.step import _release_host_copy
from jobs.training.switches import Switches
from jobs.workloads.imu_stream.windows import Windows
from jobs.workloads.protocol import BuildContext, Workload, build
from tests.fakes.workloads.small_sets import KINDS, small_plan
from tests.unit.jobs.conftest import JobDir
from tests.unit.jobs.training.test_step import make

DEVICE = torch.device("meta")
"""Stands for a device: what is moved there is no longer in memory."""


def built(kind: str, directory: Path) -> Workload:
    [plan] = [each for each in PLANS if kind_of(each) == kind and issubclass(each, TrainingPlan)]
    asked: Any = plan.model_validate(small_plan(kind, directory))
    return build(asked, BuildContext(seed=3, switches=Switches(Profile())))


HOST_TENSORS: dict[str, Callable[[Any], list[Tensor]]] = {
    "causal_lm": lambda source: [source.corpus.train_N, source.corpus.held_out_N],
    "graph_forecast": lambda source: [source.known.features_DNF, source.known.outcomes_DN2J],
    "imu_stream": lambda _source: [],  # arrays in caches, see below
    "pair_classifier": lambda source: [source.train.tokens_ML, source.test.tokens_ML],
    "resident_transformer": lambda source: [
        tensor for batch in (*source.train, *source.held_out_batches) for tensor in batch.values()
    ],
}


class Placed:
    """A feed that has placed the source on the device."""

    def __init__(self, source: Any) -> None:
        self.source = source.on(DEVICE)


@pytest.mark.parametrize("kind", KINDS)
def test_the_host_keeps_no_copy(kind: str, tmp_path: Path) -> None:
    workload = built(kind, tmp_path / "set")
    items, steps = workload.train_items, workload.steps_per_epoch
    left = [weakref.ref(tensor) for tensor in HOST_TENSORS[kind](workload.source)]
    feed: Any = Placed(workload.source)
    _release_host_copy(workload, feed)
    gc.collect()
    assert [ref for ref in left if ref() is not None] == []
    assert (workload.train_items, workload.steps_per_epoch) == (items, steps)
    assert workload.signatures


def test_the_caches_of_streamed_recordings_are_empty_afterwards(tmp_path: Path) -> None:
    workload = built("imu_stream", tmp_path / "set")
    source: Any = workload.source
    assert isinstance(source, Windows)
    source.batch(0)
    assert len(source.frames) > 0
    resident = source.on(DEVICE)
    assert resident.resident is not None
    assert (len(source.frames), len(source.poses)) == (0, 0)
    assert resident.on(torch.device("cpu")).batch(0)["imu"].equal(source.batch(0)["imu"])


def test_a_training_uses_the_source_that_was_placed(job: JobDir, monkeypatch: pytest.MonkeyPatch) -> None:
    training = make(job)
    assert training.workload.source is training.feed.source
    place = Feed.__init__

    def on_device(self: Feed, source: Any, *others: Any) -> None:
        place(self, source, *others)
        self.source = source.on(torch.device("cpu"))

    monkeypatch.setattr(Feed, "__init__", on_device)
    moved = make(job)
    assert moved.workload.source is moved.feed.source
    assert moved.update(0)[0] == training.update(0)[0]
