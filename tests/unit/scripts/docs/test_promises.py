"""Each claim of the source documents has one row, and what is measured beside it is in a committed file."""

import json
from pathlib import Path
from typing import Any

import pytest

from jobs.contract import SWITCHES, WORKLOADS, kind_of
from scripts.docs.promises import SOURCES, claims, measured, reference, uncompared

KNOWN = claims()


def test_every_claim_has_one_row() -> None:
    ids = [claim.id for claim in KNOWN]
    assert len(ids) == len(set(ids)) == 48
    page = reference()
    assert all(page.count(f"\n| {id_} | ") == 1 for id_ in ids)


def test_a_claim_is_answered_by_a_switch_or_by_both_profiles() -> None:
    assert {claim.arm for claim in KNOWN} <= {*SWITCHES, "all", "before", None}
    assert all(claim.gpu.startswith(("yes", "no")) for claim in KNOWN)


def test_each_source_is_measured_with_its_own_workload() -> None:
    assert {workload for *_, workload in SOURCES.values()} <= {kind_of(plan) for plan in WORKLOADS}


def arm(
    name: str, low: float, rate: float, high: float, eval_s: float | None = 2.0, **effective: Any
) -> dict[str, Any]:
    rates = {"items_per_s": rate, "items_low": low, "items_high": high, "eval_s": eval_s}
    return {"name": name, **rates, "effective": {"threads": 1, "switches": {}, **effective}}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    arms = [
        arm("gogooku3-before", 90, 100, 110, 8.0),
        arm('gogooku3-after, graph_cache: "off"', 150, 180, 210, 6.0),
        arm("gogooku3-after", 190, 200, 220, 1.0),
    ]
    machine = {"cpu": "AMD", "cores": 2, "load": 0.5}
    told = {"rounds": 3, "workload": {"steps": 60}, "machine": machine, "arms": arms}
    skipped = {"compile": "needs a GPU; held equal in both profiles"}
    (tmp_path / "source-gogooku3.json").write_text(json.dumps({**told, "skipped": skipped}))
    return tmp_path


def test_a_claim_stands_beside_the_ablation_of_its_change(results: Path) -> None:
    page = reference(results)
    assert "one evaluation 6.00 to 1.00 s: 6.0 x" in page  # G25, the graph cache alone
    assert "one evaluation 8.00 to 1.00 s: 8.0 x" in page  # G29, all changes
    assert "| 100 (90-110) to 200 (190-220) items/s: 2.00 x |" in page
    assert "| no difference that could be told: the spreads overlap |" in page
    assert "| `compile` | left out: needs a GPU; held equal in both profiles | | |" in page
    assert "3 rounds of 60 steps; load of the machine before: 0.5" in page


def test_what_was_not_run_says_so(results: Path) -> None:
    assert measured("lmol", results) is None
    said = (
        "`runner bench pair_classifier --profiles lmol-before,lmol-after --ablate --rounds 3`: not run yet."
    )
    assert said in reference(results)


def switch(requested: str, applied: str | None) -> dict[str, Any]:
    return {"switches": {"placement": {"requested": requested, "applied": applied}}}


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ({"threads": 2}, {}, "the threads differ (a 1, b 2)"),
        (switch("host", "host"), switch("device", "host"), "`placement` not in force on a CPU"),
        (switch("host", "host"), switch("device", "device"), ""),
        ({}, {}, ""),
    ],
)
def test_arms_are_compared_only_where_both_ran_as_asked_with_equal_threads(
    before: dict[str, Any], after: dict[str, Any], why: str
) -> None:
    assert uncompared(arm("a", 1, 1, 1, **after), arm("b", 1, 1, 1, **before)) == why


def test_a_figure_whose_arms_cannot_be_compared_is_not_measured_and_the_headline_says_so(
    results: Path,
) -> None:
    path = results / "source-gogooku3.json"
    found = json.loads(path.read_text())
    found["arms"][0]["effective"]["threads"] = 2
    path.write_text(json.dumps(found))
    page = reference(results)
    assert "not measured: the threads differ (gogooku3-after 1, gogooku3-before 2)" in page
    assert "8.0 x" not in page
    assert (
        "**Headline: all changes together not measured (the threads differ (gogooku3-after 1,"
        " gogooku3-before 2)); of the changes by themselves: 1.0 x, none made a difference" in page
    )


def test_each_source_has_one_headline() -> None:
    assert reference().count("**Headline: all changes together ") == len(SOURCES)
