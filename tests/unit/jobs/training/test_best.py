"""The weights of the best evaluation are kept, whatever happens between a step and its evaluation."""

from collections.abc import Callable, Iterator, Mapping

import pytest

from jobs.checkpoint import directory as lineage
from jobs.checkpoint.state import weights_sha256
from jobs.contract import ExitCode
from jobs.training.signals import StopRequests
from jobs.training.step import Training
from jobs.workloads.causal_lm import CausalLanguageModel
from jobs.workloads.protocol import Evaluation
from tests.unit.jobs.conftest import JobDir
from tests.unit.jobs.training.test_step import make

EVERY = {"eval_every": 2}

Score = Callable[..., None]
Arrange = Callable[[dict[int, Callable[[], None]]], None]


@pytest.fixture
def scores(monkeypatch: pytest.MonkeyPatch) -> Score:
    """Return a function that says what the next evaluations will find."""

    def arrange(*values: float, higher_is_better: bool = False) -> None:
        left: Iterator[float] = iter(values)

        def judge(_self: CausalLanguageModel, _sums: Mapping[str, float]) -> Evaluation:
            return Evaluation({"score": next(left), "other": 1.0}, {}, "score", higher_is_better)

        monkeypatch.setattr(CausalLanguageModel, "judge", judge)

    return arrange


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> StopRequests:
    """Return the stop requests of the next attempt."""
    asked = StopRequests()
    monkeypatch.setattr("jobs.__main__.listen", lambda: asked)
    return asked


def best(job: JobDir, number: int = 1) -> list[str]:
    return sorted(name for name in job.names(number) if name.startswith("best-"))


@pytest.mark.parametrize(
    ("found", "kept"),
    [
        ((4.0, 3.0, 2.0, 1.0), 8),
        ((4.0, 2.0, 3.0, 3.0), 4),
        ((2.0, 2.0, 2.0, 2.0), 2),
        ((1.0, float("nan"), float("-inf"), 2.0), 2),
        ((float("nan"), 5.0, 6.0, 7.0), 4),
    ],
)
def test_the_best_evaluation_is_kept_and_only_that(
    job: JobDir, scores: Score, found: tuple[float, ...], kept: int
) -> None:
    scores(*found)
    assert job.train(workload=EVERY) == ExitCode.FINISHED
    assert best(job) == [f"best-{kept:08d}"]


def test_higher_can_be_better(job: JobDir, scores: Score) -> None:
    scores(1.0, 3.0, 2.0, 3.0, higher_is_better=True)
    job.train(workload=EVERY)
    assert best(job) == ["best-00000004"]


def test_it_is_published_when_it_improves_and_not_otherwise(
    job: JobDir, scores: Score, monkeypatch: pytest.MonkeyPatch
) -> None:
    published: list[str] = []
    publish = lineage.publish

    def noted(*args: object) -> None:
        published.append(args[1].name)  # type: ignore[attr-defined] # a Snapshot
        publish(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(lineage, "publish", noted)
    scores(4.0, 5.0, 3.0, 3.5)
    job.train(workload=EVERY)
    assert [name for name in published if name.startswith("best")] == ["best-00000002", "best-00000006"]


def test_the_kept_weights_are_those_of_that_step(job: JobDir, scores: Score) -> None:
    scores(4.0, 2.0, 3.0, 3.0)
    job.train(workload=EVERY)
    kept = lineage.load(job.lineage() / "best-00000004", lineage.WEIGHTS)
    saved = lineage.load(job.lineage() / "step-00000004")["model"]
    assert weights_sha256(kept) == weights_sha256(saved)


def test_without_an_evaluation_there_is_no_best(job: JobDir) -> None:
    job.train()
    assert best(job) == []


def test_a_resume_remembers_how_good_the_best_was(job: JobDir, scores: Score) -> None:
    scores(1.0, 2.0)
    job.train(workload=EVERY | {"steps": 4})
    scores(1.5, 1.2)
    assert job.train(workload=EVERY) == ExitCode.FINISHED
    assert job.result().resumed_from == 4
    assert best(job) == ["best-00000002"]


@pytest.mark.parametrize("stopped_at", [4, 8])
def test_a_stop_between_a_step_and_its_evaluation_is_made_up_for_after_a_resume(
    job: JobDir, before_step: Arrange, requests: StopRequests, stopped_at: int
) -> None:
    job.train(lineage=2, workload=EVERY)

    def stop() -> None:
        requests.stop = True

    before_step({stopped_at - 1: stop})
    assert job.train(workload=EVERY) == ExitCode.STOPPED
    assert stopped_at not in [line["step"] for line in job.metrics() if "eval_loss" in line]
    assert job.train(workload=EVERY) == ExitCode.STOPPED  # still asked to stop: nothing is lost or invented
    requests.stop = False
    before_step({})
    assert job.train(workload=EVERY) == ExitCode.FINISHED
    evaluated = [line["step"] for line in job.metrics() if "eval_loss" in line]
    assert evaluated == [step for step in (2, 4, 6, 8) if step >= stopped_at]
    assert best(job, 1) == best(job, 2)
    assert job.state_sha256(8, 1) == job.state_sha256(8, 2)


def test_a_resume_after_the_evaluation_does_not_evaluate_again(job: JobDir) -> None:
    job.train(workload=EVERY | {"steps": 4})
    job.train(workload=EVERY)
    assert [line["step"] for line in job.metrics() if "eval_loss" in line] == [6, 8]


def test_what_was_the_best_is_part_of_the_state(job: JobDir) -> None:
    first, second = make(job), make(job)
    assert first.is_best(Evaluation({"a": 2.0}, {}, "a"))
    second.load(first.state(0))
    assert not second.is_best(Evaluation({"a": 2.0}, {}, "a"))
    assert second.is_best(Evaluation({"a": 1.9}, {}, "a"))


def test_a_best_that_was_already_published_before_a_kill_is_kept(
    job: JobDir, scores: Score, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = Training.update

    def killed(self: Training, step: int) -> object:
        if step == 6:
            raise KeyboardInterrupt  # the checkpoint of step 6 is never written
        return update(self, step)

    scores(3.0, 2.0, 1.0)
    with monkeypatch.context() as patched:
        patched.setattr(Training, "update", killed)
        with pytest.raises(KeyboardInterrupt):
            job.train(workload=EVERY, checkpoint={"every_steps": 4})
    assert best(job) == ["best-00000006"]
    before = (job.lineage() / "best-00000006").stat().st_ino
    scores(1.0, 4.0)
    assert job.train(workload=EVERY) == ExitCode.FINISHED
    assert best(job) == ["best-00000006"]
    assert (job.lineage() / "best-00000006").stat().st_ino == before


def test_the_best_of_an_abandoned_future_is_set_aside_and_the_next_one_counts(
    job: JobDir, scores: Score
) -> None:
    scores(4.0, 3.0, 2.0, 1.0)
    job.train(workload=EVERY, checkpoint={"keep": 9})
    scores(6.0, 7.0)
    assert job.train(workload=EVERY, resume_step=4, seed=9) == ExitCode.FINISHED
    assert best(job) == ["best-00000006"]
    assert any(name.startswith("superseded-best-00000008") for name in job.names())
    kept = lineage.load(job.lineage() / "best-00000006", lineage.WEIGHTS)
    assert weights_sha256(kept) == weights_sha256(lineage.load(job.lineage() / "step-00000006")["model"])


def test_a_best_from_before_the_given_step_stays(job: JobDir, scores: Score) -> None:
    scores(1.0, 3.0, 3.0, 3.0)
    job.train(workload=EVERY, checkpoint={"keep": 9})
    scores(2.0, 2.0)
    assert job.train(workload=EVERY, resume_step=4) == ExitCode.FINISHED
    assert best(job) == ["best-00000002"]


def test_a_milestone_is_never_deleted(job: JobDir) -> None:
    job.train(workload={"steps": 12}, checkpoint={"every_steps": 1, "keep": 2, "milestone_every": 4})
    steps = sorted(int(name[5:]) for name in job.names() if name.startswith("step-"))
    assert steps == [4, 8, 10, 11, 12]
