"""A registered workload is complete: whatever is derived from the registry finds what it needs."""

import ast
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from jobs.contract import PLANS, SWITCHES, WORKLOADS, TrainingPlan, kind_of
from jobs.contract.plans.causal_lm import CausalLm
from jobs.contract.plans.graph_forecast import GraphForecast
from jobs.contract.plans.imu_stream import ImuStream
from jobs.contract.plans.pair_classifier import PairClassifier
from jobs.contract.plans.resident_transformer import ResidentTransformer
from tests.fakes.workloads import small_sets

EXAMPLES = Path(__file__).parents[4] / "examples"
each_workload = pytest.mark.parametrize("plan", WORKLOADS, ids=kind_of)


def test_no_two_plans_have_the_same_kind() -> None:
    assert len({kind_of(plan) for plan in PLANS}) == len(PLANS)


@each_workload
def test_the_module_of_a_workload_defines_what_builds_it(plan: type[TrainingPlan]) -> None:
    module, _, name = plan.implementation.partition(":")
    found = find_spec(module)
    assert found is not None
    assert found.origin is not None
    tree = ast.parse(Path(found.origin).read_text())  # not imported: that would load torch
    assert name in {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}


@each_workload
def test_each_field_of_a_workload_has_exactly_one_effect_on_a_checkpoint(plan: type[TrainingPlan]) -> None:
    fields = plan.checkpoint_fields
    own = [*fields.data, *fields.shape, *fields.trajectory, *fields.reports]
    assert sorted(own) == sorted(set(own))
    common = {*TrainingPlan.model_fields, "kind", "dropout"}
    assert set(own) == set(plan.model_fields) - common


@each_workload
def test_the_switches_of_a_workload_exist(plan: type[TrainingPlan]) -> None:
    assert plan.switches <= set(SWITCHES)


@each_workload
def test_the_benchmark_of_a_workload_is_a_valid_plan(plan: type[TrainingPlan]) -> None:
    measured = plan.model_validate(dict(plan.benchmark))
    assert measured.steps <= 1000


@each_workload
def test_a_workload_has_an_example(plan: type[TrainingPlan]) -> None:
    example = yaml.safe_load((EXAMPLES / f"{kind_of(plan)}.yaml").read_text())
    assert example["workload"]["kind"] == kind_of(plan)


@each_workload
def test_a_workload_has_a_small_set_with_which_the_chaos_tests_kill_and_resume_it(
    plan: type[TrainingPlan], tmp_path: Path
) -> None:
    fields = small_sets.small_plan(kind_of(plan), tmp_path / "data")
    assert plan.model_validate(fields).steps


@each_workload
def test_a_length_is_given_in_steps_or_in_epochs(plan: type[TrainingPlan]) -> None:
    known = dict(plan.benchmark)
    with pytest.raises(ValidationError, match="are passes over the data, and steps are given as well"):
        plan.model_validate({**known, "epochs": 2})
    known.pop("steps")
    in_epochs = plan.model_validate({**known, "epochs": 2.5})
    assert in_epochs.known_steps is None
    assert plan.model_validate_json(in_epochs.model_dump_json()) == in_epochs
    counted = in_epochs.with_steps(3)
    assert (counted.known_steps, counted.epochs) == (8, None)
    assert counted.with_steps(99) is counted


@pytest.mark.parametrize(
    ("plan", "fields", "fact"),
    [
        (GraphForecast, {"data": "sp500-stocks", "clean": {"inf": None}}, "is for a panel"),
        (ImuStream, {"data": "watch", "clean": {"nan": 0}}, "is about a body: set module as well"),
        (ImuStream, {"data": "watch", "pose_joints": 16}, "is about a body: set module as well"),
        (ResidentTransformer, {"data": "index-ohlcv", "clean": {"nan": 0}}, "is for annotations"),
        (
            ResidentTransformer,
            {"data": "synthetic-annotations", "annotations": {"labels": "candle", "candles": 8}},
            "synthetic-annotations have no labels of candles",
        ),
        (GraphForecast, {"data": "a", "panel": {}, "clean": {"nan": math.inf}}, "finite number"),
        (GraphForecast, {"data": "a", "horizon_weights": [1]}, "1 weights, of which one is above 0, for 4"),
        (GraphForecast, {"data": "a", "horizon_weights": [0, 0, 0, 0]}, "must be as many as horizons"),
        (GraphForecast, {"data": "a", "swa": {}, "ema": {}}, "is an average of the weights, and so is swa"),
        (CausalLm, {"data": "a", "init_from": "b.pt", "init_map": {"rename": {"a.*.": "b."}}}, "number of ."),
        (
            CausalLm,
            {"data": "a", "init_from": "b", "init_map": {"rename": {"a": "b[3/2]"}}},
            "no part 3 of 2",
        ),
        (
            PairClassifier,
            {"data": "a", "form": "sequence", "pretrained": "b", "lora": {}, "trained_learning_rate": 1},
            "is the rate of trained, which names no parameter",
        ),
        (PairClassifier, {"data": "a", "form": "sequence", "trained_learning_rate": 1}, "a pretrained model"),
    ],
)
def test_a_field_without_an_effect_is_refused(
    plan: type[TrainingPlan], fields: dict[str, Any], fact: str
) -> None:
    with pytest.raises(ValidationError, match=fact):
        plan.model_validate(fields)


def test_a_rule_for_what_is_no_number_is_part_of_the_plan_and_left_out_without_one() -> None:
    panel = {"data": "a", "panel": {}}
    for rule in ({"nan": 0.0, "inf": None}, {"nan": "usual", "inf": 3.0}):
        plan = GraphForecast.model_validate({**panel, "clean": rule})
        assert plan.model_dump(mode="json")["clean"] == rule
        assert GraphForecast.model_validate_json(plan.model_dump_json()) == plan
    assert "clean" not in GraphForecast.model_validate(panel).model_dump(mode="json")


@each_workload
def test_without_epochs_the_json_is_that_of_earlier_versions(plan: type[TrainingPlan]) -> None:
    """Signatures of checkpoints and digests of revisions depend on it."""
    written = plan.model_validate(dict(plan.benchmark)).model_dump(mode="json")
    assert "steps" in written
    assert "epochs" not in written
