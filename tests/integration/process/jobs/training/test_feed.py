"""Batches of any loader and from any place change the time and nothing else."""

import multiprocessing
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset

from jobs.contract import Effective, ExitCode, RunPaths
from jobs.training import feed as feeding
from jobs.training.batches import Batch
from jobs.training.failures import NoBatch
from jobs.training.feed import Feed, outlive_signals
from tests.fakes.patience import patience
from tests.unit.jobs.conftest import JobDir
from tests.unit.jobs.training.test_feed import Numbers, feed, values

FORK = multiprocessing.get_context("fork")


# --- Loader processes


def test_loader_processes_do_not_change_a_bit(job: JobDir) -> None:
    plan = {"eval_every": 4}
    assert job.train(lineage=1, workload=plan) == ExitCode.FINISHED
    assert job.train(lineage=2, workload=plan, profile={"loader_workers": 2}) == ExitCode.FINISHED
    assert job.state_sha256(8, 2) == job.state_sha256(8, 1)
    assert job.result(2).weights_sha256 == job.result(1).weights_sha256
    assert job.result(2).metrics["eval_loss"] == job.result(1).metrics["eval_loss"]


@dataclass
class Counted(Numbers):
    """A source that counts the batches of all processes."""

    count: Any = field(default_factory=lambda: FORK.Value("i", 0))

    def batch(self, step: int) -> Batch:
        with self.count.get_lock():
            self.count.value += 1
        return super().batch(step)


@pytest.mark.parametrize("ahead", [1, 4])
def test_a_loader_process_is_ahead_by_as_many_batches_as_the_profile_says(ahead: int) -> None:
    source = Counted()
    made, _ = feed(source, steps=12, loader_workers=1, loader_prefetch=ahead)
    before = source.count.value  # one, to see whether copies are copies
    made.begin(0)
    for step in range(3):
        assert values(made.take(step))[0] == step
        expected = before + step + 1 + ahead
        deadline = time.monotonic() + patience()
        while source.count.value < expected and time.monotonic() < deadline:
            select.select([], [], [], 0.01)
        assert source.count.value == expected


def test_a_resume_begins_the_loader_at_its_step() -> None:
    source = Numbers()
    made, _ = feed(source, loader_workers=1)
    made.begin(2)
    assert [values(made.take(step)) for step in (2, 3)] == [[2, 2], [3, 3]]
    assert source.made == [0]  # in this process, to see how large a batch is


@pytest.mark.parametrize(("persistent", "loaders"), [(True, 1), (False, 2)])
def test_the_loader_of_the_evaluation_is_kept_or_made_again(
    monkeypatch: pytest.MonkeyPatch, *, persistent: bool, loaders: int
) -> None:
    begun: list[bool] = []
    processes = Feed._processes

    def counted(
        self: Feed, numbered: Dataset[Batch], numbers: Sequence[int], *, persistent: bool
    ) -> DataLoader[Batch]:
        begun.append(persistent)
        return processes(self, numbered, numbers, persistent=persistent)

    monkeypatch.setattr(Feed, "_processes", counted)
    made, _ = feed(Numbers(), loader_workers=1, loader_persistent=persistent)
    for _ in range(2):
        assert [values(batch)[0] for batch in made.held_out(3)] == [100, 101, 102]
    assert begun == [persistent] * loaders


# --- Shared memory


SIXTEEN_BYTES = 16
"""The size of a batch of ``Numbers``."""


@pytest.mark.parametrize(
    ("free", "persistent", "used"),
    [(10, False, 2), (10, True, 2), (9, True, 1), (6, False, 2), (5, False, 1), (3, False, 0), (0, True, 0)],
)
def test_there_are_as_many_loader_processes_as_shared_memory_has_room_for(
    monkeypatch: pytest.MonkeyPatch, free: int, used: int, *, persistent: bool
) -> None:
    monkeypatch.setattr(feeding, "_shared_memory_free", lambda: free * SIXTEEN_BYTES)
    made, switches = feed(Numbers(), loader_workers=2, loader_prefetch=2, loader_persistent=persistent)
    assert made._workers == used
    report = switches.report()["loader_workers"]
    assert report.applied == str(used)
    if used < 2:
        assert "raise resources.shm" in report.note
        assert report.verified
    made.begin(0)
    assert [values(made.take(step))[0] for step in range(4)] == [0, 1, 2, 3]
    assert [values(batch)[0] for batch in made.held_out(2)] == [100, 101]


def test_without_shared_memory_to_look_at_all_loader_processes_are_begun(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(feeding, "SHARED_MEMORY", tmp_path / "none")
    made, switches = feed(Numbers(), loader_workers=2)
    assert made._workers == 2
    assert switches.report()["loader_workers"].applied == "2"
    assert "no " in feeding._shared_memory_text()


class Silent(Numbers):
    """A source whose batches never come, but for that which tells their size."""

    def batch(self, step: int) -> Batch:
        if self.made:
            threading.Event().wait()
        return super().batch(step)

    def held_out(self, index: int) -> Batch:
        return self.batch(index)


def test_no_wait_for_loader_processes_is_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeding, "PATIENCE_S", 0.5)
    made, _ = feed(Silent(), loader_workers=1, loader_persistent=False)
    made.begin(0)
    with pytest.raises(NoBatch, match=r"no batch from 1 loader process\(es\) in 0 s; .* raise resources.shm"):
        made.take(0)
    with pytest.raises(NoBatch):
        next(made.held_out(1))
    assert multiprocessing.active_children() == []  # a trainer could not end while one of them lives


def test_another_error_of_a_loader_process_is_told_as_it_is() -> None:
    class Broken(Numbers):
        def batch(self, step: int) -> Batch:
            if self.made:
                raise RuntimeError("a file is broken")
            return super().batch(step)

    made, _ = feed(Broken(), loader_workers=1)
    made.begin(0)
    with pytest.raises(RuntimeError, match="a file is broken"):
        made.take(0)
    assert multiprocessing.active_children() == []


# --- Their signals


def loader(pipe: Connection) -> None:
    """Live as a loader process: answer whatever is asked."""
    outlive_signals(0)
    pipe.send(os.getpid())
    while True:
        pipe.send(pipe.recv())


def late_loader(pipe: Connection) -> None:
    """Live as a loader process that is so slow to begin that much may happen before."""
    pipe.send(os.getpid())
    pipe.recv()
    outlive_signals(0)
    signal.pause()


def trainer(pipe: Connection, begun: Callable[[Connection], None]) -> None:
    child = FORK.Process(target=begun, args=(pipe,))
    child.start()
    child.join()


@contextmanager
def lineage_of_processes(begun: Callable[[Connection], None]) -> Iterator[tuple[Any, int, Connection]]:
    """Yield a process, a descriptor of the loader process that it started, and the pipe to that one."""
    ours, theirs = FORK.Pipe()
    parent = FORK.Process(target=trainer, args=(theirs, begun))
    parent.start()
    child = -1
    try:
        assert ours.poll(20)
        child = os.pidfd_open(ours.recv())
        yield parent, child, ours
    finally:
        parent.kill()
        parent.join()
        if child >= 0:  # one that outlived its trainer would keep the tests' output open for ever
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(child, signal.SIGKILL)
            os.close(child)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_loader_process_outlives_requests_to_stop_but_not_its_trainer() -> None:
    with lineage_of_processes(loader) as (parent, child, pipe):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.pidfd_send_signal(child, number)
        pipe.send("still there?")
        assert pipe.poll(20)
        assert pipe.recv() == "still there?"
        parent.kill()
        assert select.select([child], [], [], 20)[0] == [child]  # readable: it has ended


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_loader_process_whose_trainer_died_before_it_began_holds_no_lock_for_ever() -> None:
    with lineage_of_processes(late_loader) as (parent, child, pipe):
        parent.kill()
        parent.join()
        pipe.send("begin")
        assert select.select([child], [], [], 20)[0] == [child]


@pytest.mark.parametrize(("cpus", "cores"), [(1.0, "1 core"), (1.5, "1.5 cores")])
def test_more_loader_processes_than_cores_are_warned_of(
    job: JobDir, capfd: pytest.CaptureFixture[str], cpus: float, cores: str
) -> None:
    job.train(profile={"loader_workers": 2, "threads": 1}, cpus=cpus)
    line = f"profile.loader_workers: 2 processes and the trainer share {cores} and take turns"
    assert capfd.readouterr().err.count(f"warning: {line}; raise resources.cpus or lower it") == 1
    [advice] = effective(job).advice
    assert advice.startswith(line)


@pytest.mark.parametrize(("workers", "cpus"), [(0, 0.5), (1, 0.5), (2, 2.0)])
def test_as_many_loader_processes_as_cores_are_fine(job: JobDir, workers: int, cpus: float) -> None:
    job.train(profile={"loader_workers": workers, "threads": 1}, cpus=cpus)
    assert effective(job).advice == ()


def effective(job: JobDir) -> Effective:
    return Effective.model_validate_json(RunPaths(job.root, job.attempts, 1).effective.read_bytes())
