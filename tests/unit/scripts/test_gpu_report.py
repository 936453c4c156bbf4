"""Findings are stored and rendered; figures of the comparison are computed as documented."""

from pathlib import Path

import pytest

from scripts.gpu_report import exact, near_limit, near_limit_worker
from scripts.gpu_report.context import Context, against_target
from scripts.gpu_report.data import KINDS, plan_of
from scripts.gpu_report.fast import LEFT_OUT, arms_of
from scripts.gpu_report.report import Finding, Part, checked, markdown, measured, not_run, read

MACHINE = {"device": "NVIDIA X", "driver": "1.2"}


def part(name: str, *findings: Finding, rehearsal: bool = False) -> Part:
    return Part(name, "a title", MACHINE, rehearsal, "2026-01-01 00:00 UTC", 1.5, findings)


FINDINGS = (
    checked("right", "it is", good=True, value=1.0),
    checked("wrong", "it | is not", good=False),
    measured("table", "two rows", rows=[{"a": 1.23456, "b": None}, {"a": 12345.6, "b": "x"}]),
    not_run("absent", "no device"),
)


def test_parts_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    written = part("exact", *FINDINGS)
    written.write(tmp_path)
    assert read(tmp_path, ("fast", "exact")) == [written]


def test_the_report_names_the_machine_and_every_finding() -> None:
    text = markdown([part("exact", *FINDINGS)])
    assert text.startswith("# GPU report: NVIDIA X\n")
    assert "| exact | 1 | 1 | 1 | 1 |" in text
    assert "| wrong | **failed** | it \\| is not |" in text
    assert "| absent | not run | no device |" in text
    assert "| 1.235 | - |\n| 12,346 | x |" in text
    assert "rehearsal" not in text.lower()


def test_a_rehearsal_says_so_on_every_line() -> None:
    text = markdown([part("exact", *FINDINGS, rehearsal=True)])
    assert "**Rehearsal with tiny sizes: the figures say nothing about a GPU.**" in text
    rows = [line for line in text.splitlines() if line.startswith(("| ", "#"))]
    assert {row for row in rows if "(rehearsal)" not in row} == {
        "| what | status | |",
        "| part | passed | failed | measured | not run |",
    }


def test_nothing_measured_is_an_empty_report() -> None:
    assert "Nothing was measured" in markdown([])


def context(tmp_path: Path, *, rehearsal: bool = False, tiny: bool = False) -> Context:
    return Context(rehearsal, tmp_path, 0.0, tiny=tiny)


def test_a_target_is_judged_on_a_device_alone(tmp_path: Path) -> None:
    assert against_target(context(tmp_path), "speed", "", good=False).status == "failed"
    assert against_target(context(tmp_path), "speed", "", good=True).status == "passed"
    assert against_target(context(tmp_path, rehearsal=True), "speed", "", good=False).status == "measured"
    assert against_target(context(tmp_path, tiny=True), "speed", "", good=False).status == "measured"


def test_flops_of_a_token_follow_the_palm_paper() -> None:
    plan = {"layers": 2, "width": 8, "context": 16}
    weights = 2 * (12 * 64 + 13 * 8) + 256 * 8 + 2 * 8
    assert near_limit.parameters(plan) == weights
    assert near_limit.flops_per_token(plan) == 6 * weights + 12 * 2 * 8 * 16


def test_the_measured_model_has_the_parameters_that_are_counted() -> None:
    from jobs.contract import Profile
    from jobs.contract.plans.causal_lm import CausalLm
    from jobs.workloads.causal_lm import Transformer

    plan = CausalLm(data="stdlib", context=16, layers=2, heads=2, width=8)
    model = Transformer(plan, Profile())
    positions = plan.context * plan.width
    counted = sum(weight.numel() for weight in model.parameters()) - positions
    assert near_limit.parameters(plan.model_dump()) == counted
    real = near_limit.parameters(near_limit.REAL) / 1e6
    assert 115 < real < 130


@pytest.mark.parametrize(
    ("spans", "length"),
    [
        ([], 0.0),
        ([(0.0, 1.0)], 1.0),
        ([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)], 4.0),
        ([(0.0, 9.0), (1.0, 2.0)], 9.0),
    ],
)
def test_overlapping_kernels_count_once(spans: list[tuple[float, float]], length: float) -> None:
    assert near_limit_worker.covered(spans) == length


def test_the_ablation_restores_one_switch_of_the_baseline_at_a_time(tmp_path: Path) -> None:
    arms = arms_of(context(tmp_path), "causal_lm")
    ablated = {name: arm for name, arm in arms.items() if name.startswith("cuda, ") and ": " in name}
    assert "cuda, optimizer: loop" in ablated
    assert "cuda, graph_cache: off" not in ablated, "causal_lm has no graphs"
    for arm in ablated.values():
        changed = {k for k, v in arm.model_dump().items() if v != arms["cuda"].model_dump()[k]} - {"name"}
        assert len(changed) == 1
        assert not changed & LEFT_OUT


@pytest.mark.parametrize("kind", KINDS)
def test_the_sizes_for_a_device_make_valid_specs(kind: str, tmp_path: Path) -> None:
    on_device = context(tmp_path)
    for arms in (exact.PROMISED, exact.BESIDE):
        for arm in (arm for arm in arms if arm.kind == kind):
            assert exact.spec_of(on_device, arm).accelerator == "cuda"
    plan = plan_of(kind, on_device, steps=5)
    for name, profile in arms_of(on_device, kind).items():
        spec = on_device.spec(plan, profile)
        assert spec.workload.kind == kind, name
        assert spec.workload.steps == 5


def test_a_smoke_test_on_a_device_has_the_sizes_of_a_rehearsal(tmp_path: Path) -> None:
    assert context(tmp_path, tiny=True).sized("real", "tiny") == "tiny"
    assert context(tmp_path, rehearsal=True).sized("real", "tiny") == "tiny"
    assert context(tmp_path).sized("real", "tiny") == "real"
