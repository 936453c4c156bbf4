"""Annotation files: masks hide what is missing, every switch gives the same bits, and it can be learnt."""

import gc
import pickle
import re
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from pydantic import ValidationError

from jobs.contract import Profile
from jobs.contract.plans.resident_transformer import ResidentTransformer
from jobs.training.failures import InvalidSpec
from jobs.training.switches import Switches
from jobs.workloads.protocol import BuildContext, KeptBatches, build
from jobs.workloads.resident_transformer.annotated import AnnotatedTransformer, AnnotationNetwork
from jobs.workloads.resident_transformer.records import sizes_of
from jobs.workloads.resident_transformer.workload import CandleTransformer
from tests.fakes.workloads.annotations import annotation, annotation_directory, write
from tests.unit.jobs.workloads.bare_loop import evaluate, gradients, same, train

INPUTS: Any = {"candles": 8, "order_book": 6, "technical": 3, "position": 2, "held_out": 0.25, "pivots": 2}

TINY = {
    "annotations": INPUTS,
    "pool": 2,
    "batch_size": 4,
    "eval_batches": 2,
    "width": 16,
    "heads": 2,
    "layers": 2,
    "dropout": 0.0,
}

EXAMPLES = Path(__file__).parents[5] / "examples"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("annotations")
    annotation_directory(directory)
    return directory


def made(
    files: Path | str,
    *,
    plan: Mapping[str, object] | None = None,
    asked: Mapping[str, object] | None = None,
    **switches: Any,
) -> AnnotatedTransformer:
    settings = {**TINY, "data": str(files), **(plan or {}), "annotations": {**INPUTS, **(asked or {})}}
    profile = Profile.model_validate(switches)
    workload: Any = build(ResidentTransformer.model_validate(settings), BuildContext(3, Switches(profile)))
    assert isinstance(workload, AnnotatedTransformer)
    return workload


def test_without_annotations_the_task_is_that_of_price_tables(tmp_path: Path) -> None:
    rows = [f"2020-{1 + n // 28:02}-{1 + n % 28:02},1,2,0.5,1.5,{n}" for n in range(330)]
    (tmp_path / "one.csv").write_text("\n".join(["date,open,high,low,close,volume", *rows]) + "\n")
    small = {"days": 8, "weeks": 4, "months": 2, "pool": 2, "batch_size": 4, "width": 8, "heads": 2}
    plan = ResidentTransformer.model_validate({"data": str(tmp_path), **small, "eval_batches": 2})
    assert isinstance(build(plan, BuildContext(3, Switches(Profile()))), CandleTransformer)
    assert not plan.model_dump(mode="json").keys() & {"annotations", "synthetic_annotations"}


# --- Tensors


def test_what_an_annotation_lacks_is_masked(files: Path) -> None:
    workload = made(files)
    batch = workload.source.held_out(0)
    assert batch["1h"].shape == (3, 8, 5)
    assert batch["order_book"].shape == (3, 8, 6)
    for number in range(3):
        place = 18 + 2 * number
        content = annotation(place)["market_state"]
        for frame in ("1s", "1h", "1d"):
            there = f"ohlcv_{frame}" in content
            assert bool(batch[f"{frame}_seen"][number].all()) == there
            assert bool((batch[frame][number] == 0).all()) != there
        assert bool(batch["order_book_seen"][number].any()) == (content["order_book"] is not None)
        assert int(batch["order_book_seen"][number].sum()) in {0, 5}
        assert batch["technical_seen"][number]


def test_what_is_masked_changes_no_answer(files: Path) -> None:
    workload = made(files)
    model, batch = workload.model.eval(), workload.source.held_out(0)
    plain = model(batch)
    loud = dict(batch)
    for name in ("1s", "1m", "1h", "1d", "order_book"):
        hidden = ~batch[f"{name}_seen"].unflatten(1, (-1, 2)).any(2).repeat_interleave(2, dim=1)
        loud[name] = batch[name] + 5.0 * hidden[..., None]
    assert not all(torch.equal(loud[name], batch[name]) for name in batch)
    assert all(answer.allclose(plain[name]) for name, answer in model(loud).items())


def test_an_outcome_that_is_not_known_costs_nothing(tmp_path: Path) -> None:
    for number in range(12):
        content = annotation(number)
        if number != 4:
            del content["expected_outcome"]
        write(tmp_path, number, content)
    workload = made(tmp_path, plan={"batch_size": 9, "eval_batches": 1})
    workload.model.eval()
    batch = workload.source.batch(0)
    plain = float(workload.loss_sum(batch).detach())
    assert int(batch["price_known"].sum()) == 1
    batch = {**batch, "price": torch.where(batch["price_known"], batch["price"], 99.0)}
    assert float(workload.loss_sum(batch).detach()) == plain
    metrics = evaluate(workload).metrics
    assert "price_error" not in metrics
    assert "action_accuracy" in metrics


def test_training_outcomes_were_known_before_the_first_held_out_annotation(
    files: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert made(files).steps_per_epoch == 18 // 4
    assert "18 annotations to train on, 6 later ones held out; candles of 1s in " in capfd.readouterr().out
    for number in range(24):
        content = annotation(number)
        content["expected_outcome"]["holding_period_seconds"] = 5 * 3600
        write(tmp_path, number, content)
    made(tmp_path)
    assert "17 annotations to train on, 6 later ones held out, 1 left out because" in capfd.readouterr().out


def test_too_few_annotations_are_refused(files: Path) -> None:
    with pytest.raises(
        InvalidSpec, match=r"24 annotations leave 18 to train on and 6 held out; a batch takes 99"
    ):
        made(files, plan={"batch_size": 99})


# --- The same work in every arm


@pytest.mark.parametrize("switches", [{"conversion": "each_use"}, {"activation_checkpointing": True}])
def test_every_switch_gives_the_same_training_to_the_bit(files: Path, switches: dict[str, Any]) -> None:
    plain, arm = made(files), made(files, **switches)
    assert plain.signatures == arm.signatures
    assert train(arm, 5, 1e-3) == train(plain, 5, 1e-3)
    assert evaluate(arm) == evaluate(plain)


def test_micro_batches_change_rounding_alone(files: Path) -> None:
    workload = made(files)
    batch = workload.source.batch(0)
    (whole, gradients_), (parts, others) = gradients(workload, batch), gradients(workload, batch, 1)
    assert parts == pytest.approx(whole, abs=1e-6)
    for one, other in zip(gradients_, others, strict=True):
        assert other.allclose(one, atol=1e-6)


def test_batches_are_kept_and_can_be_pickled_and_moved(files: Path) -> None:
    workload = made(files)
    source = workload.source
    assert isinstance(source, KeptBatches)
    assert source.resident_batches == 4 + 2
    again = pickle.loads(pickle.dumps(made(files, conversion="each_use").source))  # noqa: S301 - our own
    assert same(again.batch(6), source.batch(6))
    assert again.resident_bytes is None
    left = [weakref.ref(tensor) for batch in source.train for tensor in batch.values()]  # type: ignore[union-attr]
    workload.source = source.on(torch.device("meta"))
    del source
    gc.collect()
    assert [ref for ref in left if ref() is not None] == []


def test_a_checkpoint_does_not_fit_other_annotations_or_heads(files: Path) -> None:
    plain = made(files).signatures
    assert made(files, asked={"pivots": 3}).signatures["model"] != plain["model"]
    assert made(files, asked={"technical": None}).signatures["model"] != plain["model"]
    other = made(files, asked={"trend_weight": 2.0}).signatures
    assert (other["model"], other["data"]) == (plain["model"], plain["data"])
    assert other["schedule"] != plain["schedule"]


# --- What is learnt


def test_the_transformer_beats_the_trivial_predictor_on_later_annotations(files: Path) -> None:
    workload = made(files)
    train(workload, 120, 3e-3)
    found = evaluate(workload)
    assert found.primary == "eval_loss"
    assert found.metrics["eval_loss"] < found.baseline["eval_loss"]
    assert found.metrics["action_accuracy"] > found.baseline["action_accuracy"]
    assert found.metrics["price_error"] < found.baseline["price_error"]
    assert {"angle_error_degrees", "direction_accuracy", "pivot_error"} < found.metrics.keys()


def test_the_loss_is_that_of_its_heads(files: Path) -> None:
    workload = made(files)
    workload.model.eval()
    batches = [workload.source.held_out(index) for index in range(2)]
    total = sum(float(workload.loss_sum(batch).detach()) for batch in batches)
    assert evaluate(workload).metrics["eval_loss"] == pytest.approx(total / 6, rel=1e-5)


def test_synthetic_annotations_are_called_so(capfd: pytest.CaptureFixture[str]) -> None:
    workload = made("synthetic-annotations")
    assert "SYNTHETIC DATA: 20 made-up annotations" in capfd.readouterr().err
    assert evaluate(workload).metrics["synthetic_data"] == 1.0
    seconds = made("synthetic-annotations", asked={"frames": ["1s"]})
    assert all(batch["1s_seen"].all() for batch in seconds.source.train)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"annotations": {"candles": 7}}, "candles 7 is not a multiple of pool 2"),
        ({"annotations": {"frames": ["1s", "1s"]}}, "frames ['1s', '1s'] name a frame twice"),
        ({"annotations": None}, "synthetic-annotations needs annotations"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(change: dict[str, object], fact: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(fact)):
        ResidentTransformer.model_validate({**TINY, "data": "synthetic-annotations", **change})


def test_the_example_for_a_gpu_has_46_million_parameters() -> None:
    fields = yaml.safe_load((EXAMPLES / "resident_transformer_annotations_gpu.yaml").read_text())["workload"]
    plan = ResidentTransformer.model_validate(fields)
    assert plan.annotations is not None
    with torch.device("meta"):
        model = AnnotationNetwork(plan, sizes_of(plan.annotations), recompute=False)
    assert sum(p.numel() for p in model.parameters()) // 10**6 == 46
