"""``micro_batch: auto`` takes the largest part of a batch that fits, and a lineage stays with it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from jobs.checkpoint.directory import load
from jobs.checkpoint.state import clone, digest
from jobs.contract import Effective, ExitCode, Parallel, RunPaths
from jobs.training import loop
from jobs.training.batches import Batch, rows
from jobs.training.fitting import FILE, fewest_parts, kept_rows, larger_rows, rows_of
from jobs.workloads.causal_lm import CausalLanguageModel
from tests.unit.jobs.conftest import JobDir
from tests.unit.jobs.training.test_step import make

TWELVE = {"batch_size": 12}
AUTO = {"micro_batch": "auto"}
ROW = 1000
"""Bytes of one row in the made-up memory."""


@dataclass
class MadeUpRoom:
    """A device of so many bytes, of which each row of a micro-batch takes ``ROW``."""

    capacity_bytes: int
    seen: int = 0
    taken_by_others: int = 0

    def begin(self) -> None:
        self.seen = 0

    def peak_bytes(self) -> int:
        return self.seen

    def allocate(self, count: int) -> None:
        if count * ROW + self.taken_by_others > self.capacity_bytes:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {count * ROW} bytes")
        self.seen = max(self.seen, count * ROW + self.taken_by_others)


MakeRoom = Callable[[int], MadeUpRoom]


@pytest.fixture
def device_of(monkeypatch: pytest.MonkeyPatch) -> MakeRoom:
    """Return a function that gives the training a device with room for so many rows."""
    loss_sum = CausalLanguageModel.loss_sum

    def make_room(most: int) -> MadeUpRoom:
        room = MadeUpRoom(most * ROW)

        def limited(self: CausalLanguageModel, batch: Batch) -> Tensor:
            loss = loss_sum(self, batch)  # after the draws of dropout, as on a device
            room.allocate(rows(batch))
            return loss

        monkeypatch.setattr(CausalLanguageModel, "loss_sum", limited)
        monkeypatch.setattr(loop, "room", lambda _device: room)
        return room

    return make_room


def effective(job: JobDir) -> Effective:
    return Effective.model_validate_json(RunPaths(job.root, job.attempts, 1).effective.read_bytes())


def lineage_dir(job: JobDir) -> Path:
    return RunPaths(job.root, job.attempts, 1).lineage_dir


@pytest.mark.parametrize("limit", range(1, 41))
@pytest.mark.parametrize("most", [1, 2, 3, 8, 17, 40])
def test_the_search_finds_the_fewest_parts_that_fit(most: int, limit: int) -> None:
    tried: list[int] = []

    def fits(parts: int) -> bool:
        tried.append(parts)
        return parts >= limit

    assert fewest_parts(most, fits) == min(most, limit)
    assert len(tried) == len(set(tried)) <= 6


def test_parts_are_of_equal_size() -> None:
    assert [rows_of(4096, parts) for parts in (1, 2, 3, 8)] == [4096, 2048, 1366, 512]


@pytest.mark.parametrize(
    ("most", "expected"),
    [(13, 12), (12, 6), (7, 6), (6, 4), (5, 4), (4, 3), (3, 2), (2, 1), (1, 1)],
)
def test_auto_takes_the_largest_equal_part_below_the_limit(
    job: JobDir, device_of: MakeRoom, most: int, expected: int
) -> None:
    """With as many rows as the device has room for, nothing would be left of the memory."""
    device_of(most)
    assert job.train(workload=TWELVE, profile=AUTO) == ExitCode.FINISHED
    found = effective(job)
    assert (found.micro_batch, found.accumulation) == (expected, -(-12 // expected))
    switch = found.switches["micro_batch"]
    assert (switch.requested, switch.applied, switch.verified) == ("auto", str(expected), True)
    assert switch.note.startswith(f"{expected} of 12 rows take ")
    assert not found.fallbacks


def test_a_training_with_a_found_size_has_the_bits_of_one_that_was_told_it(
    job: JobDir, device_of: MakeRoom
) -> None:
    device_of(7)
    job.train(workload=TWELVE, profile=AUTO)
    found = job.result().weights_sha256
    job.train(workload=TWELVE, profile={"micro_batch": 6}, lineage=2)
    assert job.run_weights(2) == found


def test_a_trial_leaves_no_trace(job: JobDir, device_of: MakeRoom) -> None:
    room = device_of(7)
    training = make(job, workload=TWELVE, profile=AUTO)
    before = digest(clone(training.state(0) | {"micro_batch": 0}))
    training.fit(room)
    assert training.micro_batch == 6
    assert digest(clone(training.state(0) | {"micro_batch": 0})) == before


@pytest.mark.parametrize("killed_at", [1, 3, 7])
def test_a_killed_training_goes_on_with_the_size_that_its_lineage_began_with(
    job: JobDir,
    device_of: MakeRoom,
    before_step: Callable[[dict[int, Callable[[], None]]], None],
    killed_at: int,
) -> None:
    """Before the first checkpoint, and after it; the second attempt meets a device with other room."""
    device_of(7)
    job.train(workload=TWELVE, profile=AUTO, lineage=2)
    untouched = job.run_weights(2)

    def die() -> None:
        raise KeyboardInterrupt

    before_step({killed_at: die})
    with pytest.raises(KeyboardInterrupt):
        job.train(workload=TWELVE, profile=AUTO)
    before_step({killed_at: lambda: None})
    device_of(40)
    assert job.train(workload=TWELVE, profile=AUTO) == ExitCode.FINISHED
    assert job.run_weights(1) == untouched
    found = effective(job)
    assert (found.micro_batch, found.switches["micro_batch"].note) == (6, "as this lineage began")


def test_a_lineage_without_the_file_stays_with_the_size_of_its_newest_checkpoint(
    job: JobDir, device_of: MakeRoom
) -> None:
    """Lineages that began before sizes were kept."""
    device_of(7)
    job.train(workload=TWELVE, profile=AUTO)
    (job.lineage() / FILE).unlink()
    assert kept_rows(job.lineage(), 12, revision=1) == 6
    assert kept_rows(job.lineage(), 12, revision=2) is None
    assert kept_rows(job.lineage(), 5, revision=1) is None
    (job.lineage() / "step-00000008" / "manifest.json").write_text("{")
    assert kept_rows(job.lineage(), 12, revision=1) == 6  # of the one before
    assert kept_rows(job.lineage(7), 12, revision=1) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"batch_size": 12, "rows": "x"}', "null"])
def test_a_damaged_file_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    assert kept_rows(tmp_path, 12, revision=1) is None


def test_a_size_for_another_batch_is_not_taken(job: JobDir, device_of: MakeRoom) -> None:
    device_of(7)
    job.train(workload=TWELVE, profile=AUTO)
    assert kept_rows(job.lineage(), 12, revision=1) == 6
    assert kept_rows(job.lineage(), 24, revision=1) is None


def test_without_a_device_the_size_follows_from_the_batch(job: JobDir) -> None:
    job.train(workload={"batch_size": 40}, profile=AUTO)
    assert effective(job).micro_batch == 32
    assert not (lineage_dir(job) / FILE).exists()


def test_a_found_size_that_no_longer_fits_is_halved_and_stays_so(job: JobDir, device_of: MakeRoom) -> None:
    room = device_of(7)
    training = make(job, workload=TWELVE, profile=AUTO)
    training.fit(room)
    room.taken_by_others = 3 * ROW
    training.update(0)
    assert training.micro_batch == 3
    later = make(job, workload=TWELVE, profile=AUTO)
    later.take_rows(6)
    later.load(clone(training.state(1)))
    assert later.micro_batch == 3
    assert later.switches.fallbacks == ("micro_batch auto: using 3: more did not fit before the checkpoint",)


def test_a_raised_micro_batch_is_taken_unless_it_was_lowered_for_lack_of_memory(job: JobDir) -> None:
    small, large = make(job, workload=TWELVE, profile={"micro_batch": 2}), make(job, workload=TWELVE)
    large.load(clone(small.state(0)))
    assert large.micro_batch == 12


@pytest.mark.parametrize(
    ("peak", "expected"), [(1000, 96), (9000, 64), (15000, 32), (47000, 16), (48000, None), (99000, None)]
)
def test_a_larger_size_is_advised_only_if_twice_the_memory_is_there(peak: int, expected: int | None) -> None:
    assert larger_rows(8, 96, peak, 100_000) == expected


def test_free_memory_is_said_and_reported_after_some_steps(
    job: JobDir, device_of: MakeRoom, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "ADVISED_AFTER", 2)
    device_of(100)
    job.train(workload=TWELVE, profile={"micro_batch": 3})
    (advice,) = effective(job).advice
    assert "micro-batches of 3 of 12 rows take 0 of 0 MiB: profile.micro_batch: 12 would fit" in advice
    assert capfd.readouterr().out.count(f"advice: {advice}") == 1


def test_nothing_is_advised_where_the_whole_batch_is_one_part(
    job: JobDir, device_of: MakeRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "ADVISED_AFTER", 2)
    device_of(100)
    job.train(workload=TWELVE)
    assert effective(job).advice == ()
    assert "halved" not in load(job.lineage() / "step-00000008")


@pytest.mark.parametrize(
    ("world", "given", "tries"),
    [
        (1, {"reduction": "fast"}, True),
        (2, {"reduction": "exact"}, True),
        (2, {"reduction": "fast"}, False),
        (2, {"sharded": True}, False),
    ],
)
def test_processes_that_sum_in_the_backward_pass_try_no_sizes(
    world: int, given: dict[str, Any], *, tries: bool
) -> None:
    """A step that one of them gives up would leave the others in the middle of a sum."""
    training: Any = SimpleNamespace(
        ranks=SimpleNamespace(world=world),
        spec=SimpleNamespace(parallel=Parallel(**given)),
    )
    assert loop._may_try(training) == tries
