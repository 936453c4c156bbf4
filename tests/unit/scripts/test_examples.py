"""The table of examples: no file is forgotten, and a row says what is better than the trivial predictor."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.examples import EXAMPLES, EXCLUDED, LAST, NEEDS_A_GPU, RUN, Example, Row, last_loss, submitted

NAMES = sorted(path.stem for path in EXAMPLES.glob("*.yaml"))
PREPARED = ("sp500-stocks", "watch", "solubility", "index-ohlcv")


def fields(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_example_is_run_or_excluded_with_a_true_reason(name: str) -> None:
    assert (name in RUN) != (name in EXCLUDED)
    reason, job = EXCLUDED.get(name), fields(name)
    assert (reason == NEEDS_A_GPU) == (job.get("resources", {}).get("gpus", 0) > 0)
    assert (reason is not None and "schedule" in reason) == bool(job.get("schedule"))


def test_nothing_is_run_or_excluded_that_is_not_there() -> None:
    assert sorted([*RUN, *EXCLUDED]) == NAMES


@pytest.mark.parametrize("name", RUN)
def test_what_an_example_needs_is_there_before_it(name: str) -> None:
    job = fields(name)
    data = job["workload"].get("data")
    assert RUN[name].prepare == (data if data in PREPARED else None)
    earlier = {str(fields(each).get("name", each)) for each in list(RUN)[: list(RUN).index(name)]}
    assert set((job.get("queue") or {}).get("after", [])) <= earlier
    assert (RUN[name].trivial is None) == (job["workload"]["kind"] != "program" or name == "evaluate")


def row(example: Example, state: str = "succeeded", seconds: float = 9.0, **metrics: float) -> Row:
    return Row("one", state, seconds, example, metrics)


@pytest.mark.parametrize(
    ("found", "better"),
    [
        (row(Example(), eval_loss=1.0, baseline_eval_loss=2.0), True),
        (row(Example(), eval_loss=2.0, baseline_eval_loss=2.0), False),
        (row(Example("accuracy", higher=True), accuracy=0.7, baseline_accuracy=0.4), True),
        (row(Example("accuracy", higher=True), accuracy=0.3, baseline_accuracy=0.4), False),
        (row(Example("loss", trivial=32.0), loss=5.0), True),
        (row(Example("loss", trivial=32.0)), False),
        (row(Example(), eval_loss=1.0), False),
        (row(Example(metric=None)), None),
    ],
)
def test_what_is_not_better_than_the_trivial_predictor_is_not_good(found: Row, better: bool | None) -> None:  # noqa: FBT001
    assert found.better is better
    assert found.good is (better is not False)
    assert found.cells().endswith({True: "| yes |", False: "| NO |", None: "| - |"}[better])


def test_what_fails_or_takes_too_long_is_not_good() -> None:
    assert not row(Example(), "failed", eval_loss=1.0, baseline_eval_loss=2.0).good
    assert not row(Example(), seconds=121.0, eval_loss=1.0, baseline_eval_loss=2.0).good


def test_the_jobs_of_a_submission_are_those_that_it_has_printed() -> None:
    said = "1\trate-1\n2\trate-2\nrate-1: succeeded\nrate-2: failed: exit 1\n"
    assert submitted(said) == {"1": "rate-1", "2": "rate-2"}
    assert submitted("") == {}


def test_the_loss_of_a_program_is_the_mean_of_its_last_steps(tmp_path: Path) -> None:
    assert last_loss(tmp_path, 2) == {}
    file = tmp_path / "attempts/2/metrics.jsonl"
    file.parent.mkdir(parents=True)
    lines = [{"loss": 100.0}, *({"loss": 4.0} for _ in range(LAST)), {"step": 7}]
    file.write_text("\n".join(map(json.dumps, lines)))
    assert last_loss(tmp_path, 2) == {"loss": 4.0}
