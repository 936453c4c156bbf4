from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from runner.core.job.states import Held
from runner.core.sweep import (
    Candidate,
    CandidateVerb,
    Decision,
    SweepTerms,
    compared,
    decide,
    decided_values,
    is_paused,
    paused_text,
    winner,
)

TERMS = SweepTerms("loss", rungs=(10, 30), eta=3)


def at_rung(number: int, *values: float | None, **facts: Any) -> Candidate:
    """Return a candidate that waits at the rung of its last value."""
    known = {"reached": len(values), "values": values, "paused": True, **facts}
    return Candidate(str(number), number, **known)


def said(decisions: tuple[Decision, ...]) -> dict[str, CandidateVerb]:
    return {each.job_id: each.verb for each in decisions}


def test_nothing_is_decided_before_all_have_reached_a_rung() -> None:
    there = [at_rung(number, number / 10) for number in range(1, 6)]
    assert decide(TERMS, [*there, Candidate("6", 6)]) == ()
    failed = Candidate("6", 6, outcome="failed")
    assert said(decide(TERMS, [*there, failed])) == {
        **dict.fromkeys("12", CandidateVerb.PROMOTE),
        **dict.fromkeys("345", CandidateVerb.STAY),
    }


def test_a_decision_tells_value_place_and_how_many_go_on() -> None:
    first, second, third = decide(TERMS, [at_rung(1, 0.5), at_rung(2, None), at_rung(3, 0.25)])
    assert first == Decision(CandidateVerb.PROMOTE, "3", "step 10: loss 0.25 is 1 of 3; goes on", 10)
    assert second.reason == "step 10: loss 0.5 is 2 of 3; stays paused, 1 go on"
    assert third.reason == "step 10: loss (no finite value) is 3 of 3; stays paused, 1 go on"


def test_the_order_of_arrival_and_of_equal_values_changes_nothing() -> None:
    candidates = [at_rung(number, 1.0) for number in range(1, 7)]
    assert said(decide(TERMS, candidates)) == said(decide(TERMS, candidates[::-1]))
    assert {
        job for job, verb in said(decide(TERMS, candidates)).items() if verb is CandidateVerb.PROMOTE
    } == {
        "1",
        "2",
    }


def test_a_rung_that_is_decided_is_decided_again_in_the_same_way() -> None:
    """As a daemon does that was killed between two promotions."""
    half = [at_rung(1, 0.1, paused=False), at_rung(2, 0.2), *(at_rung(n, 1.0) for n in range(3, 7))]
    assert said(decide(TERMS, half))["2"] is CandidateVerb.PROMOTE
    later = [at_rung(1, 0.1, 0.1), at_rung(2, 0.2, 0.3), *(at_rung(n, 1.0) for n in range(3, 7))]
    found = said(decide(TERMS, later))
    assert (found["1"], found["2"], found["3"]) == (
        CandidateVerb.PROMOTE,
        CandidateVerb.STAY,
        CandidateVerb.STAY,
    )


def test_the_next_best_takes_the_place_of_one_that_fails_and_of_none_that_was_cancelled() -> None:
    rest = [at_rung(2, 0.2), at_rung(3, 0.3)]
    failed = at_rung(1, 0.1, paused=False, outcome="failed")
    assert said(decide(TERMS, [failed, *rest])) == {"2": CandidateVerb.PROMOTE, "3": CandidateVerb.STAY}
    cancelled = at_rung(1, 0.1, paused=False, outcome="cancelled")
    assert said(decide(SweepTerms("loss", rungs=(10,), eta=3), [cancelled, *rest])) == {
        "2": CandidateVerb.END, "3": CandidateVerb.END
    }  # fmt: skip


@pytest.mark.parametrize("maximize", [False, True])
def test_a_sweep_ends_when_the_last_ones_have_and_names_the_best(maximize: bool) -> None:  # noqa: FBT001
    terms = SweepTerms("accuracy", maximize=maximize, rungs=(10,), eta=2)
    done = {"paused": False, "outcome": "succeeded"}
    candidates = [
        at_rung(1, 0.5, final=0.7, **done),
        at_rung(2, 0.5, final=0.9, **done),
        at_rung(3, 0.0 if maximize else 1.0),
        at_rung(4, float("nan")),
    ]
    assert [each.reason for each in decide(terms, candidates)[2:]] == [
        f"the sweep is over: candidate {2 if maximize else 1} is the best"
    ] * 2
    assert winner(terms, candidates) is candidates[maximize]
    assert winner(terms, candidates[2:]) is None


def test_the_end_of_a_sweep_leaves_alone_what_was_let_go_on_and_names_the_best_of_all() -> None:
    terms = SweepTerms("loss", rungs=(10,), eta=3)
    first = at_rung(1, 0.1, final=0.1, paused=False, outcome="succeeded")
    released, paused = at_rung(2, 0.2, paused=False), at_rung(3, 0.3)
    assert said(decide(terms, [first, released, paused])) == {"3": CandidateVerb.END}
    better = replace(released, outcome="succeeded", final=0.05)
    assert decide(terms, [first, better, paused])[-1].reason == "the sweep is over: candidate 2 is the best"


def test_a_sweep_without_success_says_so_and_one_without_rungs_lets_all_run() -> None:
    failed = [Candidate(str(n), n, outcome="failed") for n in (1, 2)]
    [end] = decide(TERMS, [*failed, at_rung(3, 1.0, 1.0, outcome=None)])[-1:]
    assert end.verb is CandidateVerb.PROMOTE
    assert decide(SweepTerms("loss"), [Candidate("1", 1), Candidate("2", 2)]) == ()
    assert decide(TERMS, [*failed]) == ()


def test_a_candidate_that_has_begun_again_is_compared_by_its_new_value() -> None:
    again = at_rung(3, 0.125, lineage=2)
    before = ["step 10: loss 0.5 is 3 of 3; stays paused, 1 go on"]
    assert decided_values("loss", before, again.lineage) == {}
    reasons = {each.job_id: each.reason for each in decide(TERMS, [at_rung(1, 0.5), at_rung(2, 0.25), again])}
    assert reasons["3"] == "lineage 2, step 10: loss 0.125 is 1 of 3; goes on"
    assert reasons["2"] == "step 10: loss 0.25 is 2 of 3; stays paused, 1 go on"
    both = [*before, reasons["3"]]
    assert [decided_values("loss", both, lineage) for lineage in (1, 2, 3)] == [{10: 0.5}, {10: 0.125}, {}]


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ({"eval_loss", "a\nb"}, ' so far; they report "a\\nb", "eval_loss"'),
        ({"loss", "eval_loss"}, ", although they report it"),
        (
            {f"part_{number:02}" for number in range(12)},
            " so far; they report "
            + ", ".join(f'"part_{number:02}"' for number in range(10))
            + " and 2 more",
        ),
    ],
)
def test_the_end_of_a_sweep_without_a_value_names_what_is_reported(names: set[str], told: str) -> None:
    [end, _] = decide(TERMS, [at_rung(1, None, reported=frozenset(names)), at_rung(2, None)])
    assert end.reason == f"the sweep is over: step 10: no candidate has a finite loss{told}"


def test_a_sweep_whose_metric_nobody_reports_ends_at_its_first_rung() -> None:
    unknown = [at_rung(number, None) for number in range(1, 4)]
    said_to = decide(TERMS, unknown)
    assert {(each.verb, each.reason) for each in said_to} == {
        (
            CandidateVerb.END,
            "the sweep is over: step 10: no candidate has a finite loss so far; they report nothing",
        )
    }
    done = Candidate("1", 1, reached=0, outcome="succeeded")
    [ended] = decide(SweepTerms("loss"), [done, Candidate("2", 2, outcome="failed")]) or [None]
    assert ended is None
    waits = at_rung(2, 0.5)
    ends = decide(SweepTerms("loss", rungs=(10,), eta=2), [replace(done, reached=1, values=(0.1,)), waits])
    assert [each.reason for each in ends][1:] == [
        "the sweep is over: no candidate has succeeded with a value"
    ]


def test_limits_end_a_sweep() -> None:
    failed = [Candidate(str(n), n, outcome="failed") for n in (1, 2)]
    left = Candidate("3", 3, device_h=2.0)
    [end] = decide(SweepTerms("loss", max_failures=2), [*failed, left])
    assert end == Decision(CandidateVerb.END, "3", "sweep.max_failures: 2 candidates have failed")
    assert decide(SweepTerms("loss", max_failures=3, budget_h=2.5), [*failed, left]) == ()
    [end] = decide(SweepTerms("loss", budget_h=2.0), [*failed, left])
    assert end.reason == "sweep.budget: 2 h are used"


def test_a_job_that_a_person_holds_does_not_wait_for_its_sweep() -> None:
    now = datetime.now(UTC)
    assert is_paused(Held(now, f"{paused_text(10)}: asked to stop"))
    assert not is_paused(Held(now, "held, as asked", asked=True))


def test_the_values_of_a_decision_are_read_from_its_reasons() -> None:
    candidates = [at_rung(1, compared(0.123456789)), at_rung(2, None), at_rung(3, compared(-1e-9))]
    reasons = {each.job_id: each.reason for each in decide(TERMS, candidates)}
    noted = {job: decided_values("loss", [reason]) for job, reason in reasons.items()}
    assert noted == {"1": {10: 0.123457}, "2": {10: None}, "3": {10: -1e-9}}
    assert decided_values("val loss (mean)", ["step 10: val loss (mean) 2 is 1 of 3; goes on"]) == {10: 2.0}
    assert (
        decided_values("loss", ["the sweep is over: candidate 1 is the best", "step 10: los 2 is 1 of"]) == {}
    )
    assert compared(None) is None
