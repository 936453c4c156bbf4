"""Trainings of several processes: the same bits, however many there are, and however they end."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL, SIGSTOP, SIGTERM

import pytest
import torch

from jobs.contract import Cause, ExitCode, RunPaths
from tests.fakes.daemon.preloaded import TRAINER
from tests.fakes.patience import slowness
from tests.integration.process.jobs.gangs import (
    PARTS,
    PLAN,
    Fate,
    Gang,
    program,
    state,
    training,
    weights,
)
from tests.unit.jobs.conftest import JobDir


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> JobDir:
    """A job that one process has ended, whose batches are cut into four shards."""
    job = JobDir(tmp_path_factory.mktemp("undisturbed"), corpus)
    with training(job, 1) as gang:
        assert gang.end() == ExitCode.FINISHED, gang.output
    return job


@pytest.mark.parametrize("processes", [2, 4])
def test_the_bits_do_not_depend_on_the_number_of_processes(
    job: JobDir, undisturbed: JobDir, processes: int
) -> None:
    with training(job, processes) as gang:
        assert gang.end() == ExitCode.FINISHED, gang.output
    assert weights(job) == weights(undisturbed)
    assert "finished at step" not in gang.log(1)


def test_a_killed_process_ends_the_attempt_by_name_and_others_go_on_with_the_same_bits(
    job: JobDir, undisturbed: JobDir
) -> None:
    with training(job, 2, fate=Fate(11, SIGKILL, rank=1)) as gang:
        assert gang.end() == 128 + SIGKILL
        assert "rank 1 of 2 decides the end: SIGKILL" in gang.output
    assert (job.result().rank, job.result().processes) == (1, 2)
    with training(job, 4, fate=Fate(21, SIGKILL)) as gang:
        assert gang.end() == 128 + SIGKILL
    assert job.result().rank == 0
    with training(job, 1) as gang:
        assert gang.end() == ExitCode.FINISHED, gang.output
        assert "resumed from step" in gang.output
    assert weights(job) == weights(undisturbed)


def test_all_processes_stop_at_one_step_whose_checkpoint_is_saved_once(
    job: JobDir, undisturbed: JobDir
) -> None:
    with training(job, 4, fate=Fate(6, SIGTERM, whom="launcher")) as gang:
        assert gang.end() == ExitCode.STOPPED, gang.output
        step = job.result().step
        assert f"saved at step {step}" in gang.output
        assert f"saved at step {step}" in gang.log(3)
    assert job.result().cause is Cause.STOPPED
    with training(job, 2) as gang:
        assert gang.end() == ExitCode.FINISHED, gang.output
        assert f"resumed from step {step}" in gang.log(1)
    assert weights(job) == weights(undisturbed)


def test_fast_reduction_computes_the_same_rows_and_is_no_other_training(
    job: JobDir, undisturbed: JobDir
) -> None:
    with training(job, 2, parallel={"reduction": "fast"}, fate=Fate(11, SIGKILL, rank=1)) as gang:
        assert gang.end() == 128 + SIGKILL, gang.output
    with training(job, 2, parallel={"reduction": "fast"}) as gang:
        assert gang.end() == ExitCode.FINISHED, gang.output
        assert "the bits will differ" not in gang.output
    fast, exact = state(job), state(undisturbed)
    assert fast.keys() == exact.keys()
    for name, tensor in fast.items():
        torch.testing.assert_close(tensor, exact[name], rtol=1e-3, atol=1e-4)


def test_the_signature_says_how_gradients_are_added(job: JobDir) -> None:
    with training(job, 2, workload={"steps": 10}) as gang:
        assert gang.end() == ExitCode.FINISHED, gang.output
    with training(job, 1, shards=8, workload={"steps": 20}) as gang:
        assert gang.end() == ExitCode.FINISHED, gang.output
        assert "numerics than when step 10 was saved" in gang.output


def test_a_stopped_process_ends_the_attempt_within_the_timeout_by_name(job: JobDir) -> None:
    given = {"timeout_s": 3 * slowness()}
    with training(job, 2, parallel=given, brisk=True, fate=Fate(6, SIGSTOP, rank=1)) as gang:
        assert gang.end() == ExitCode.RANK_LOST, gang.output
    result = job.result()
    assert (result.cause, result.rank) == (Cause.RANK_LOST, 1)


FLIPPED = """\
import os, sys
from jobs.training.step import Training
update = Training.update
def disturbed(self, step):
    found = update(self, step)
    if (step, os.environ["RANK"]) == (6, "1"):
        next(self.workload.model.parameters()).data.view(-1)[0] += 0.001
    return found
Training.update = disturbed
from jobs.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def test_weights_that_differ_between_processes_are_not_saved(job: JobDir) -> None:
    parallel = {"processes": 2, "shards": 4}
    paths = job.attempt(workload=PLAN, checkpoint={"every_steps": 5}, parallel=parallel)
    argv = ("--root", str(job.root), "--attempt", "1", "--lineage", "1")
    with program(paths, 2, sys.executable, "-c", FLIPPED, *argv, library=TRAINER) as gang:
        assert gang.end() == ExitCode.REPLICAS_DIFFER, gang.output
    assert job.result().cause is Cause.REPLICAS_DIFFER
    assert "step 10: rank 1 of 2 holds other bits" in job.result().message
    assert job.names() == {"step-00000005"}


SHORT_OF_MEMORY = """\
import os, sys
import torch
from jobs.training.batches import rows
from jobs.workloads.causal_lm import CausalLanguageModel
loss_sum = CausalLanguageModel.loss_sum
seen = []
def limited(self, batch):
    loss = loss_sum(self, batch)
    seen.append(rows(batch))
    if os.environ["RANK"] == "1" and len(seen) > 8 and rows(batch) > 1:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
    return loss
CausalLanguageModel.loss_sum = limited
from jobs.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@contextmanager
def short_of_memory(job: JobDir, **given: object) -> Iterator[Gang]:
    """Yield a training whose second process has too little memory for two rows from its third step on."""
    parallel = {"processes": 2, "shards": 4, **given}
    plan = {**PLAN, "eval_every": None}
    paths = job.attempt(workload=plan, profile={"dry_run": False}, parallel=parallel)
    numbers = ("--attempt", str(paths.attempt), "--lineage", str(paths.lineage))
    argv = (sys.executable, "-c", SHORT_OF_MEMORY, "--root", str(job.root), *numbers)
    with program(paths, 2, *argv, library=PARTS if given else TRAINER) as gang:
        yield gang


def test_too_little_memory_of_one_process_halves_the_micro_batch_of_all(job: JobDir) -> None:
    with short_of_memory(job) as gang:
        assert gang.end() == ExitCode.FINISHED, gang.output
        said = "out of memory with 2 rows; going on with 1 at the same batch: rank 1 has too little memory"
        assert said in gang.output
        assert said in gang.log(1)
    assert [used(job, name) for name in ("effective.json", "rank-1.effective.json")] == [1, 1]


def used(job: JobDir, name: str) -> int:
    """Return the micro-batch that a process reports."""
    found: int = json.loads((RunPaths(job.root, job.attempts, 1).attempt_dir / name).read_text())[
        "micro_batch"
    ]
    return found


@pytest.mark.parametrize("given", [{"reduction": "fast"}, {"sharded": True}])
def test_in_the_middle_of_a_sum_it_ends_the_attempt_by_name(job: JobDir, given: dict[str, object]) -> None:
    with short_of_memory(job, **given) as gang:
        assert gang.end() == ExitCode.DEVICE_OUT_OF_MEMORY, gang.output
    result = job.result()
    assert (result.cause, result.rank) == (Cause.DEVICE_OUT_OF_MEMORY, 1)
    assert result.message.startswith("rank 1: CUDA out of memory. Tried to allocate 2 GiB")
