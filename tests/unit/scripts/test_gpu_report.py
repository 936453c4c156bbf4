"""Findings are stored and rendered; figures of the comparison are computed as documented."""

import re
import time
from pathlib import Path

import pytest

from jobs.contract import RunPaths
from scripts.gpu_report import exact, near_limit, restart
from scripts.gpu_report.context import Context, against_target
from scripts.gpu_report.data import KINDS, plan_of
from scripts.gpu_report.fast import LEFT_OUT, arms_of
from scripts.gpu_report.report import Finding, Part, checked, markdown, measured, not_run, read, write
from scripts.gpu_report.run_part import LIMITS_S
from scripts.gpu_report.sources import HEADLINES, summary
from tests.fakes.patience import patience

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
    written = part("exact", *FINDINGS, measured("odd", "```\n</details>"))
    assert write(tmp_path, [written]) == tmp_path / "report.md"
    assert read(tmp_path, ("fast", "exact")) == [written]
    assert [path.name for path in tmp_path.iterdir()] == ["report.md"]  # one file is brought back
    assert (tmp_path / "report.md").read_text().startswith(markdown([written]))
    assert read(tmp_path / "none", ("exact",)) == []


def test_the_most_valuable_parts_fit_the_budget_that_the_page_names() -> None:
    page = (Path(__file__).parents[3] / "docs/operate/gpu-report.md").read_text()
    budget = re.search(r"--budget ([0-9]+)m", page)
    assert budget is not None
    assert LIMITS_S["sources"] + LIMITS_S["exact"] <= 60 * float(budget[1]) + 60


def test_the_first_step_after_a_kill_is_any_as_a_late_kill_finds_more_than_one_checkpoint(
    tmp_path: Path,
) -> None:
    context = Context(rehearsal=True, directory=tmp_path, deadline=0)
    run = restart.Run(tmp_path, restart._spec(context, near_limit.TINY, {}), tmp_path, attempts=2)
    paths = RunPaths(tmp_path, 2, 1)
    paths.attempt_dir.mkdir(parents=True)
    paths.effective.write_text("{}")
    paths.log.write_text("job 1, attempt 2\nresumed from step 30\nstep 31/100000 loss 1.0\n")
    began = time.monotonic()
    found = restart._phases(run, restart.Start("after SIGKILL", began, began), patience())
    assert found["first step s"] == found["resumed s"] >= 0


def test_the_headlines_are_those_of_the_five_sources_at_their_sizes() -> None:
    plans = {headline.kind: headline.plan for headline in HEADLINES.values()}
    assert plans.keys() == set(KINDS)
    assert plans["imu_stream"]["batch_size"] == 8192
    panel = plans["graph_forecast"]
    assert panel["batch_size"] * panel["panel"]["nodes"] == 4096
    assert panel["synthetic_features"] == 189
    assert plans["causal_lm"]["vocabulary"] == 50257
    assert [len(headline.arms) for headline in HEADLINES.values()] == [3, 5, 3, 2, 3]


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


def test_a_headline_says_where_the_work_was_not_equal() -> None:
    row = {"x baseline": 1.0, "fell back": None, "work": "equal", "failure": None}
    rows = [{**row, "arm": "before"}, {**row, "arm": "after", "x baseline": 1.12, "work": "not equal: 49.1%"}]
    assert summary(rows) == "before 1.00 x; after 1.12 x (work not equal: 49.1%)"


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
