"""A batch depends on seed and step alone: not on what is kept, shared, resident, or in which process."""

from pathlib import Path

import pytest
from torch.utils.data import DataLoader, Dataset

from jobs.training.batches import Batch
from jobs.workloads.imu_stream.windows import Windows
from tests.unit.jobs.workloads.imu import streamed, write_recordings


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recordings(tmp_path_factory.mktemp("imu") / "it's; echo")


def source(directory: Path, profile: dict[str, object] | None = None, **changes: object) -> Windows:
    return streamed(directory, profile, **changes).source


def same(one: Batch, other: Batch) -> bool:
    return one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)


class Steps(Dataset[Batch]):
    def __init__(self, windows: Windows) -> None:
        self.windows = windows

    def __getitem__(self, step: int) -> Batch:
        return self.windows.batch(step)


def test_loader_processes_make_the_same_batches(recordings: Path) -> None:
    ours = source(recordings)
    loader = DataLoader(Steps(source(recordings)), batch_size=None, sampler=range(4), num_workers=2)
    for step, theirs in enumerate(loader):
        assert same(theirs, ours.batch(step))
