"""The table of classes, held against every model that it speaks about, and against the signatures."""

from typing import Final

import pytest
from pydantic import BaseModel

from jobs.contract import PLANS, SWITCHES, TRAJECTORY, kind_of
from jobs.training.step import NUMERIC_SWITCHES
from runner.core.policy.catalog import validate_facts
from runner.core.policy.change_class import (
    FIELDS,
    PROGRAM_FIELDS,
    TRAINING,
    ChangeClass,
    FieldChange,
    JsonValue,
    RevisionChange,
    RevisionFields,
    change_rows,
    classify_change,
    classify_field,
    format_change,
    format_field,
)
from runner.core.policy.facts import DecisionPoint
from runner.files.job.model import JobFile
from runner.services.rollout.diff import own_rules

RULES = {kind_of(plan): own_rules(plan) for plan in PLANS} | {"program": PROGRAM_FIELDS}


def change(name: str, before: object, after: object, kind: str = "causal_lm", **more: bool) -> FieldChange:
    """Return what becomes of one field that changes."""
    sides = (RevisionFields({name: value}, kind, workload=RULES[kind], **more) for value in (before, after))  # type: ignore[dict-item]
    [found] = classify_change(*sides).changes
    return found


def leaves(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Return the dotted names of a model's fields, one level deep."""
    names = []
    for name, field in model.model_fields.items():
        kind = field.annotation
        inner = kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
        names += [f"{prefix}{name}.{each}" for each in inner.model_fields] if inner else [f"{prefix}{name}"]
    return names


MAPPINGS = {"workload", "environment", "labels", "profile.environment"}
"""Fields whose parts have a class each."""


# --- No field without a class


@pytest.mark.parametrize("name", [n for n in leaves(JobFile) if n not in MAPPINGS])
def test_every_field_of_the_job_file_has_a_class(name: str) -> None:
    if name == "profile.extends":  # what it comes to is compared, switch by switch
        return
    section = name.partition(".")[0]
    assert name in FIELDS or f"{section}.*" in FIELDS or name == "profile.name", name


@pytest.mark.parametrize("name", SWITCHES)
def test_every_switch_of_a_profile_has_a_class(name: str) -> None:
    assert f"profile.{name}" in FIELDS


@pytest.mark.parametrize(
    ("kind", "name"),
    [(plan.model_fields["kind"].default, name) for plan in PLANS for name in plan.model_fields],
)
def test_every_field_of_every_plan_has_a_class(kind: str, name: str) -> None:
    assert name in RULES[kind] or name in TRAINING


def test_the_table_names_nothing_that_no_model_has() -> None:
    for plan in PLANS:
        assert set(RULES[kind_of(plan)]) <= set(plan.model_fields)
    profile = {name.removeprefix("profile.") for name in FIELDS if name.startswith("profile.")}
    assert profile == {*SWITCHES, "environment.*"}
    top = {name.partition(".")[0] for name in FIELDS}
    assert top <= set(JobFile.model_fields)


# --- The classes agree with what checkpoints are signed with


@pytest.mark.parametrize("name", NUMERIC_SWITCHES)
def test_a_switch_that_is_signed_changes_the_rounding(name: str) -> None:
    entry = FIELDS[f"profile.{name}"]
    assert (entry.kind, entry.bits) == (ChangeClass.B, False)


def test_a_switch_that_is_not_signed_keeps_the_bits() -> None:
    others = set(SWITCHES) - {*NUMERIC_SWITCHES, "micro_batch", "cudnn_benchmark", "compile_dynamic"}
    assert {name for name in others if not FIELDS[f"profile.{name}"].bits} == set()


@pytest.mark.parametrize("name", TRAJECTORY)
def test_what_decides_where_a_training_goes_is_another_trajectory(name: str) -> None:
    assert TRAINING[name].kind is ChangeClass.C


# --- Single fields


@pytest.mark.parametrize(
    ("name", "kind", "bits"),
    [
        ("checkpoint.every_steps", "A", True),
        ("workload.log_every", "A", True),
        ("labels.team", "A", True),
        ("profile.graph_cache", "B", True),
        ("profile.loader_workers", "B", True),
        ("profile.precision", "B", False),
        ("environment.OMP_PROC_BIND", "B", False),
        ("workload.learning_rate", "C", False),
        ("seed", "C", False),
        ("workload.width", "E", False),
        ("workload.data", "E", False),
        ("workload.invented", "E", False),
        ("invented", "E", False),
        ("profile.invented", "E", False),
    ],
)
def test_a_field_has_the_class_that_the_page_says(name: str, kind: str, bits: bool) -> None:  # noqa: FBT001
    found = change(name, 1, 2)
    assert (found.kind, found.bits) == (ChangeClass(kind), bits)


def test_a_micro_batch_changes_the_masks_of_dropout_and_nothing_else() -> None:
    assert change("profile.micro_batch", 8, 4).kind is ChangeClass.B
    assert change("profile.micro_batch", 8, 4, dropout=True).kind is ChangeClass.C


def test_what_a_program_makes_of_a_change_only_its_author_knows() -> None:
    assert change("workload.code", "/a", "/b", "program").kind is ChangeClass.C
    assert change("profile.threads", 1, 2, "program").kind is ChangeClass.C
    assert change("resources.memory", 1, 2, "program").kind is ChangeClass.A
    assert "author" in classify_field("environment.A", RevisionFields({}, "program")).why


@pytest.mark.parametrize("kind", sorted(RULES))
def test_no_reason_contradicts_what_is_said_of_the_bits(kind: str) -> None:
    for name in FIELDS:
        rule = classify_field(name.replace("*", "any"), RevisionFields({}, kind))
        assert rule.bits or "same bits" not in rule.why, (name, rule)


# --- The whole


def test_a_change_is_as_bad_as_its_worst_field_and_shows_that_one_first() -> None:
    before = RevisionFields({"seed": 1, "priority": 50, "workload.width": 8, "stays": 1}, "causal_lm")
    after = RevisionFields({"seed": 2, "priority": 60, "workload.width": 16, "stays": 1}, "causal_lm")
    found = classify_change(before, after)
    assert [each.name for each in found.changes] == ["workload.width", "seed", "priority"]
    assert found.kind is ChangeClass.E
    assert not found.same_bits


def test_a_field_that_appears_or_goes_is_a_change() -> None:
    found = classify_change(
        RevisionFields({"labels.a": "x"}, "causal_lm"), RevisionFields({"labels.b": "y"}, "causal_lm")
    )
    assert [(each.before, each.after) for each in found.changes] == [("x", None), (None, "y")]
    assert found.same_bits


def test_nothing_that_differs_is_class_a_and_keeps_the_bits() -> None:
    assert RevisionChange().kind is ChangeClass.A
    assert RevisionChange().same_bits


def test_the_facts_are_those_that_a_policy_knows() -> None:
    found = classify_change(
        RevisionFields({"seed": 1}, "causal_lm"), RevisionFields({"seed": 2}, "causal_lm")
    )
    told = validate_facts(found.facts(allowed=True), DecisionPoint.CHANGE)
    assert told == {"diff.class": "C", "diff.fields": ("seed",), "diff.allowed": True}


def test_values_are_shown_as_a_job_file_says_them() -> None:
    assert format_field(["changed_training", None, True]) == "[changed_training, -, true]"
    assert format_field({"a": 1, "b": [2.5]}) == "{a: 1, b: [2.5]}"


def test_sizes_are_shown_as_people_write_them() -> None:
    found = RevisionChange((change("resources.memory", 128 * 1024**2, 256 * 1024**2),))
    assert [row[:3] for row in change_rows(found)] == [("resources.memory", "128MiB", "256MiB")]
    unset = RevisionChange((change("devices.memory", None, 3000),))
    assert [row[:3] for row in change_rows(unset)] == [("devices.memory", "-", "3KB")]


COMMAND: Final[list[JsonValue]] = ["python", "train.py", "--lr", "0.01", "--steps", "3000", "--save-every"]


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        (
            [*COMMAND, "50", "--seed", "0"],
            [*COMMAND, "50", "--seed", "1"],
            ("…50, --seed, 0]", "…50, --seed, 1]"),
        ),
        (
            [*COMMAND, "50"],
            [*COMMAND, "150", "-v"],
            ("…3000, --save-every, 50]", "…3000, --save-every, 150, -v]"),
        ),
        (["ls", *COMMAND], ["rm", *COMMAND], ("[ls, python, train.py,…", "[rm, python, train.py,…")),
        ("x" * 99, "x" * 50 + "y" + "x" * 49, ("…" + "x" * 48 + "…", "…" + "x" * 24 + "y" + "x" * 24 + "…")),
        ("a" * 999, "b" * 999, ("a" * 424 + "…", "b" * 424 + "…")),
        (None, "x" * 99, ("-", "x" * 99)),
    ],
)
def test_of_long_values_the_part_that_differs_is_shown(
    before: JsonValue, after: JsonValue, shown: tuple[str, str]
) -> None:
    assert format_change(before, after) == shown


def test_values_are_shown_in_short() -> None:
    assert [format_field(None), format_field(value=True)] == ["-", "true"]
    found = classify_change(
        RevisionFields({"seed": 1}, "causal_lm"), RevisionFields({"seed": 2}, "causal_lm")
    )
    assert list(change_rows(found)) == [("seed", "1", "2", "C", "another seed draws other batches and masks")]


@pytest.mark.parametrize("name", ["parallel.processes", "resources.gpus"])
@pytest.mark.parametrize(
    ("parallel", "kind", "bits"),
    [
        ({}, ChangeClass.C, False),
        ({"parallel.shards": 8, "parallel.reduction": "exact"}, ChangeClass.B, True),
        ({"parallel.shards": 8, "parallel.reduction": "fast"}, ChangeClass.B, False),
        (
            {"parallel.shards": 8, "parallel.reduction": "exact", "parallel.sharded": True},
            ChangeClass.B,
            False,
        ),
    ],
)
def test_another_number_of_processes_keeps_the_bits_of_shards(
    name: str, parallel: dict[str, JsonValue], kind: ChangeClass, *, bits: bool
) -> None:
    found = classify_field(name, RevisionFields(parallel, "causal_lm"))
    assert (found.kind, found.bits) == (kind, bits)


@pytest.mark.parametrize("name", ["workload.eval_every", "workload.eval_batches", "profile.eval_batch"])
@pytest.mark.parametrize("decides", ["workload.early_stopping", "workload.lr_plateau", None])
def test_how_it_is_evaluated_is_a_trajectory_where_evaluations_decide(name: str, decides: str | None) -> None:
    both: dict[str, JsonValue] = {decides: {"patience": 3}} if decides else {}
    sides = (
        RevisionFields({name: value, **both}, "causal_lm", workload=RULES["causal_lm"]) for value in (1, 2)
    )
    [found] = classify_change(*sides).changes
    assert found.kind is (ChangeClass.C if decides else ChangeClass.A)


def test_other_weights_to_begin_with_ask_for_a_restart() -> None:
    assert change("workload.init_from", None, "job/7/best").kind is ChangeClass.E
