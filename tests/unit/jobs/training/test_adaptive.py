"""Early stopping, learning-rate plateaus and averaged weights, and that a resume keeps their bits."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel

from jobs.checkpoint import directory as lineage
from jobs.checkpoint.signatures import schedule_signature
from jobs.contract import EarlyStopping, ExitCode, Manifest, Plateau, WeightAveraging, dump, verify
from jobs.contract.plans.adaptive import MovingAverage
from jobs.contract.plans.causal_lm import CausalLm
from jobs.training.adaptive import Adaptation, RateReduction, StopCriterion
from jobs.training.averaging import Averaging, averaging_rate, first_step
from jobs.training.failures import InvalidSpec
from jobs.training.ranks import Ranks
from jobs.training.step import Training
from jobs.workloads.causal_lm import CausalLanguageModel
from jobs.workloads.protocol import Evaluation
from tests.unit.jobs.conftest import JobDir
from tests.unit.jobs.training.test_step import make

ALONE = Ranks()
STOP = {"eval_every": 1, "early_stopping": {"patience": 2}}

Score = Callable[..., None]


def found(value: float, *, higher: bool = False) -> Evaluation:
    return Evaluation({"score": value, "other": -value}, {}, "score", higher)


@pytest.fixture
def scores(monkeypatch: pytest.MonkeyPatch) -> Score:
    """Return a function that says what the evaluations will find: the value at a step, again and again."""

    def arrange(*values: float) -> None:
        left: Iterator[float] = iter(values)

        def judge(_self: CausalLanguageModel, _sums: Mapping[str, float]) -> Evaluation:
            return found(next(left))

        monkeypatch.setattr(CausalLanguageModel, "judge", judge)

    return arrange


# --- Early stopping


@pytest.mark.parametrize(
    ("plan", "values", "ends"),
    [
        ({"patience": 2}, (3, 2, 2.5, 2), 4),
        ({"patience": 2}, (3, 2, 2.5, 1.9, 2, 2), 6),
        ({"patience": 1, "min_delta": 0.5}, (3, 2.6), 2),
        ({"patience": 1, "min_delta": 0.5}, (3, 2.4, 1.8), None),
        ({"patience": 2, "after_steps": 4}, (1, 2, 2, 2, 2), 5),
        ({"patience": 2, "metric": "other", "better": "higher"}, (3, 2, 1, 1.5, 1.2), 5),
        ({"patience": 2}, (math.nan, math.nan), 2),
        ({"patience": 1}, (2, -math.inf), 2),
    ],
)
def test_training_ends_after_too_many_evaluations_without_an_improvement(
    plan: dict[str, Any], values: tuple[float, ...], ends: int | None
) -> None:
    criterion = StopCriterion(EarlyStopping(**plan))
    said = [criterion.observe(found(value), step, ALONE) for step, value in enumerate(values, start=1)]
    assert [step for step, why in enumerate(said, start=1) if why] == ([] if ends is None else [ends])


def test_the_reason_names_the_metric_its_best_value_and_the_evaluations() -> None:
    criterion = StopCriterion(EarlyStopping(patience=2))
    said = [criterion.observe(found(value, higher=True), 1, ALONE) for value in (0.5, 0.4, 0.5)]
    assert said[-1] == "score has been no better than 0.5 for 2 evaluations"
    never = StopCriterion(EarlyStopping(patience=1)).observe(found(math.nan), 1, ALONE)
    assert never == "score was never finite for 1 evaluation"


def test_a_metric_that_no_evaluation_has_is_an_invalid_spec() -> None:
    plan = CausalLm(data="x", early_stopping=EarlyStopping(metric="f1", better="higher"))
    with pytest.raises(
        InvalidSpec, match=r"workload\.early_stopping\.metric: there is no f1; an evaluation has"
    ):
        Adaptation(plan).observe(found(1.0), 1, ALONE)


def test_a_job_that_stops_early_has_succeeded_and_says_so(
    job: JobDir, scores: Score, capfd: pytest.CaptureFixture[str]
) -> None:
    scores(3, 2, 2, 2, 1)
    assert job.train(workload=STOP) == ExitCode.FINISHED
    said = "stopped early at step 4: score has been no better than 2 for 2 evaluations"
    result = job.result()
    assert (result.cause, result.step, result.message) == ("completed", 4, said)
    assert f"{said}: weights sha256 {result.weights_sha256}" in capfd.readouterr().out
    assert verify(job.lineage() / "final").stopped_early == said.partition(": ")[2]
    assert job.train(workload=STOP) == ExitCode.FINISHED  # nothing is left to do
    assert job.result().message == said


def test_a_training_that_was_killed_where_it_stopped_stops_there_again(
    job: JobDir, scores: Score, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    scores(3, 2, 2, 2)
    with monkeypatch.context() as patched:
        patched.setattr("jobs.checkpoint.saver.Checkpoints.publish_final", killed)
        with pytest.raises(KeyboardInterrupt):
            job.train(workload=STOP)
    assert job.train(workload=STOP) == ExitCode.FINISHED  # without another evaluation
    assert job.result().message.startswith("stopped early at step 4: ")
    scores(3, 2, 2, 2)
    assert job.train(workload=STOP, lineage=2) == ExitCode.FINISHED
    assert job.run_weights(1) == job.run_weights(2)


@pytest.mark.parametrize(
    ("change", "goes_on"),
    [
        ({}, False),
        ({"patience": 1}, False),
        ({"patience": 3}, True),
        ({"min_delta": 0.5}, True),
        ({"after_steps": 9}, True),
        ({"metric": "other", "better": "higher"}, True),
    ],
)
def test_a_training_that_stopped_early_goes_on_if_the_changed_rule_does_not_stop_it(
    change: dict[str, Any], *, goes_on: bool
) -> None:
    before, after = (
        Adaptation(CausalLm(data="x", early_stopping=EarlyStopping(**{"patience": 2, **more})))
        for more in ({}, change)
    )
    for step in (1, 2, 3):
        before.observe(found(2.0), step, ALONE)
    after.load(before.state())
    assert before.stopped
    assert after.stopped == (None if goes_on else before.stopped)


def test_a_stop_that_a_checkpoint_without_its_rule_holds_remains() -> None:
    """A checkpoint that was written before the rule was part of the state."""
    now = Adaptation(CausalLm(data="x", early_stopping=EarlyStopping(patience=2)))
    now.load({"early_stopping": {"best": 2.0, "bad": 2}, "stopped": "why"})
    assert now.stopped == "why"


def test_a_model_that_was_finished_otherwise_has_no_such_reason(job: JobDir) -> None:
    job.train()
    assert "stopped_early" not in dump(verify(job.lineage() / "final"))
    assert "stopped_early" in Manifest.model_fields


# --- Plateaus


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize(
    "plan",
    [
        {"patience": 1, "factor": 0.5},
        {"patience": 0, "factor": 0.1, "cooldown": 2},
        {"patience": 1, "threshold": 0.1, "threshold_mode": "abs"},
        {"patience": 0, "factor": 0.3, "min_learning_rate": 0.02},
    ],
)
def test_the_rate_is_that_of_pytorch_with_a_constant_schedule(plan: dict[str, Any], mode: Any) -> None:
    """The same values go to ``ReduceLROnPlateau``; half-way the state is taken over by another object."""
    values = [3.0, 2.0, 2.05, 2.0, 1.0, 1.0, 1.0, 0.99, 1.2, 1.1, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5]
    theirs = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    known = {("min_lr" if name == "min_learning_rate" else name): value for name, value in plan.items()}
    scheduler = ReduceLROnPlateau(theirs, mode=mode, **known)
    ours = RateReduction(Plateau(**plan), 0.1)
    for value in values:
        scheduler.step(value)
        ours.observe(found(value, higher=mode == "max"), ALONE)
        following = RateReduction(Plateau(**plan), 0.1)
        following.load(ours.state())
        assert following.state() == ours.state()
        ours = following
        assert ours.factor * 0.1 == pytest.approx(theirs.param_groups[0]["lr"], rel=1e-12)


def test_a_changed_learning_rate_is_reduced_as_the_one_before_it() -> None:
    before, after = (RateReduction(Plateau(patience=0, factor=0.5), rate) for rate in (1e-3, 1e-4))
    for value in (1.0, 1.0, 1.0):
        before.observe(found(value), ALONE)
    after.load(before.state())
    assert before.factor == 0.25
    assert after.factor == pytest.approx(0.25)


@pytest.mark.parametrize(("rate", "lowest"), [(1e-4, 1e-5), (1e-2, 1e-4), (1e-6, 1e-6)])
def test_a_changed_learning_rate_is_reduced_no_further_than_to_the_lowest(rate: float, lowest: float) -> None:
    plan = Plateau(patience=0, factor=0.01, min_learning_rate=1e-5)
    before, after = RateReduction(plan, 1e-3), RateReduction(plan, rate)
    for value in (1.0, 1.0):
        before.observe(found(value), ALONE)
    after.load(before.state())
    assert before.factor * 1e-3 == pytest.approx(1e-5)
    assert after.factor * rate == pytest.approx(lowest)


def test_a_plateau_of_a_checkpoint_without_its_peak_keeps_its_rate() -> None:
    """A checkpoint that was written before the peak was part of the state."""
    now = RateReduction(Plateau(), 0.1)
    now.load({"lr": 0.1 * 0.3, "best": 2.0})
    assert now.state() == {"lr": 0.1 * 0.3, "best": 2.0, "peak": 0.1, "watched": [None, "auto"]}


def test_a_plateau_of_another_metric_is_no_plateau_of_this_one() -> None:
    before, after = (
        RateReduction(Plateau(patience=0, factor=0.5, metric=metric, better="lower"), 0.1)
        for metric in ("score", "other")
    )
    for value in (2.0, 2.0):
        before.observe(found(value), ALONE)
    after.load(before.state())
    assert after.observe(found(-3.0), ALONE) is None
    assert after.factor == 0.5


def test_a_plateau_lowers_the_rate_that_the_next_step_uses(
    job: JobDir, scores: Score, capfd: pytest.CaptureFixture[str]
) -> None:
    scores(3, 3, 3, 3, 3, 3, 3, 3)
    plan = {
        "eval_every": 1,
        "log_every": 1,
        "schedule": "constant",
        "warmup_steps": 0,
        "lr_plateau": {"patience": 2, "factor": 0.5},
    }
    assert job.train(workload=plan) == 0
    rates = [line["learning_rate"] for line in job.metrics() if "learning_rate" in line]
    assert rates == [1e-3] * 4 + [5e-4] * 3 + [2.5e-4]
    assert (
        "step 4/8  score is on a plateau: learning rate x 0.5, its peak is 0.0005" in capfd.readouterr().out
    )


# --- Averaged weights


def test_the_mean_is_that_of_pytorch() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    plan = CausalLm(data="x", steps=10, swa=WeightAveraging(start=0.5, average_every=2))
    ours, theirs = Averaging(plan, model), AveragedModel(model, use_buffers=True)
    for step in range(1, 11):
        with torch.no_grad():
            for tensor in (*model.parameters(), model[1].running_mean):
                tensor.add_(torch.rand_like(tensor))
        ours.stepped(step)
        if step in {5, 7, 9, 10}:
            theirs.update_parameters(model)
        assert ours.is_active == (step >= 5)
    mean = theirs.module.state_dict()
    assert all(torch.equal(ours.weights()[name], mean[name]) for name in mean)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with ours.in_model():
        assert torch.equal(model[0].weight, mean["0.weight"])
    assert all(torch.equal(model.state_dict()[name], before[name]) for name in before)


@pytest.mark.parametrize(("steps", "active"), [(12, True), (20, True), (40, False)])
@pytest.mark.parametrize(
    "kind", [{"swa": WeightAveraging(start=0.5, average_every=1)}, {"ema": MovingAverage(start=0.5)}]
)
def test_a_mean_from_before_averaging_begins_is_none(
    kind: dict[str, Any], steps: int, *, active: bool
) -> None:
    """A training of 12 steps was extended at its tenth."""
    model = torch.nn.Linear(2, 2)
    before, after = (Averaging(CausalLm(data="x", steps=total, **kind), model) for total in (12, steps))
    for step in range(1, 11):
        before.stepped(step)
    after.load(before.state(), 10)
    assert before.is_active
    assert after.is_active == active


def test_a_moving_average_is_that_of_pytorch() -> None:
    model = torch.nn.Linear(2, 2)
    plan = CausalLm(data="x", steps=6, ema=MovingAverage(decay=0.75, start=0.5))
    ours, average = Averaging(plan, model), torch.zeros(0)
    for step in range(1, 7):
        with torch.no_grad():
            model.weight.add_(torch.rand_like(model.weight))
        ours.stepped(step)
        if step >= 3:
            now = model.weight.detach().clone()
            average = now if step == 3 else 0.75 * average + 0.25 * now
        assert ours.is_active == (step >= 3)
    assert torch.allclose(ours.weights()["weight"], average)


def test_the_rate_goes_to_the_constant_one_along_a_cosine() -> None:
    swa = WeightAveraging(start=0.5, learning_rate=0.01, anneal_steps=4)
    plan = CausalLm(data="x", steps=20, swa=swa)
    assert first_step(plan, swa) == 10
    rates = [averaging_rate(plan, step, 0.05, 0.05) for step in (9, 10, 12, 14, 19)]
    assert rates == pytest.approx([0.05, 0.05, 0.03, 0.01, 0.01])
    plain = plan.model_copy(update={"swa": WeightAveraging(start=0.5)})
    assert averaging_rate(plain, 15, 0.05, 0.04) == 0.05


SWA = {"eval_every": 2, "swa": {"start": 0.5, "average_every": 1, "learning_rate": 1e-3, "anneal_steps": 2}}


def test_what_is_published_and_evaluated_is_the_mean(job: JobDir) -> None:
    assert job.train(workload=SWA) == 0
    final = lineage.load(job.lineage() / "final", lineage.WEIGHTS)
    state = lineage.load(job.lineage() / "step-00000008")
    mean, last = state["averaged"]["model"], state["model"]
    assert state["averaged"]["count"] == 5
    assert all(torch.equal(final[name], mean[name]) for name in final)
    assert not all(torch.equal(final[name], last[name]) for name in final)


def test_an_extended_training_averages_only_from_its_own_start_on(job: JobDir) -> None:
    assert job.train(workload=SWA) == 0
    assert lineage.load(job.lineage() / "step-00000008")["averaged"]["count"] == 5
    assert job.train(workload={**SWA, "steps": 20}) == 0
    assert job.result().resumed_from == 8
    assert lineage.load(job.lineage() / "step-00000020")["averaged"]["count"] == 11


# --- All of them


ALL = {
    "eval_every": 1,
    "early_stopping": {"patience": 8},
    "lr_plateau": {"patience": 0, "factor": 0.5, "threshold": 0.5},
    "swa": {"start": 0.25, "average_every": 1},
}


def test_a_moving_average_is_published_and_survives_a_kill(
    job: JobDir, before_step: Callable[[dict[int, Callable[[], None]]], None]
) -> None:
    ema = {"ema": {"decay": 0.5}, "eval_every": 4}

    def kill() -> None:
        raise KeyboardInterrupt

    assert job.train(workload=ema) == 0
    before_step({5: kill})
    with pytest.raises(KeyboardInterrupt):
        job.train(lineage=2, workload=ema)
    before_step({})
    assert job.train(lineage=2, workload=ema) == 0
    assert job.run_weights(1) == job.run_weights(2)
    final, last = (
        torch.load(job.lineage() / name) for name in ("final/weights.pt", "step-00000008/state.pt")
    )
    assert not all(torch.equal(final[name], last["model"][name]) for name in final)


@pytest.mark.parametrize("step", range(1, 8))
@pytest.mark.parametrize("before_eval", [True, False])
def test_a_training_that_was_killed_ends_with_the_bits_of_one_that_was_not(
    job: JobDir, monkeypatch: pytest.MonkeyPatch, step: int, *, before_eval: bool
) -> None:
    """The kill comes in the middle of the evaluation of a step, with a checkpoint before it or without."""

    every = {"checkpoint": {"every_steps": 1, "before_eval": before_eval}, "workload": ALL}
    assert job.train(**every) == 0
    evaluate, seen = Training.evaluate, []

    def killed(self: Training, *args: Any) -> object:
        seen.append(1)
        if len(seen) == step:
            raise KeyboardInterrupt
        return evaluate(self, *args)

    with monkeypatch.context() as patched:
        patched.setattr(Training, "evaluate", killed)
        with pytest.raises(KeyboardInterrupt):
            job.train(lineage=2, **every)
    saved = step if before_eval else step - 1
    assert job.train(lineage=2, **every) == 0
    assert (job.result(3).resumed_from or 0) == saved
    assert job.run_weights(1) == job.run_weights(2)
    assert job.result(1).metrics["eval_loss"] == job.result(3).metrics["eval_loss"]
    whole = [lineage.load(job.lineage(number) / "step-00000008") for number in (1, 2)]
    assert whole[0]["adaptation"] == whole[1]["adaptation"]


def test_a_training_without_these_settings_is_saved_and_signed_as_before(job: JobDir) -> None:
    training = make(job)
    assert not {"adaptation", "averaged"} & training.state(0).keys()
    plain = CausalLm(data="x")
    assert not {"init_from", "early_stopping", "lr_plateau", "swa", "ema"} & plain.model_dump().keys()


@pytest.mark.parametrize(
    "change",
    [
        {"early_stopping": {"patience": 3}},
        {"lr_plateau": {}},
        {"swa": {}},
        {"ema": {}},
        {"init_from": "job/7/best"},
        {"early_stopping": {"patience": 3}, "eval_every": 7},
    ],
)
def test_each_setting_is_another_trajectory(change: dict[str, Any]) -> None:
    plain = CausalLm(data="x", early_stopping=EarlyStopping(patience=3) if "eval_every" in change else None)
    assert schedule_signature(CausalLm(data="x", **change)) != schedule_signature(plain)


def test_how_often_it_is_evaluated_is_no_trajectory_where_evaluations_decide_nothing() -> None:
    assert schedule_signature(CausalLm(data="x")) == schedule_signature(CausalLm(data="x", eval_every=7))


@pytest.mark.parametrize(
    ("plan", "fact"),
    [
        ({"early_stopping": {}, "eval_every": None}, "watches evaluations, and eval_every is null"),
        ({"early_stopping": {"metric": "f1"}}, "say whether lower or higher values of f1 are better"),
        ({"swa": {"anneal_steps": 5}}, "needs a learning_rate to go to"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(plan: dict[str, Any], fact: str) -> None:
    with pytest.raises(ValidationError, match=fact):
        CausalLm(data="x", **plan)
