"""Our text, read by the parser of the library by the format's own authors."""

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from runner.server.api.exposition import METRICS, Metric, Sample, text

PAGE = (Path(__file__).parents[5] / "docs/metrics.md").read_text(encoding="utf-8")
NAMES = [metric.name for metric in METRICS]


def test_every_metric_has_a_name_of_its_own_that_the_format_allows() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert all(re.fullmatch(r"runner_[a-z_]+", name) for name in NAMES)
    assert {m.name for m in METRICS if m.kind == "counter"} == {n for n in NAMES if n.endswith("_total")}


def test_the_page_tells_every_metric_as_it_is() -> None:
    rows = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| `runner_")]
    told = [(row[0].strip("`"), row[1], row[2], row[3]) for row in rows if len(row) == 4]
    labels = [", ".join(f"`{label}`" for label in metric.labels) or "-" for metric in METRICS]
    assert told == [(m.name, m.kind, own, m.meaning) for m, own in zip(METRICS, labels, strict=True)]


def test_what_is_not_known_has_no_head_either() -> None:
    assert text([]) == ""
    assert text([Sample("runner_alarms", 2)]) == (
        "# HELP runner_alarms running jobs with a utilisation alarm\n"
        "# TYPE runner_alarms gauge\n"
        "runner_alarms 2\n"
    )


def test_a_sample_of_a_metric_that_does_not_exist_is_a_mistake() -> None:
    with pytest.raises(KeyError):
        text([Sample("runner_dogs", 1)])
    with pytest.raises(ValueError, match="zip"):
        text([Sample("runner_alarms", 1, ("too many",))])


METRIC = Metric("m", "gauge", 'a "help" with \\ and\nlines', ("first", "second"))


@given(
    values=st.lists(st.tuples(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8"))),
                    unique=True, max_size=5),
    number=st.floats(allow_nan=False) | st.integers(-(2**40), 2**40),
)  # fmt: skip
def test_any_value_of_a_label_and_any_number_is_read_back_as_it_was(
    values: list[tuple[str, str]], number: float
) -> None:
    written = text([Sample("m", number, labels) for labels in values], [METRIC])
    families = list(text_string_to_metric_families(written))
    read = [(each.labels["first"], each.labels["second"]) for family in families for each in family.samples]
    assert read == values
    assert all(each.value == number for family in families for each in family.samples)
    assert math.isfinite(number) or "inf" in written or not values
