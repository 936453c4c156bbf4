"""Settings of a profile that contradict each other, or have no effect."""

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from jobs.contract import (
    KINDS,
    SWITCHES,
    WORKLOADS,
    Plan,
    Profile,
    Program,
    TrainingPlan,
    kind_of,
    profiles_dir,
)
from runner.base.textfile import FileError, Position
from runner.files.job.conflicts import find_profile_conflicts
from runner.files.job.load import parse_job
from runner.files.profiles.conflicts import (
    CONTRADICTIONS,
    ENVIRONMENT,
    USED_BY,
    SwitchConflict,
    find_oversized,
    find_switch_conflicts,
    find_unused_switches,
)
from runner.files.profiles.load import (
    ACCELERATORS,
    JOB_FILE,
    Accelerator,
    ProfileSetting,
    load_profile,
    profile_names,
)

ROOT = Path(__file__).parents[5]
WORKLOAD = "workload: {kind: causal_lm, data: stdlib}\n"
BELONGS: dict[str, tuple[Accelerator, ...]] = {"rocm": ("rocm",), "cuda": ("cuda",)}
OFFENDING: dict[str, Any] = {
    "cudnn_benchmark": True, "compile": "max-autotune", "tf32_matmul": True, "tf32_cudnn": True,
    "loader_workers": 2, "non_blocking": True, "compile_fullgraph": True, "compile_dynamic": True,
}  # fmt: skip
AGAINST: dict[str, Any] = {
    "deterministic": True,
    "precision": "fp32",
    "placement": "device",
    "compile": "off",
}


def found(said: Mapping[str, ProfileSetting], accelerator: Accelerator = "cuda") -> list[SwitchConflict]:
    return list(find_switch_conflicts({**load_profile("compat", profiles_dir()), **said}, accelerator))


@pytest.mark.parametrize("name", profile_names(profiles_dir()))
def test_a_shipped_profile_is_free_of_contradictions_where_it_belongs(name: str) -> None:
    where = BELONGS.get(name.partition("-")[0], ACCELERATORS)
    assert [list(find_switch_conflicts(load_profile(name, profiles_dir()), each)) for each in where] == [
        []
    ] * len(where)


@pytest.mark.parametrize("rule", CONTRADICTIONS, ids=lambda rule: f"{rule.one}-{rule.other}")
def test_every_contradiction_is_found_whichever_side_was_said_last(rule: Any) -> None:
    against = "host" if rule.one == "non_blocking" else AGAINST[rule.other]
    one, other = OFFENDING[rule.one], against
    free = {
        "deterministic": ProfileSetting(value=False),
        "precision": ProfileSetting("auto"),
        "placement": ProfileSetting("pinned"),
    }
    for earlier, later in ((rule.one, rule.other), (rule.other, rule.one)):
        values = {rule.one: one, rule.other: other}
        said = {
            earlier: ProfileSetting(values[earlier], at=Position(3, 1), rank=JOB_FILE),
            later: ProfileSetting(values[later], at=Position(4, 1), rank=JOB_FILE),
        }
        (clash,) = found(free | said)
        assert (clash.switch, clash.other) == (later, earlier)
        assert "(line 3)" in clash.fact
        assert clash.fact.endswith("; change one of them")


def test_the_job_file_is_to_blame_before_a_profile_and_a_profile_before_a_default() -> None:
    mine = ProfileSetting(value=True, at=Position(2, 1), rank=JOB_FILE)
    profiles = ProfileSetting(value=True, profile="fast", at=Position(9, 1), rank=2)
    for one, other, blamed in (
        (mine, profiles, "cudnn_benchmark"),
        (profiles, mine, "deterministic"),
        (profiles, ProfileSetting(value=True), "cudnn_benchmark"),
    ):
        (clash,) = found({"cudnn_benchmark": one, "deterministic": other})
        assert clash.switch == blamed


def test_a_side_that_a_profile_says_is_named_with_its_file_and_line() -> None:
    benchmark = ProfileSetting(value=True, profile="fast", at=Position(9, 1), rank=2)
    (clash,) = found({"cudnn_benchmark": benchmark, "deterministic": ProfileSetting(value=True)})
    assert clash.fact.startswith(
        'true of profile "fast" (fast.yaml:9) contradicts deterministic: true, the default: '
    )


def test_a_share_of_device_memory_is_impossible_on_a_cpu_alone() -> None:
    share = ProfileSetting(0.5, at=Position(4, 9), rank=JOB_FILE)
    assert [len(found({"memory_fraction": share}, each)) for each in ACCELERATORS] == [1, 0, 0]


def test_where_the_accelerator_is_open_a_job_is_refused_for_what_is_wrong_on_each() -> None:
    gpu = WORKLOAD + "resources: {gpus: 1}\nprofile: {placement: device}\n"
    with pytest.raises(FileError, match=r"job.yaml:3:22: profile.placement: .* loader_workers: 2 of profile"):
        parse_job(gpu.encode(), Path("job.yaml"))


def test_what_is_wrong_on_one_accelerator_alone_is_told_when_the_job_gets_that() -> None:
    job = parse_job(
        (WORKLOAD + "resources: {gpus: 1}\nprofile: {precision: fp32}\n").encode(), Path("job.yaml")
    )
    assert list(find_profile_conflicts(job, "rocm")) == []
    assert {problem.field for problem in find_profile_conflicts(job, "cuda")} == {"profile.precision"}


def test_every_switch_that_some_workloads_use_names_workloads_that_exist() -> None:
    assert set(USED_BY) <= set(SWITCHES)
    assert set().union(*USED_BY.values()) <= set(KINDS)
    assert set(SWITCHES) > ENVIRONMENT


@pytest.mark.parametrize("plan", WORKLOADS, ids=kind_of)
def test_a_workload_names_the_switches_that_it_is_said_to_use_and_no_others(plan: type[TrainingPlan]) -> None:
    module = ROOT / f"{plan.implementation.partition(':')[0].replace('.', '/')}.py"
    sources = [module] if module.parent.name == "workloads" else sorted(module.parent.glob("*.py"))
    beside = ROOT / f"jobs/workloads/{kind_of(plan)}.py"  # a form of the workload in a module of its own
    sources += [beside] if beside.exists() and beside not in sources else []
    text = "".join(source.read_text() for source in sources)
    assert {switch for switch in USED_BY if f'"{switch}"' in text} == plan.switches


@pytest.mark.parametrize(("kind", "accelerator"), list(product(KINDS, ACCELERATORS)))
def test_what_has_no_effect_is_told_with_the_reason(kind: str, accelerator: Accelerator) -> None:
    idle = find_unused_switches(Profile(), kind, accelerator)
    assert all(idle.values())
    assert ("graph_cache" in idle) == (kind != "graph_forecast")
    assert ("threads" in idle) is False
    assert ("compile_cache" in idle) == (kind != "program")


@pytest.mark.parametrize(
    ("switches", "waits_for", "used"),
    [
        ({"compile": "default"}, "compile_fullgraph", True),
        ({"compile": "off"}, "compile_fullgraph", False),
        ({"loader_workers": 1}, "loader_prefetch", True),
        ({"loader_workers": 0}, "loader_prefetch", False),
        ({"memory_log": "interval"}, "memory_log_every", True),
        ({"memory_log": "epoch"}, "memory_log_every", False),
        ({"stream_buffer": "auto"}, "stream_buffer_memory", True),
        ({"stream_buffer": 5}, "stream_buffer_memory", False),
        ({"streaming": False}, "stream_buffer_memory", False),
        ({"streaming": False}, "stream_buffer", False),
    ],
)
def test_a_switch_that_waits_for_another_has_no_effect_without_it(
    switches: dict[str, Any], waits_for: str, *, used: bool
) -> None:
    assert (waits_for not in find_unused_switches(Profile(**switches), "imu_stream", "cuda")) is used


@pytest.mark.parametrize(
    ("profile", "facts"),
    [
        ({"micro_batch": 16}, []),
        ({"micro_batch": "auto"}, []),
        (
            {"micro_batch": 17},
            ["profile.micro_batch: 17 rows are more than a step has (workload.batch_size: 16)"],
        ),
        ({"trace": {"steps": [90, 100]}}, []),
        ({"trace": {"steps": [99, 101]}}, ["profile.trace: is not kept: step 101 is not reached"]),
        ({"trace": {"steps": [100, 101]}}, ["profile.trace: records nothing: step 100 is not reached"]),
    ],
)
def test_a_switch_beyond_its_training_is_told(profile: dict[str, Any], facts: list[str]) -> None:
    plan = TypeAdapter(Plan).validate_python(
        {"kind": "causal_lm", "data": "x", "steps": 100, "batch_size": 16}
    )
    assert not isinstance(plan, Program)
    found = list(find_oversized(Profile(**profile), plan, set(profile)))
    assert [line.startswith(fact) for line, fact in zip(found, facts, strict=True)] == [True] * len(facts)
    assert list(find_oversized(Profile(**profile), plan, ())) == []
