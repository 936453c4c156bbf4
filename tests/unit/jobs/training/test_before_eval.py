"""A kill in a long evaluation loses no step."""

from typing import Any

import pytest

from jobs.checkpoint.interval import SHORTEST_S, EvaluationGuard
from jobs.contract import CheckpointPlan
from jobs.training.step import Training
from tests.unit.jobs.conftest import JobDir

RARELY = {"every_steps": 100}
EVERY = {"eval_every": 2}


def test_what_the_plan_says_wins() -> None:
    for told in (True, False):
        guard = EvaluationGuard(CheckpointPlan(before_eval=told))
        guard.evaluated(3600.0)
        assert guard.saves_before(1.0) is told
        assert not guard.saves_within(3600.0, 1.0)


def test_where_evaluations_take_longer_than_a_save_it_saves_before_them() -> None:
    guard = EvaluationGuard(CheckpointPlan())
    assert not guard.saves_before(1.0)  # nothing is known yet
    for seconds in (30.0, 40.0, 9.0):
        guard.evaluated(seconds)
    assert guard.saves_before(None)
    assert guard.saves_before(29.0)
    assert not guard.saves_before(31.0)
    short = EvaluationGuard(CheckpointPlan())
    short.evaluated(SHORTEST_S - 1)
    assert not short.saves_before(0.1)


def test_an_evaluation_of_which_nothing_is_known_is_interrupted_when_it_has_lasted_longer() -> None:
    guard = EvaluationGuard(CheckpointPlan())
    assert not guard.saves_within(SHORTEST_S, 0.1)
    assert guard.saves_within(SHORTEST_S + 1, 0.1)
    assert not guard.saves_within(SHORTEST_S + 1, 60.0)


def killed_in_evaluation(job: JobDir, monkeypatch: pytest.MonkeyPatch, at_batch: int, **spec: Any) -> None:
    """Train until the second evaluation, and die before one of its batches."""
    score, seen = Training._add_scores, []

    def die(self: Training, *args: Any) -> None:
        seen.append(1)
        if len(seen) == 2 + at_batch:
            raise KeyboardInterrupt
        score(self, *args)

    with monkeypatch.context() as patched:
        patched.setattr(Training, "_add_scores", die)
        with pytest.raises(KeyboardInterrupt):
            job.train(workload=EVERY, **spec)


@pytest.mark.parametrize(("told", "kept"), [(True, 4), (False, None)])
def test_a_kill_in_an_evaluation_loses_no_step_if_it_was_saved_before(
    job: JobDir,
    monkeypatch: pytest.MonkeyPatch,
    told: bool,  # noqa: FBT001
    kept: int | None,
) -> None:
    killed_in_evaluation(job, monkeypatch, 1, checkpoint={**RARELY, "before_eval": told})
    assert job.train(workload=EVERY, checkpoint=RARELY) == 0
    assert job.result().resumed_from == kept
    assert job.train(workload=EVERY, checkpoint=RARELY, lineage=2) == 0
    assert job.run_weights(1) == job.run_weights(2)


def test_the_first_long_evaluation_is_saved_while_it_runs(
    job: JobDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow() -> float:
        return 1000.0 + 20 * len(batches)

    batches: list[int] = []
    score = Training._add_scores

    def counted(self: Training, *args: Any) -> None:
        batches.append(1)
        score(self, *args)

    monkeypatch.setattr(Training, "_add_scores", counted)
    monkeypatch.setattr("jobs.training.loop.time.monotonic", slow)
    killed_in_evaluation(job, monkeypatch, 2, checkpoint=RARELY)
    assert "step-00000002" in job.names()
