"""Trainings whose model is cut into parts: resumed by other numbers of processes, and without parts."""

import shutil
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL, SIGSTOP
from typing import Final

import pytest
import torch

from jobs.contract import AttemptSpec, Cause, ExitCode, verify
from tests.fakes.patience import slowness
from tests.integration.process.jobs.gangs import Fate, state, training, weights
from tests.unit.jobs.conftest import JobDir
from tests.unit.jobs.workloads.resident_transformer.test_candles import table
from tests.unit.jobs.workloads.resident_transformer.test_workload import TINY as CANDLES
from tests.unit.jobs.workloads.resident_transformer.test_workload import write

SHARDED: Final = {"sharded": True}


class CandleJob(JobDir):
    """A training of another workload, whose model is not one list of blocks."""

    def spec(self, **changes: object) -> AttemptSpec:
        given = changes.pop("workload", {})
        assert isinstance(given, dict)
        plan = {**CANDLES, "kind": "resident_transformer", "data": str(self.corpus), "layers": 3, **given}
        known = {"job_id": "j1", "attempt": max(1, self.attempts), "lineage": 1, "seed": 3}
        return AttemptSpec.model_validate({**known, "workload": plan, **changes})


@pytest.fixture
def candles(tmp_path: Path) -> CandleJob:
    (tmp_path / "prices").mkdir()
    write(tmp_path / "prices" / "one.csv", table(260))
    return CandleJob(tmp_path / "run dir", tmp_path / "prices")


Whole = Callable[[JobDir], dict[str, torch.Tensor]]
"""Returns the weights with which one process ends such a job, whose model is whole."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    known: dict[type[JobDir], dict[str, torch.Tensor]] = {}

    def train(job: JobDir) -> dict[str, torch.Tensor]:
        if type(job) not in known:
            undisturbed = type(job)(tmp_path_factory.mktemp("whole"), job.corpus)
            with training(undisturbed, 1) as gang:
                assert gang.end() == ExitCode.FINISHED, gang.output
            known[type(job)] = state(undisturbed)
        return known[type(job)]

    return train


MACHINE_LOST = Fate(16, SIGKILL, whom="all")


def assert_close(mine: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-3, atol=1e-4)


def job_of(kind: str, request: pytest.FixtureRequest) -> JobDir:
    found = request.getfixturevalue({"causal_lm": "job", "resident_transformer": "candles"}[kind])
    assert isinstance(found, JobDir)
    return found


@pytest.mark.parametrize("kind", ["causal_lm", "resident_transformer"])
def test_a_killed_training_ends_with_the_bits_of_one_that_was_not_and_goes_on_as_another_one(
    kind: str, request: pytest.FixtureRequest, whole: Whole
) -> None:
    job = job_of(kind, request)
    with training(job, 2, lineage=9, parallel=SHARDED) as gang:
        assert gang.end() == ExitCode.FINISHED, gang.output
    with training(job, 2, parallel=SHARDED, fate=Fate(11, SIGKILL, rank=1)) as gang:
        assert gang.end() == 128 + SIGKILL, gang.output
    copy = copied(job)
    with training(job, 2, parallel=SHARDED) as gang:
        assert gang.end() == ExitCode.FINISHED, gang.output
        assert "the bits will differ" not in gang.output
    assert weights(job) == weights(job, 9)

    newest = max(name for name in copy.names() if name.startswith("step-"))
    assert set(verify(copy.lineage() / newest).files) == {"state.pt"}  # of whole tensors
    in_parts = kind == "resident_transformer"
    with training(copy, 1 if in_parts else 2, parallel=SHARDED if in_parts else {}) as gang:
        assert gang.end() == ExitCode.FINISHED, gang.output
        assert f"resumed from step {int(newest[5:])}" in gang.output
        assert not in_parts or "numerics than when step" in gang.output
    assert_close(state(copy), whole(copy))  # the same draws: they depend on the shards


def copied(job: JobDir) -> JobDir:
    """Return another job with all that one has done."""
    copy = type(job)(job.root.with_name("copy"), job.corpus)
    shutil.copytree(job.root, copy.root, symlinks=True, dirs_exist_ok=True)
    copy.attempts = job.attempts
    return copy


def test_a_training_of_one_process_goes_on_in_parts_and_says_that_it_rounds_differently(
    job: JobDir, whole: Whole
) -> None:
    with training(job, 1, parallel=SHARDED, fate=MACHINE_LOST) as gang:
        assert gang.end() == -SIGKILL, gang.output
    with training(job, 2, parallel=SHARDED) as gang:
        assert gang.end() == ExitCode.FINISHED, gang.output
        assert "numerics than when step" in gang.output
    assert_close(state(job), whole(job))


def test_a_stopped_process_ends_the_attempt_within_the_timeout_by_name(job: JobDir) -> None:
    given = {**SHARDED, "timeout_s": 3 * slowness()}
    with training(job, 2, parallel=given, brisk=True, fate=Fate(6, SIGSTOP, rank=1)) as gang:
        assert gang.end() == ExitCode.RANK_LOST, gang.output
    result = job.result()
    assert (result.cause, result.rank) == (Cause.RANK_LOST, 1)
