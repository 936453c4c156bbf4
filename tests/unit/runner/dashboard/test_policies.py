"""The counts of the page of policies."""

from pathlib import Path
from typing import Any

from runner.dashboard.policies import MOST_JOBS, MOST_NAMED, count_decisions

TRUTH = {"+": True, "-": False, "?": None}
HOWTO = Path(__file__).parents[4] / "docs/howto/dashboard.md"


def a_record(hour: int, rule: str, truths: str, **facts: Any) -> dict[str, Any]:
    rules: list[dict[str, Any]] = [
        {"name": name, "do": "resume", "truth": TRUTH[truth], "because": [], "note": ""}
        for name, truth in zip(("first", "second"), truths, strict=True)
    ]
    return {
        "at": f"2030-01-01T{hour:02}:00:00+00:00",
        "moment": "exit",
        "policy": {"name": "ours", "digest": "a"},
        "rules": rules,
        "verdict": {"do": "hold", "rule": rule, "reason": ""},
        **facts,
    }


def test_rules_are_counted_in_their_order() -> None:
    by_job = {
        "1": [a_record(1, "second", "-+"), a_record(3, "first", "++")],
        "2": [a_record(2, "second", "?+")],
    }
    [found] = count_decisions(by_job)
    assert (found.name, found.decisions, found.jobs) == ("ours", 3, {"1", "2"})
    first, second = found.rows
    assert (first.name, first.looked_at, first.held, first.unknown, first.answered) == ("first", 3, 1, 1, 1)
    assert (second.name, second.looked_at, second.held, second.unknown, second.answered) == (
        "second",
        3,
        3,
        0,
        2,
    )
    assert (first.last, first.jobs) == ("2030-01-01T03:00:00+00:00", ["1"])
    assert (second.last, second.jobs) == ("2030-01-01T02:00:00+00:00", ["2", "1"])


def test_what_no_rule_decided_comes_last_with_what_was_done() -> None:
    [found] = count_decisions({"1": [a_record(2, "", "-?"), a_record(1, "first", "+-")]})
    *_, none = found.rows
    assert (none.name, none.do, none.looked_at, none.answered) == ("", "hold", 0, 1)
    assert len(found.rows) == 3


def test_versions_and_moments_are_kept_apart_the_newest_first() -> None:
    other = {"policy": {"name": "ours", "digest": "b"}}
    by_job = {"1": [a_record(1, "first", "++"), a_record(2, "first", "++", **other)]}
    assert [found.digest for found in count_decisions(by_job)] == ["b", "a"]
    [found] = count_decisions({"1": [a_record(1, "first", "++"), a_record(1, "first", "++", moment="alarm")]})
    assert [(rule.moment, rule.name) for rule in found.rows] == [
        ("alarm", "first"), ("alarm", "second"), ("exit", "first"), ("exit", "second"),
    ]  # fmt: skip


def test_few_jobs_are_named_and_the_page_says_how_many_are_looked_at() -> None:
    [found] = count_decisions({str(n): [a_record(1, "first", "++")] for n in range(20)})
    assert len(found.rows[0].jobs) == MOST_NAMED
    assert count_decisions({}) == []
    assert f"the last {MOST_JOBS} jobs" in HOWTO.read_text(encoding="utf-8")
