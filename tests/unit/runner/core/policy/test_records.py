import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from runner.core.policy.conditions import AllOf, Comparison, Operator
from runner.core.policy.decision import Situation
from runner.core.policy.digest import compute_digest
from runner.core.policy.evaluate import decide
from runner.core.policy.explain import (
    UNBOUNDED_GAIN,
    DecisionSubject,
    Record,
    explain_record,
    make_record,
    read_situation,
)
from runner.core.policy.facts import DecisionPoint, Facts
from runner.core.policy.history import History
from runner.core.policy.model import (
    Adjustment,
    Backoff,
    Ceilings,
    Policy,
    RestartRate,
    Rule,
    Setting,
    Source,
    StartPoint,
    Verb,
)
from runner.core.policy.replay import Replay, replay, unsaved_s

NOW = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
TRAIN = AllOf(
    (Comparison("oom.device", Operator.IS, operand=True), Comparison("phase", Operator.IS, "train"))
)
POLICY = Policy(
    "mine",
    backoff=Backoff(jitter=0),
    on_exit=(
        Rule("done", Verb.FINISH, Comparison("exit.class", Operator.IS, "success")),
        Rule("smaller", Verb.RESUME, TRAIN, adjust=(Adjustment(Setting.MICRO_BATCH, "halve"),), tries=4),
        Rule("back", Verb.RESUME, Comparison("nan", Operator.IS, operand=True), StartPoint(Source.STEP, 20)),
        Rule("other", Verb.RESUME, tries=3),
    ),
    on_watch=(Rule("slow", Verb.ADVISE, Comparison("data_wait", Operator.GT, 0.5)),),
)
OOM: Facts = {
    "cause": "device_out_of_memory",
    "oom.device": True,
    "phase": "train",
    "progress.advanced": False,
    "device.xid": (13,),
}


def journal(policy: Policy, *ends: Facts, job: str = "7") -> list[Record]:
    """Live through some ends under a policy, and keep what a daemon would."""
    history, kept, clock = History(), [], NOW
    for number, known in enumerate(ends, 1):
        situation = Situation(known, clock + HOUR, clock, "spec", job)
        decision = decide(policy, DecisionPoint.EXIT, history, situation)
        kept.append(
            json.loads(
                json.dumps(
                    make_record(
                        DecisionSubject(job, number, compute_digest(policy)), policy, situation, decision
                    )
                )
            )
        )
        history, clock = decision.history, clock + HOUR + decision.action.delay
    return kept


def test_a_record_is_json_and_gives_the_situation_back() -> None:
    (kept,) = journal(POLICY, OOM)
    situation = read_situation(kept)
    assert {name: situation.facts[name] for name in OOM} == OOM
    assert (situation.now, situation.started, situation.effective, situation.seed) == (
        NOW + HOUR,
        NOW,
        "spec",
        "7",
    )
    assert kept["verdict"] == {
        "do": "resume",
        "rule": "smaller",
        "reason": "resume from the newest checkpoint with micro-batch halve: device out of memory in train",
        "from": "newest",
        "with": {"micro_batch": "halve"},
        "delay_s": 5.0,
        "charged": True,
        "limit": None,
    }


def test_a_record_of_an_attempt_that_never_started() -> None:
    situation = Situation({"nan": True}, NOW)
    kept = make_record(
        DecisionSubject("7", 1, compute_digest(POLICY)),
        POLICY,
        situation,
        decide(POLICY, DecisionPoint.EXIT, History(), situation),
    )
    assert kept["started"] is None
    assert kept["verdict"]["from"] == "step 20"
    assert read_situation(kept).started is None


def test_an_explanation_has_every_rule_with_the_fact_that_decided() -> None:
    (kept,) = journal(POLICY, OOM)
    lines = list(explain_record(kept))
    assert lines[0] == (
        "7, attempt 1, on_exit: "
        "resume from the newest checkpoint with micro-batch halve: device out of memory in train"
    )
    assert lines[1].startswith("  resume by rule smaller, charged; policy mine (")
    assert lines[3:7] == [
        "  done     unknown  exit.class is unknown (wanted: success)",
        "  smaller  true     oom.device = true (wanted: true), phase = train (wanted: train): answers",
        "  back     unknown  nan is unknown (wanted: true)",
        "  other    true     always: an earlier rule has answered",
    ]
    assert lines[8:] == [
        "  charged 1 of 20 attempts; ran 1h in all",
        "  rule smaller has answered once for device_out_of_memory",
        "  ended without progress once for device_out_of_memory with spec spec",
    ]


def test_an_explanation_says_what_limited_a_verdict_and_what_was_advised() -> None:
    situation = Situation({"data_wait": 0.9, "checkpoint.present": False}, NOW)
    watched = make_record(
        DecisionSubject("7", 1, compute_digest(POLICY)),
        POLICY,
        situation,
        decide(POLICY, DecisionPoint.WATCH, History(), situation),
    )
    assert "  advice of slow: slow" in list(explain_record(watched))
    assert "  keep by no rule; policy mine" in "\n".join(explain_record(watched))
    ended = make_record(
        DecisionSubject("7", 1, compute_digest(POLICY)),
        POLICY,
        situation,
        decide(POLICY, DecisionPoint.EXIT, History(), situation),
    )
    assert "restart by rule other, limited by no_checkpoint, charged" in "\n".join(explain_record(ended))


def test_an_explanation_has_the_economics() -> None:
    situation = Situation({"econ.resume_gain": 1.25, "econ.best": "resume"}, NOW)
    kept = make_record(
        DecisionSubject("7", 1, compute_digest(POLICY)),
        POLICY,
        situation,
        decide(POLICY, DecisionPoint.CHANGE, History(), situation),
    )
    lines = list(explain_record(kept))
    assert lines[-3:] == ["  econ.best = resume", "  econ.resume_gain = 1.25", "  econ.resume_pays = true"]


def test_a_gain_that_nothing_stands_against_is_no_figure() -> None:
    pays = Rule("pays", Verb.RESTART, Comparison("econ.restart_gain", Operator.GE, 1.2))
    asked = replace(POLICY, on_change=(pays,))
    situation = Situation({"econ.restart_gain": UNBOUNDED_GAIN}, NOW)
    decision = decide(asked, DecisionPoint.CHANGE, History(), situation)
    lines = list(
        explain_record(
            make_record(DecisionSubject("7", 1, compute_digest(asked)), asked, situation, decision)
        )
    )
    assert "  econ.restart_gain = without bound" in lines
    assert any("econ.restart_gain = without bound (wanted: " in line for line in lines)
    assert not any("1e+09" in line for line in lines)


# --- Simulation


def test_a_record_is_json_whatever_was_measured() -> None:
    known: Facts = {"exit.class": "exception", "progress.rate": float("inf")}
    kept = journal(POLICY, known)[0]
    assert json.loads(json.dumps(kept, allow_nan=False))["facts"]["progress.rate"] >= UNBOUNDED_GAIN


def test_the_same_policy_decides_as_it_did() -> None:
    kept = journal(POLICY, OOM, OOM, {"exit.class": "success"})
    replayed = replay("7", POLICY, kept)
    assert [
        (turn.recorded, turn.action.verb if turn.action else None, turn.certain) for turn in replayed.steps
    ] == [
        ("resume", "resume", True),
        ("resume", "resume", True),
        ("finish", "finish", True),
    ]
    assert (replayed.attempts_made, replayed.continues, replayed.unsaved_s) == (3, False, (7200.0, 7200.0))


def test_a_policy_that_stops_earlier_makes_fewer_attempts() -> None:
    strict = Policy("strict", Ceilings(attempts=1), on_exit=POLICY.on_exit)
    replayed = replay("7", strict, journal(POLICY, OOM, OOM, OOM))
    assert [turn.action.verb if turn.action else None for turn in replayed.steps] == ["give_up", None, None]
    assert (replayed.attempts_made, replayed.unsaved_s) == (1, (3 * 3600.0, 3600.0))


def test_after_a_different_decision_the_evidence_is_of_another_life() -> None:
    unchanged = Policy("plain", on_exit=(Rule("other", Verb.RESUME),))
    replayed = replay("7", unchanged, journal(POLICY, OOM, OOM))
    assert [turn.certain for turn in replayed.steps] == [True, False]
    assert replayed.continues


@pytest.mark.parametrize(
    ("known", "verb"),
    [({"operator.request": "restart"}, Verb.RESUME), ({"killed_by": "change"}, Verb.RESUME), ({}, Verb.HOLD)],
)
def test_another_policy_counts_no_start_as_a_storm_that_a_person_asked_for(known: Facts, verb: Verb) -> None:
    storm = RestartRate(3, timedelta(days=1))
    calm = Policy("calm", Ceilings(storm=storm), on_exit=(Rule("other", Verb.RESUME, charge=False),))
    turns = replay("7", calm, journal(replace(POLICY, ceilings=Ceilings(no_progress=99)), *[known] * 5)).steps
    assert turns[2].action is not None
    assert turns[2].action.verb is verb


def test_what_is_not_an_end_is_left_out_and_order_does_not_matter() -> None:
    kept = journal(POLICY, OOM, {"exit.class": "success"})
    assert replay("7", POLICY, [{"moment": "watch"}, *reversed(kept)]) == replay("7", POLICY, kept)
    assert replay("7", POLICY, []) == Replay("7", ())
    assert not Replay("7", ()).continues


@pytest.mark.parametrize(
    ("known", "lost"),
    [
        ({"exit.class": "success"}, 0.0),
        ({"exit.class": "exception", "checkpoint.age_s": 60}, 60.0),
        ({"exit.class": "exception", "checkpoint.age_s": 99999}, 3600.0),
        ({"exit.class": "exception"}, 3600.0),
    ],
)
def test_what_no_checkpoint_keeps_is_lost(known: Facts, lost: float) -> None:
    assert unsaved_s(Situation(known, NOW + HOUR, NOW)) == lost
