"""Trainings whose model is cut into parts: resumed by other numbers of processes, and without parts."""

from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL, SIGSTOP, SIGTERM
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
def test_a_killed_training_ends_with_the_bits_of_one_that_was_not(
    kind: str, request: pytest.FixtureRequest
) -> None:
    job = job_of(kind, request)
    with training(job, 2, lineage=9, parallel=SHARDED) as gang:
        assert gang.end() == ExitCode.FINISHED, gang.output
    with training(job, 2, parallel=SHARDED, fate=Fate(11, SIGKILL, rank=1)) as gang:
        assert gang.end() == 128 + SIGKILL, gang.output
    if kind == "causal_lm":  # a request to stop does not reach the model
        with training(job, 2, parallel=SHARDED, fate=Fate(26, SIGTERM, whom="launcher")) as gang:
            assert gang.end() == ExitCode.STOPPED, gang.output
    with training(job, 2, parallel=SHARDED) as gang:
        assert gang.end() == ExitCode.FINISHED, gang.output
        assert "the bits will differ" not in gang.output
    assert weights(job) == weights(job, 9)


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [("causal_lm", 1, 2), ("resident_transformer", 2, 1)],
)
def test_it_goes_on_with_another_number_of_processes_and_says_that_it_rounds_differently(
    kind: str, before: int, after: int, request: pytest.FixtureRequest, whole: Whole
) -> None:
    job = job_of(kind, request)
    with training(job, before, parallel=SHARDED, fate=MACHINE_LOST) as gang:
        assert gang.end() == -SIGKILL, gang.output
    with training(job, after, parallel=SHARDED) as gang:
        assert gang.end() == ExitCode.FINISHED, gang.output
        assert "numerics than when step" in gang.output
    assert_close(state(job), whole(job))  # the same draws: they depend on the shards


def test_a_checkpoint_has_whole_tensors_that_a_training_without_parts_resumes_from(
    job: JobDir, whole: Whole
) -> None:
    with training(job, 2, parallel=SHARDED, fate=MACHINE_LOST) as gang:
        assert gang.end() == -SIGKILL, gang.output
    newest = max(name for name in job.names() if name.startswith("step-"))
    assert set(verify(job.lineage() / newest).files) == {"state.pt"}
    with training(job, 2) as gang:
        assert gang.end() == ExitCode.FINISHED, gang.output
        assert f"resumed from step {int(newest[5:])}" in gang.output
    assert_close(state(job), whole(job))


def test_a_stopped_process_ends_the_attempt_within_the_timeout_by_name(job: JobDir) -> None:
    given = {**SHARDED, "timeout_s": 3 * slowness()}
    with training(job, 2, parallel=given, brisk=True, fate=Fate(6, SIGSTOP, rank=1)) as gang:
        assert gang.end() == ExitCode.RANK_LOST, gang.output
    result = job.result()
    assert (result.cause, result.rank) == (Cause.RANK_LOST, 1)
