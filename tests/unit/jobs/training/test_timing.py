"""Seconds by part: from the CPU's clock, or from events that the device puts into its queue."""

import pytest
import torch

from jobs.training import timing as stopwatch
from jobs.training.timing import DeviceStopwatch, HostStopwatch
from tests.unit.jobs.conftest import JobDir
from tests.unit.jobs.training.test_step import make


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on which every look takes a second."""
    seconds = iter(range(1000))
    monkeypatch.setattr("jobs.training.timing.time.perf_counter", lambda: float(next(seconds)))


class QueuedEvent:
    """A device event that happens 250 ms after the one recorded before it, when the device gets to it."""

    recorded = 0
    completed = 0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.at: int | None = None

    def record(self) -> None:
        QueuedEvent.recorded += 1
        self.at = 250 * QueuedEvent.recorded

    def query(self) -> bool:
        assert self.at is not None
        return self.at <= 250 * QueuedEvent.completed

    def elapsed_time(self, other: "QueuedEvent") -> float:
        if not (self.query() and other.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        assert self.at is not None
        assert other.at is not None
        return float(other.at - self.at)


@pytest.mark.usefixtures("ticking")
def test_the_parts_add_up_until_they_are_taken() -> None:
    watch = HostStopwatch()
    for part in ("forward", "backward", "forward"):
        with watch.within(part):
            pass
    assert watch.take() == {"forward": 2.0, "backward": 1.0}
    assert watch.take() == {}


@pytest.mark.usefixtures("ticking")
def test_a_part_that_fails_has_taken_its_time() -> None:
    watch = HostStopwatch()
    with pytest.raises(KeyError), watch.within("data"):
        raise KeyError
    assert watch.take() == {"data": 1.0}


@pytest.mark.usefixtures("ticking")
def test_a_device_is_timed_by_its_own_events_and_the_making_of_batches_by_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "Event", QueuedEvent)
    monkeypatch.setattr(QueuedEvent, "recorded", 0)
    monkeypatch.setattr(QueuedEvent, "completed", 4)
    watch = DeviceStopwatch()
    with watch.within("data"):
        pass
    for _ in range(2):
        with watch.within("forward"):
            pass
    assert watch.take() == {"data": 1.0, "forward": 0.5}
    assert watch.take() == {}


def test_work_that_the_device_has_not_completed_counts_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", QueuedEvent)
    monkeypatch.setattr(QueuedEvent, "recorded", 0)
    monkeypatch.setattr(QueuedEvent, "completed", 3)
    watch = DeviceStopwatch()
    for _ in range(3):
        with watch.within("optimizer"):
            pass
    assert watch.take() == {"optimizer": 0.25}
    QueuedEvent.completed = 6
    assert watch.take() == {"optimizer": 0.5}


def test_the_clock_is_the_one_that_can_see_the_device() -> None:
    assert isinstance(stopwatch.stopwatch(torch.device("cpu")), HostStopwatch)
    assert isinstance(stopwatch.stopwatch(torch.device("cuda")), DeviceStopwatch)


def test_a_step_is_timed_in_all_its_parts_and_they_are_not_more_than_the_step(job: JobDir) -> None:
    _, took = make(job).update(0)
    assert took is not None
    assert set(took.parts) == {"data", "transfer", "forward", "backward", "optimizer"}
    assert 0 < sum(took.parts.values()) <= took.seconds


def test_steps_that_nobody_waited_for_are_timed_together(job: JobDir) -> None:
    training = make(job, profile={"host_checks_every": 3}, workload={"log_every": 100})
    found = [training.update(step) for step in range(6)]
    waited = [took.steps if took else None for _, took in found]
    assert waited == [None, None, 3, None, None, 3]
    assert [loss is None for loss, _ in found] == [True, True, False] * 2
