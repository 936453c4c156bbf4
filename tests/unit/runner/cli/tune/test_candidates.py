"""What ``runner tune`` tries of a job file, and the job file of an attempt."""

import json
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import UsageError
from runner.cli.bench.variants import BenchmarkJob, read_base_job
from runner.cli.tune.attempts import attempt_fields
from runner.cli.tune.candidates import NUMERICS, TRIED, asked, job_fields, offered
from runner.cli.tune.search import Variation

PROGRAM = {"kind": "program", "command": ["python", "train.py", "--workers", "2", "--depth=3"]}
CAUSAL = {"kind": "causal_lm", "data": "stdlib", "steps": 10}


def a_job(tmp_path: Path, **fields: Any) -> BenchmarkJob:
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps({"workload": PROGRAM, **fields}))  # JSON is YAML
    return read_base_job(str(path), None)


def values(base: BenchmarkJob, *applied: str, numerics: bool = False) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for candidate in offered(base, applied, numerics=numerics).candidates:
        found.setdefault(candidate.name, []).append(candidate.value)
    return found


def test_a_switch_is_tried_where_it_differs_and_has_an_effect(tmp_path: Path) -> None:
    profile = {"extends": "cpu", "memory_log": "interval", "attention": "rebuilt_mask", "encode_once": False}
    base = a_job(tmp_path, workload=CAUSAL, resources={"cpus": 4}, profile=profile)
    found = values(base)
    assert (found["memory_log"], found["attention"]) == (["off"], ["fused"])
    assert found["threads"] == [2, 1]
    assert found["loader_workers"] == [4, 2, 1]
    assert "clone_batches" not in found
    assert "encode_once" not in found
    left_out = offered(base, (), numerics=False).left_out
    assert left_out["encode_once"] == "causal_lm has no use for it"


def test_a_cpu_says_what_needs_a_gpu(tmp_path: Path) -> None:
    left_out = offered(a_job(tmp_path, workload=CAUSAL), (), numerics=False).left_out
    needed = {switch for switch, why in left_out.items() if why == "needs a GPU"}
    assert {"placement", "non_blocking", "allocator", "precision", "tf32_matmul", "tf32_cudnn"} <= needed


def test_other_numbers_are_tried_only_on_request(tmp_path: Path) -> None:
    base = a_job(tmp_path, workload=CAUSAL, resources={"gpus": 1})
    assert not NUMERICS.keys() & values(base).keys()
    assert values(base, numerics=True)["precision"] == ["bf16", "tf32"]
    assert "--numerics" in offered(base, (), numerics=False).left_out["precision"]


def test_of_a_program_what_it_was_seen_to_apply_is_tried(tmp_path: Path) -> None:
    base = a_job(tmp_path, resources={"cpus": 2})
    assert set(values(base)) == {"threads"}
    assert set(values(base, "loader_workers", "optimizer")) == {"threads", "loader_workers", "optimizer"}


def test_every_value_is_one_of_its_switch(tmp_path: Path) -> None:
    for switch, each in {**TRIED, **NUMERICS}.items():
        for value in each:
            gpu = {"gpus": 1} if switch != "loader_workers" else {}
            profile = {"extends": "compat", "precision": "tf32"} if switch.startswith("tf32") else "compat"
            base = a_job(tmp_path, resources=gpu, profile=profile)
            fields = job_fields(base, (Variation("profile", switch, value, None),))
            assert fields["profile"][switch] == value


def test_variables_and_arguments_that_are_asked_for(tmp_path: Path) -> None:
    base = a_job(tmp_path, environment={"A": "1"}, profile={"environment": {"B": "2"}})
    found = asked(base, ["A=1,2", "B=3", "C=4"], ["--workers=0,2", "--depth=5", "--new=6"])
    assert [each.title for each in found] == [
        *("A: 1 -> 2", "B: 2 -> 3", "C: null -> 4"),
        *("--workers: 2 -> 0", "--depth: 3 -> 5", "--new: null -> 6"),
    ]
    fields = job_fields(base, tuple(found))
    assert fields["environment"] == {"A": "2"}
    assert fields["profile"] == {"environment": {"B": "3", "C": "4"}}
    command = ["python", "train.py", "--workers", "0", "--depth=5", "--new=6"]
    assert fields["workload"]["command"] == command
    assert base.written["workload"]["command"][-2:] == ("2", "--depth=3")


@pytest.mark.parametrize(
    ("variables", "arguments", "said"),
    [
        (["A"], [], "--variable A: write a name and its values: NAME=1,2"),
        (["=1"], [], "write a name"),
        ([], ["--workers"], "--argument --workers: write a name"),
        ([], ["--=1"], "write a name"),
        (["OMP_WAIT_POLICY=ACTIVE"], [], "--variable OMP_WAIT_POLICY: is set by the runner; remove it"),
    ],
)
def test_what_cannot_be_tried_is_refused(
    tmp_path: Path, variables: list[str], arguments: list[str], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        asked(a_job(tmp_path), variables, arguments)


def test_a_built_in_workload_has_no_arguments(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="causal_lm is a built-in workload and has no command"):
        asked(a_job(tmp_path, workload=CAUSAL), [], ["--workers=2"])


def test_an_attempt_is_tried_once_saves_nothing_and_waits_for_nobody(tmp_path: Path) -> None:
    base = a_job(
        tmp_path,
        checkpoint={"every_steps": 5, "keep": 3},
        queue={"after": ["000001"], "priority_class": "batch"},
        track=["tensorboard"],
    )
    fields = attempt_fields(base, (Variation("profile", "threads", 1, 2),), 90.0)
    assert fields["checkpoint"] == {"keep": 3, "every": "1d", "every_steps": None, "milestone_every": None}
    assert fields["retry"] == {"max_attempts": 1}
    assert fields["queue"] == {"priority_class": "batch"}
    assert "track" not in fields
    assert fields["profile"] == {"extends": "auto", "threads": 1}


@pytest.mark.parametrize(("own", "limit"), [(None, "90s"), ("1h", "90s"), ("1m", "1m")])
def test_an_attempt_that_nobody_cancels_ends_by_itself(tmp_path: Path, own: str | None, limit: str) -> None:
    base = a_job(tmp_path, resources={"cpus": 2, "time_limit": own})
    assert attempt_fields(base, (), 90.0)["resources"] == {"cpus": 2, "time_limit": limit}
