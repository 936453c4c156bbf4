import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from runner.cli.bench.command import CHART_MISSING, draw
from runner.cli.bench.comparison import compare, make_measurement
from tests.fakes.daemon.api import FakeApi, ended
from tests.unit.runner.cli.conftest import Invoke


def finish(
    api: FakeApi, directory: Path, rates: list[float], outcome: str = "succeeded"
) -> Callable[[], None]:
    """Return what ends the newest job, its reports written."""

    def turn() -> None:
        job = list(api.jobs.values())[-1]
        reports = directory / job["id"] / "attempts" / "1"
        reports.mkdir(parents=True)
        rate = rates[len(api.jobs) - 1]
        steps = [{"step": i, "items_per_s": rate, "data_wait": 0.1} for i in range(4)]
        metrics = [*steps, {"step": 4, "eval_loss": 0.25}]
        text = "\n".join(json.dumps(line) for line in metrics)
        (reports / "metrics.jsonl").write_text(f"{text}\n{{torn")
        (reports / "status.json").write_text(json.dumps({"memory_bytes": 2**28}, indent=1))
        (reports / "effective.json").write_text(json.dumps({"device": "cpu"}))
        result = {"step": 4, "metrics": {"eval_loss": 0.25, "seconds_eval": 2.0}}
        job.update({**ended(outcome), "run_dir": str(directory / job["id"]), "result": result})

    return turn


@pytest.fixture
def rates(api: FakeApi, tmp_path: Path) -> list[float]:
    """Let every job end at once, the first two slow and fast, and so on."""
    found = [100.0, 300.0, 120.0, 360.0]
    api.turns["wait"].extend(finish(api, tmp_path / "jobs", found) for _ in found)
    return found


@pytest.mark.usefixtures("rates")
def test_arms_take_turns_and_the_table_sets_them_side_by_side(
    api: FakeApi, invoke: Invoke, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    result = invoke("bench", "causal_lm", "--rounds", "2", "--steps", "4", "--output", str(out))
    assert result.exit_code == 0, result.stderr
    asked = [json.loads(text)["profile"]["extends"] for text in api.submitted]
    assert asked == ["baseline", "auto", "baseline", "auto"]
    assert "330 (300-360)" in result.stdout
    assert "3.00 x" in result.stdout
    assert "256 MiB" in result.stdout
    assert "equal work" in result.stdout
    kept = json.loads((out / "causal_lm.json").read_text())
    assert kept["arms"][1]["jobs"] == ["000002", "000004"]
    assert kept["machine"]["cores"] >= 1
    assert (out / "causal_lm.txt").read_text() == result.stdout


@pytest.mark.usefixtures("rates")
def test_jobs_never_run_beside_each_other(api: FakeApi, invoke: Invoke, tmp_path: Path) -> None:
    invoke("bench", "causal_lm", "--rounds", "2", "--steps", "4", "--output", str(tmp_path))
    kinds = [path.rpartition("/")[2].partition("?")[0] for _, path, _ in api.asked]
    assert all((a, b) != ("jobs", "jobs") for a, b in pairwise(kinds))
    assert kinds.count("jobs") == 4


def test_a_job_that_fails_ends_the_measurement(api: FakeApi, invoke: Invoke, tmp_path: Path) -> None:
    api.turns["wait"].append(finish(api, tmp_path / "jobs", [1.0], "failed"))
    result = invoke("bench", "causal_lm", "--output", str(tmp_path))
    assert result.exit_code == 4
    assert "baseline: job 000001 failed: completed; see runner logs 000001" in result.stderr


def test_reports_that_cannot_be_read_are_named(api: FakeApi, invoke: Invoke, tmp_path: Path) -> None:
    api.turns["wait"].append(lambda: next(iter(api.jobs.values())).update(ended()))
    result = invoke("bench", "causal_lm", "--output", str(tmp_path))
    assert result.exit_code == 4
    assert "status.json: No such file or directory; bench reads the reports" in result.stderr


@pytest.mark.usefixtures("api")
def test_an_ablation_is_between_two_profiles(invoke: Invoke, tmp_path: Path) -> None:
    result = invoke(
        "bench", "causal_lm", "--ablate", "--profiles", "baseline,compat,cpu", "--output", str(tmp_path)
    )
    assert (result.exit_code, "--ablate goes with two profiles, not 3" in result.stderr) == (2, True)


def test_an_ablation_says_what_it_leaves_out(api: FakeApi, invoke: Invoke, tmp_path: Path) -> None:
    api.turns["wait"].extend(finish(api, tmp_path / "jobs", [1.0] * 40) for _ in range(40))
    result = invoke("bench", "causal_lm", "--ablate", "--rounds", "1", "--output", str(tmp_path))
    assert result.exit_code == 0, result.stderr
    assert "left out: graph_cache: causal_lm has no use for it" in result.stderr
    assert "auto, attention: rebuilt_mask" in result.stdout.replace('"', "")


@pytest.mark.usefixtures("api")
def test_an_output_that_cannot_be_made_is_refused_before_anything_runs(
    api: FakeApi, invoke: Invoke, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    result = invoke("bench", "causal_lm", "--output", str(tmp_path / "file" / "below"))
    assert (result.exit_code, api.submitted) == (2, [])


@pytest.mark.usefixtures("rates")
def test_a_missing_matplotlib_is_said_in_one_line(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    result = invoke("bench", "causal_lm", "--rounds", "1", "--output", str(tmp_path))
    assert result.stderr.splitlines()[-1] == CHART_MISSING
    assert not (tmp_path / "causal_lm.png").exists()


class Paper:
    """Stands where matplotlib draws: remembers the bars, and what was saved where."""

    def __init__(self) -> None:
        self.bars: list[tuple[list[str], list[float]]] = []
        self.labels: list[str] = []
        self.saved: list[Path] = []

    def add_subplot(self, *_: int) -> "Paper":
        return self

    def barh(self, names: list[str], values: list[float]) -> None:
        self.bars.append((names, values))

    def invert_yaxis(self) -> None:
        """The first arm is at the top."""

    def set_xlabel(self, text: str) -> None:
        self.labels.append(text)

    def savefig(self, path: Path) -> None:
        self.saved.append(path)


def test_the_chart_has_a_bar_for_every_arm(tmp_path: Path) -> None:
    reports: list[list[dict[str, Any]]] = [[{"items_per_s": rate}] for rate in (10.0, 25.0)]
    slow, fast = (make_measurement("1", {}, lines, {}, None) for lines in reports)
    paper = Paper()
    draw(paper, compare({"slow": [slow], "fast": [fast]}), tmp_path / "a.png")
    assert paper.bars == [(["slow", "fast"], [1.0, 2.5]), (["slow", "fast"], [0.0, 0.0])]
    assert paper.labels == ["items/s, times slow", "evaluation, times slow"]
    assert paper.saved == [tmp_path / "a.png"]
