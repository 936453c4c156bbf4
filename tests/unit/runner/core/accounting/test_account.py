from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.accounting.account import GIB, WallTime, advise, wall_time
from runner.core.accounting.usage import UsageSpan


def span(
    placed_s: float, started_s: float | None, ended_s: float | None, lost_s: float | None = 0.0
) -> UsageSpan:
    return UsageSpan("1", "ada", "lab", 1, 4.0, placed_s, ended_s, started_s, lost_s)


def test_each_second_belongs_to_one_part() -> None:
    spans = [span(110, 115, 200, lost_s=20), span(250, 260, None)]
    found = wall_time(100, 300, spans, saving_s=6)
    assert found == WallTime(work_s=99.0, waiting_s=60, starting_s=15, saving_s=6, lost_s=20)
    assert found.total_s == 200
    assert found.goodput == pytest.approx(0.495)


@pytest.mark.parametrize(
    ("spans", "saving_s"),
    [
        ([], 5.0),
        ([span(100, None, 150)], 5.0),
        ([span(100, 140, 150, lost_s=500)], 5.0),
        ([span(100, 90, 150)], 500.0),
        ([span(100, 400, None)], 0.0),
    ],
)
def test_the_parts_make_the_whole_whatever_was_noted(spans: list[UsageSpan], saving_s: float) -> None:
    found = wall_time(100, 300, spans, saving_s)
    assert found.total_s == pytest.approx(200)
    assert min(found.work_s, found.waiting_s, found.starting_s, found.saving_s, found.lost_s or 0) >= 0


def test_what_is_lost_of_files_that_are_kept_is_unknown() -> None:
    found = wall_time(100, 300, [span(100, 110, 200, lost_s=None), span(200, 210, None)])
    assert (found.lost_s, found.work_s, found.total_s) == (None, 180, 200)


def test_a_job_that_was_just_submitted_has_no_goodput() -> None:
    assert wall_time(100, 100, []).goodput is None


def test_advice_names_what_would_be_enough_where_much_more_was_asked_for() -> None:
    assert advise(64 * GIB, 9.1 * GIB, 16, 3.2) == [
        "asked 64 GiB, never above 9.1 GiB: resources.memory: 12GiB",
        "asked 16 CPUs, never above 3.2: resources.cpus: 5",
    ]
    assert advise(16 * GIB, 9.1 * GIB, 8, 3.2) == []
    assert advise(64 * GIB, None, 16, None) == []
    assert advise(2 * GIB, 0.01 * GIB, 1, 0.1) == [
        "asked 2 GiB, never above 10.2 MiB: resources.memory: 512MiB"
    ]


MOMENTS = st.floats(0.0, 1000.0)


@st.composite
def histories(draw: st.DrawFn) -> list[UsageSpan]:
    """Return attempts one after another; a clock that was set may let one begin before another ended."""
    spans: list[UsageSpan] = []
    at_s = draw(MOMENTS)
    for _ in range(draw(st.integers(0, 6))):
        placed_s = max(at_s + draw(st.floats(-50.0, 100.0)), 0.0)
        late_s = draw(st.none() | st.floats(-10.0, 200.0))
        started_s = None if late_s is None else placed_s + late_s
        at_s = placed_s + draw(st.floats(0.0, 300.0))
        spans.append(span(placed_s, started_s, at_s, draw(st.floats(0.0, 400.0))))
    runs = draw(st.booleans())
    if spans and runs:
        spans[-1] = replace(spans[-1], ended_s=None)
    return spans


@given(histories(), MOMENTS, MOMENTS, st.floats(0.0, 500.0))
def test_the_parts_make_the_whole_of_any_history(
    spans: list[UsageSpan], submitted_s: float, lasted_s: float, saving_s: float
) -> None:
    found = wall_time(submitted_s, submitted_s + lasted_s, spans, saving_s)
    parts = (found.work_s, found.waiting_s, found.starting_s, found.saving_s, found.lost_s or 0.0)
    assert sum(parts) == pytest.approx(lasted_s, rel=0.01, abs=1e-6)
    assert min(parts) >= -1e-6
    assert found.goodput is None or -1e-9 <= found.goodput <= 1 + 1e-9
