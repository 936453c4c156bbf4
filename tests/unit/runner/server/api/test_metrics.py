"""The table of metrics: its names, its page, and its text."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from runner.server.api.metrics import METRICS, MetricSample, MetricsCollector

PAGE = (Path(__file__).parents[5] / "docs/reference/metrics.md").read_text(encoding="utf-8")
NAMES = [metric.name for metric in METRICS]


def text_of(*samples: MetricSample) -> str:
    """Return the text of some values."""

    @dataclass(slots=True)
    class Given(MetricsCollector):
        overviews: Any = None
        monitor: Any = None

        def samples(self) -> Any:
            return iter(samples)

    return cast("MetricsCollector", Given()).text().decode()


def test_every_metric_has_a_unique_name_that_follows_the_conventions_of_prometheus() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert all(re.fullmatch(r"runner_[a-z_]+", name) for name in NAMES)
    assert {m.name for m in METRICS if m.kind == "counter"} == {n for n in NAMES if n.endswith("_total")}


def test_the_page_describes_every_metric() -> None:
    rows = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| `runner_")]
    described = [(row[0].strip("`"), row[1], row[2], row[3]) for row in rows if len(row) == 4]
    labels = [", ".join(f"`{label}`" for label in metric.labels) or "-" for metric in METRICS]
    assert described == [(m.name, m.kind, own, m.meaning) for m, own in zip(METRICS, labels, strict=True)]


def test_a_metric_without_a_value_has_no_lines() -> None:
    assert text_of() == ""
    assert text_of(MetricSample("runner_alarms", 2)) == (
        "# HELP runner_alarms running jobs with a utilisation alarm\n"
        "# TYPE runner_alarms gauge\n"
        "runner_alarms 2.0\n"
    )


def test_a_counter_keeps_its_name_and_its_labels() -> None:
    assert text_of(MetricSample("runner_attempts_ended_total", 3, ("completed",))) == (
        "# HELP runner_attempts_ended_total attempts that ended since the daemon started, by cause\n"
        "# TYPE runner_attempts_ended_total counter\n"
        'runner_attempts_ended_total{cause="completed"} 3.0\n'
    )


def test_a_value_of_a_metric_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(KeyError):
        text_of(MetricSample("runner_dogs", 1))
