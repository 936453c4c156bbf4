"""Single rules, ceilings and clamps; what the shipped policies come to is in their own cases."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import TypeAdapter

from runner.core.policy.conditions import ALWAYS, Comparison, Operator
from runner.core.policy.decision import Action, Advice, Guard, PolicyDecision, Situation
from runner.core.policy.evaluate import decide, failure_fingerprint
from runner.core.policy.facts import DecisionPoint, Facts, FactValue
from runner.core.policy.history import KEPT_STARTS, History, RuleTally
from runner.core.policy.model import (
    Adjustment,
    Backoff,
    Ceilings,
    Mode,
    OnExhausted,
    Policy,
    RestartRate,
    Rule,
    Setting,
    Source,
    StartPoint,
    Verb,
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
HALVE = (Adjustment(Setting.MICRO_BATCH, "halve"),)
OTHER = (Adjustment(Setting.DEVICE, "other"),)
SAVED: Facts = {"checkpoint.present": True, "checkpoint.valid": True, "checkpoint.step": 40}


def is_(fact: str, value: FactValue) -> Comparison:
    return Comparison(fact, Operator.IS, value)


def policy(*rules: Rule, ceilings: Ceilings | None = None) -> Policy:
    return Policy("mine", ceilings or Ceilings(), Backoff(jitter=0), on_exit=rules)


def after(
    known: Facts, *rules: Rule, history: History | None = None, lasted: timedelta = HOUR
) -> PolicyDecision:
    situation = Situation(known, NOW, NOW - lasted, "spec", "job")
    return decide(policy(*rules), DecisionPoint.EXIT, history or History(), situation)


RESUME = Rule("again", Verb.RESUME)


# --- At the end


def test_the_first_true_rule_answers_and_all_are_weighed() -> None:
    rules = (Rule("a", Verb.HOLD, is_("nan", value=True)), RESUME, Rule("c", Verb.GIVE_UP))
    decision = after({"nan": False}, *rules)
    assert (decision.action.rule, decision.action.verb) == ("again", Verb.RESUME)
    assert [(each.rule, each.truth, each.note) for each in decision.rule_results] == [
        ("a", False, ""),
        ("again", True, "answers"),
        ("c", True, "an earlier rule has answered"),
    ]


def test_where_no_rule_answers_a_person_does() -> None:
    decision = after({"cause": "killed"}, Rule("a", Verb.RESUME, is_("nan", value=True)))
    assert decision.action == Action(Verb.HOLD, "", "no rule answers: killed")


def test_a_rule_that_only_speaks_does_not_end_the_search() -> None:
    decision = after({}, Rule("what-if", Verb.GIVE_UP, mode=Mode.LOG, why="too often"), RESUME)
    assert decision.action.rule == "again"
    assert decision.advice == (Advice("what-if", "too often"),)


def test_a_spent_rule_gives_up_holds_or_hands_over_as_it_says() -> None:
    used = History(tried=(RuleTally("killed", "spec", 1, "again"),))
    verbs = {
        spent: after(
            {"cause": "killed"}, replace(RESUME, tries=1, spent=spent), Rule("b", Verb.RESUME), history=used
        ).action
        for spent in OnExhausted
    }
    assert [(spent, verdict.verb, verdict.rule) for spent, verdict in verbs.items()] == [
        (OnExhausted.GIVE_UP, Verb.GIVE_UP, "again"),
        (OnExhausted.HOLD, Verb.HOLD, "again"),
        (OnExhausted.NEXT, Verb.RESUME, "b"),
    ]


def test_tries_are_counted_by_root_and_effective_spec() -> None:
    rule = replace(RESUME, tries=1)
    history = after({"root": "a"}, rule).history
    assert history.tried == (RuleTally("a", "spec", 1, "again"),)
    assert after({"root": "a"}, rule, history=history).action.verb is Verb.GIVE_UP
    assert after({"root": "b"}, rule, history=history).action.verb is Verb.RESUME
    other_spec = Situation({"root": "a"}, NOW, NOW, "other spec")
    assert decide(policy(rule), DecisionPoint.EXIT, history, other_spec).action.verb is Verb.RESUME


def test_a_rule_that_changes_the_spec_cannot_run_out_of_the_count() -> None:
    rule = replace(RESUME, tries=1, adjust=HALVE)
    history = after({"root": "a"}, rule).history
    assert history.tried == (RuleTally("a", "", 1, "again"),)
    halved = Situation({"root": "a"}, NOW, NOW, "halved")
    assert decide(policy(rule), DecisionPoint.EXIT, history, halved).action.verb is Verb.GIVE_UP


def test_progress_gives_the_tries_back() -> None:
    rule = replace(RESUME, tries=1)
    history = after({"root": "a"}, rule).history
    decision = after({"root": "a", "progress.advanced": True}, rule, history=history)
    assert decision.action.verb is Verb.RESUME
    assert decision.history.tried == (RuleTally("a", "spec", 1, "again"),)


def test_an_attempt_that_a_rule_has_stopped_ended_by_that_rule() -> None:
    stopped = {"killed_by": "watch/idle", "phase": "train"}
    assert after({**stopped, "cause": "killed"}, RESUME).action.reason.endswith(
        ": stopped by rule idle in train"
    )
    other = after({**stopped, "cause": "host_oom"}, RESUME)
    assert other.action.reason.endswith(": host oom in train")


def test_a_restart_from_scratch_does_not_give_its_own_tries_back() -> None:
    """Each new lineage saves what the one before had saved, so it would be repeated for ever."""
    rule = replace(RESUME, name="anew", do=Verb.RESTART, tries=1)
    saved: Facts = {"root": "a", "progress.advanced": True}
    first = after(saved, rule)
    assert first.action.verb is Verb.RESTART
    assert after(saved, rule, history=first.history).action.verb is Verb.GIVE_UP
    assert after({**saved, "root": "b"}, rule, history=first.history).action.verb is Verb.RESTART
    assert first.history.reset_tallies().tried == ()  # by a person


@pytest.mark.parametrize(
    ("cause", "knob", "position", "said"),
    [
        ("host_oom", Setting.WORKERS, {"effective.workers": 0}, "ran out of memory"),
        ("non_finite", Setting.PRECISION, {"effective.precision": "fp32"}, "non finite"),
    ],
)
def test_a_plain_program_is_told_of_no_knob_that_it_never_had(
    cause: str, knob: Setting, position: Facts, said: str
) -> None:
    rule = replace(RESUME, adjust=(Adjustment(knob, "halve"),))
    decision = after({"cause": cause, "turnable": False, **position}, rule)
    assert (decision.action.verb, decision.action.reason) == (Verb.GIVE_UP, said)
    assert decision.rule_results[0].note == "a plain program has no knob for it"
    trained = after({"cause": cause, **position}, rule)
    assert trained.action.reason.endswith(f", and {knob} cannot go any further")


OUT_OF_DEVICE_MEMORY = (
    "ran out of device memory; make its batches smaller, or ask for a larger device (devices.memory)"
)


def test_half_of_what_a_plain_program_never_told_is_no_remedy() -> None:
    rule = replace(RESUME, adjust=HALVE)
    decision = after({"oom.device": True, "cause": "exception", "turnable": False}, rule)
    assert (decision.action.verb, decision.action.reason) == (Verb.GIVE_UP, OUT_OF_DEVICE_MEMORY)


@pytest.mark.parametrize(
    "known",
    [
        {"oom.device": True},
        {"oom.device": True, "turnable": True},
        {"oom.device": True, "turnable": False, "effective.micro_batch": 8},
    ],
    ids=["nobody-knows", "a-training", "its-job-file-says-so"],
)
def test_whatever_may_have_a_micro_batch_gets_half_of_it(known: Facts) -> None:
    assert after(known, replace(RESUME, adjust=HALVE)).action.adjust == HALVE


def test_a_setting_that_is_written_down_as_a_word_can_be_given_to_a_plain_program() -> None:
    safer = (Adjustment(Setting.PRECISION, "safer"),)
    assert after({"nan": True, "turnable": False}, replace(RESUME, adjust=safer)).action.adjust == safer


def test_a_plain_program_may_run_out_of_devices_all_the_same() -> None:
    rule = replace(RESUME, adjust=OTHER)
    known: Facts = {"cause": "device_out_of_memory", "device.others": 0, "turnable": False}
    said = after(known, rule).action.reason
    assert said == "device out of memory, and device cannot go any further"


def test_of_several_remedies_those_that_go_further_are_used() -> None:
    rule = replace(RESUME, adjust=(*HALVE, Adjustment(Setting.WORKERS, "halve")))
    decision = after({"effective.micro_batch": 1, "effective.workers": 3}, rule)
    assert decision.action.adjust == (Adjustment(Setting.WORKERS, "halve"),)
    assert "workers 3 → 1" in decision.action.reason
    spent = after({"effective.micro_batch": 1, "effective.workers": 0}, rule)
    assert (
        spent.action.reason
        == "ended, and nobody knows why, and micro-batch and workers cannot go any further"
    )


@pytest.mark.parametrize(
    ("adjustment", "known", "said"),
    [
        (Adjustment(Setting.MICRO_BATCH, "halve"), {}, "micro-batch halve"),
        (Adjustment(Setting.PRECISION, "safer"), {"effective.precision": "bf16"}, "precision bf16 → tf32"),
        (Adjustment(Setting.COMPILE, "off"), {"effective.compile": True}, "without compilation"),
        (Adjustment(Setting.DEVICE, "other"), {"device.others": 2}, "another device"),
        (Adjustment(Setting.PROFILE, "plain"), {"effective.profile": "fast"}, "profile fast → plain"),
    ],
)
def test_a_remedy_reads_as_what_it_changes(adjustment: Adjustment, known: Facts, said: str) -> None:
    assert f"with {said}: " in after(known, replace(RESUME, adjust=(adjustment,))).action.reason


@pytest.mark.parametrize(
    ("adjustment", "known"),
    [
        (Adjustment(Setting.PRECISION, "safer"), {"effective.precision": "fp32"}),
        (Adjustment(Setting.COMPILE, "off"), {"effective.compile": False}),
        (Adjustment(Setting.DEVICE, "other"), {"device.others": 0}),
        (Adjustment(Setting.PROFILE, "plain"), {"effective.profile": "plain"}),
    ],
)
def test_a_remedy_that_changes_nothing_is_spent(adjustment: Adjustment, known: Facts) -> None:
    decision = after(known, replace(RESUME, adjust=(adjustment,)))
    assert decision.action.verb is Verb.GIVE_UP
    assert "cannot go any further" in decision.action.reason


@pytest.mark.parametrize(
    ("start", "known", "said"),
    [
        (StartPoint(), {}, "from the newest checkpoint"),
        (StartPoint(), SAVED, "from step 40"),
        (StartPoint(Source.PREVIOUS), {}, "from the checkpoint before the newest"),
        (StartPoint(Source.PREVIOUS), SAVED, "from the checkpoint before step 40"),
        (StartPoint(Source.BEFORE_NAN), SAVED, "from before the loss was not finite"),
        (StartPoint(Source.STEP, 20), SAVED, "from step 20"),
    ],
)
def test_a_verdict_says_where_it_begins(start: StartPoint, known: Facts, said: str) -> None:
    verdict = after(known, replace(RESUME, start=start)).action
    assert verdict.start == start
    assert verdict.reason.startswith(f"resume {said}: ")


def test_the_words_of_the_author_are_part_of_the_reason() -> None:
    verdict = after({"cause": "killed", "phase": "eval"}, replace(RESUME, why="it happens")).action
    assert verdict.reason == "resume from the newest checkpoint: killed in eval (it happens)"


def test_a_program_without_a_known_checkpoint_is_not_said_to_begin_at_step_0() -> None:
    """Its home is kept, so it may resume from a checkpoint of its own."""
    unknown: Facts = {"cause": "exception", "checkpoint.present": False, "turnable": False}
    left = "restart in the files that it has left; the runner knows of no checkpoint: exception"
    assert after(unknown, RESUME).action.reason == left
    facts: Facts = {**unknown, "progress.advanced": False}
    verdict = after(facts, RESUME).action
    assert (verdict.verb, verdict.limit) == (Verb.RESTART, Guard.NO_CHECKPOINT)
    assert verdict.reason == "restart with the same HOME; the runner knows of no checkpoint: exception"
    room: Facts = {"effective.memory": 2 * 1024**3, "host.memory": 64 * 1024**3}
    more = replace(RESUME, adjust=(Adjustment(Setting.MEMORY, "1.5x"),))
    changed = "restart with the same HOME, memory 2GiB → 3GiB; the runner knows of no checkpoint: exception"
    assert after({**facts, **room}, more).action.reason == changed
    afresh = after(facts, Rule("anew", Verb.RESTART)).action
    assert afresh.reason == "restart in a new lineage with an empty HOME: exception"


def test_a_restart_begins_at_step_0() -> None:
    verdict = after(SAVED, Rule("anew", Verb.RESTART)).action
    assert (verdict.verb, verdict.reason) == (
        Verb.RESTART,
        "restart from step 0: ended, and nobody knows why",
    )


# --- Clamps at the end


def test_an_end_that_is_no_success_is_not_finished() -> None:
    verdict = after({"exit.class": "no_result"}, Rule("done", Verb.FINISH)).action
    assert (verdict.verb, verdict.limit) == (Verb.HOLD, Guard.NOT_DONE)


def test_a_success_is() -> None:
    verdict = after({"exit.class": "success", "cause": "completed"}, Rule("done", Verb.FINISH)).action
    assert verdict == Action(Verb.FINISH, "done", "finish: completed")


@pytest.mark.parametrize(
    ("known", "start", "verb", "limit"),
    [
        ({}, StartPoint(), Verb.RESUME, None),
        (SAVED, StartPoint(), Verb.RESUME, None),
        ({"checkpoint.present": False}, StartPoint(), Verb.RESTART, Guard.NO_CHECKPOINT),
        (
            {"checkpoint.present": True, "checkpoint.valid": False},
            StartPoint(),
            Verb.HOLD,
            Guard.UNUSABLE_CHECKPOINTS,
        ),
        (
            {"checkpoint.valid": True, "checkpoint.compatible": False},
            StartPoint(),
            Verb.HOLD,
            Guard.UNUSABLE_CHECKPOINTS,
        ),
        ({"checkpoint.count": 1}, StartPoint(Source.PREVIOUS), Verb.HOLD, Guard.NO_PREVIOUS),
        ({"checkpoint.count": 2}, StartPoint(Source.PREVIOUS), Verb.RESUME, None),
        ({"checkpoint.count": 1}, StartPoint(), Verb.RESUME, None),
    ],
)
def test_a_resume_needs_a_checkpoint_that_can_be_used(
    known: Facts, start: StartPoint, verb: Verb, limit: Guard | None
) -> None:
    verdict = after(known, replace(RESUME, start=start)).action
    assert (verdict.verb, verdict.limit) == (verb, limit)


def test_checkpoints_that_are_gone_are_no_reason_to_begin_anew() -> None:
    seen = after(SAVED, RESUME).history
    verdict = after({"checkpoint.present": False}, RESUME, history=seen).action
    assert (verdict.verb, verdict.limit) == (Verb.HOLD, Guard.LOST_CHECKPOINTS)


@pytest.mark.parametrize(
    ("known", "charged"),
    [
        ({"exit.code": 75}, True),
        ({"exit.code": 75, "progress.advanced": True}, False),
        ({"exit.code": 75, "progress.advanced": False}, True),
    ],
)
def test_what_a_container_says_makes_nothing_free(known: Facts, charged: bool) -> None:  # noqa: FBT001
    verdict = after(known, Rule("free", Verb.RESUME, is_("exit.code", 75), charge=False)).action
    assert (verdict.charged, verdict.limit) == (charged, Guard.NOT_FREE if charged else None)


def test_what_the_runner_knows_does() -> None:
    decision = after(
        {"preempted": True}, Rule("free", Verb.RESUME, is_("preempted", value=True), charge=False)
    )
    assert (decision.action.charged, decision.history.charged, decision.history.attempts) == (False, 0, 1)


@pytest.mark.parametrize(
    ("request_", "verb"),
    [("cancel", Verb.GIVE_UP), ("hold", Verb.HOLD), ("restart", Verb.RESUME), ("none", Verb.RESUME)],
)
def test_a_person_comes_before_every_rule(request_: str, verb: Verb) -> None:
    assert after({"operator.request": request_}, RESUME).action.verb is verb


def test_where_a_person_came_first_no_rule_is_said_to_have_answered() -> None:
    asked = after({"operator.request": "hold"}, replace(RESUME, name="first"), RESUME)
    assert [each.note for each in asked.rule_results] == [
        "would answer; what was asked for comes first",
        "an earlier rule has answered",
    ]


def test_work_that_is_done_stays_done() -> None:
    known = {"operator.request": "cancel", "exit.class": "success"}
    assert after(known, Rule("done", Verb.FINISH)).action.verb is Verb.FINISH


# --- Ceilings


def test_the_attempts_are_those_that_were_charged() -> None:
    ceilings = Ceilings(attempts=3)
    last = Situation({"cause": "killed"}, NOW, NOW - HOUR)
    verdicts = [
        decide(policy(RESUME, ceilings=ceilings), DecisionPoint.EXIT, History(charged=charged), last).action
        for charged in (1, 2)
    ]
    assert [verdict.verb for verdict in verdicts] == [Verb.RESUME, Verb.GIVE_UP]
    assert verdicts[1].reason == "all 3 attempts are used; the last: killed"
    assert verdicts[1].limit is Guard.ATTEMPTS
    only = policy(RESUME, ceilings=Ceilings(attempts=1))
    ruling = decide(only, DecisionPoint.EXIT, History(), last)
    assert ruling.action.reason == "its one attempt is used; the last: killed"


def test_running_time_is_counted_over_all_attempts() -> None:
    ceilings = Ceilings(wall=timedelta(hours=5))
    last = Situation({}, NOW, NOW - HOUR)
    verdicts = [
        decide(policy(RESUME, ceilings=ceilings), DecisionPoint.EXIT, History(ran=ran * HOUR), last).action
        for ran in (3, 4)
    ]
    assert [(verdict.verb, verdict.limit) for verdict in verdicts] == [
        (Verb.RESUME, None),
        (Verb.GIVE_UP, Guard.WALL),
    ]
    assert "5h of running time are used, of 5h" in verdicts[1].reason


@pytest.mark.parametrize(
    ("known", "stuck"), [({"progress.advanced": False}, 1), ({"progress.advanced": True}, 0), ({}, 0)]
)
def test_only_what_is_known_to_have_made_no_progress_is_stuck(known: Facts, stuck: int) -> None:
    history = after({"root": "a", **known}, RESUME).history
    assert history.times_stuck("a", "spec") == stuck


def test_without_progress_the_same_is_not_tried_for_ever() -> None:
    history, verdicts = History(), []
    for _ in range(3):
        decision = after({"root": "a", "progress.advanced": False}, RESUME, history=history)
        history = decision.history
        verdicts.append(decision.action)
    assert [verdict.verb for verdict in verdicts] == [Verb.RESUME, Verb.RESUME, Verb.GIVE_UP]
    assert verdicts[2].limit is Guard.NO_PROGRESS


def test_what_has_changed_is_another_experiment_but_another_device_is_not() -> None:
    stuck = History(stuck=(RuleTally("a", "spec", 2),))
    remedied = [
        after({"root": "a", "progress.advanced": False}, replace(RESUME, adjust=adjust), history=stuck)
        for adjust in (HALVE, OTHER)
    ]
    assert [each.action.verb for each in remedied] == [Verb.RESUME, Verb.GIVE_UP]


def test_a_storm_is_held_whether_charged_or_not() -> None:
    ceilings = Ceilings(storm=RestartRate(3, timedelta(minutes=10)))
    short = Situation({}, NOW, NOW - timedelta(seconds=5))
    starts = (NOW - timedelta(minutes=2), NOW - timedelta(minutes=1))
    verdict = decide(
        policy(RESUME, ceilings=ceilings), DecisionPoint.EXIT, History(starts=starts), short
    ).action
    assert (verdict.verb, verdict.limit) == (Verb.HOLD, Guard.STORM)
    assert "3 attempts started within 10m" in verdict.reason
    long_ago = History(starts=(NOW - HOUR, NOW - timedelta(minutes=1)))
    assert (
        decide(policy(RESUME, ceilings=ceilings), DecisionPoint.EXIT, long_ago, short).action.verb
        is Verb.RESUME
    )


def test_starts_that_a_person_asked_for_are_part_of_no_storm() -> None:
    ceilings, history = Ceilings(storm=RestartRate(2, timedelta(minutes=10))), History()
    short = Situation({}, NOW, NOW - timedelta(seconds=5))
    for _ in range(5):
        history = history.request_next().add_attempt(NOW, timedelta(seconds=5))
    assert (history.attempts, history.starts, history.wanted) == (5, (), False)
    first = decide(policy(RESUME, ceilings=ceilings), DecisionPoint.EXIT, history, short)
    assert first.action.verb is Verb.RESUME
    second = decide(policy(RESUME, ceilings=ceilings), DecisionPoint.EXIT, first.history, short)
    assert second.action.limit is Guard.STORM  # these it started itself


def test_a_ceiling_does_not_stand_in_the_way_of_a_success() -> None:
    full = History(charged=100, ran=timedelta(days=999))
    assert (
        after({"exit.class": "success"}, Rule("done", Verb.FINISH), history=full).action.verb is Verb.FINISH
    )


def test_an_attempt_that_never_started_has_no_uptime() -> None:
    decision = decide(
        policy(RESUME), DecisionPoint.EXIT, History(), Situation({"exit.class": "no_start"}, NOW)
    )
    assert "attempt.uptime_s" not in decision.facts
    assert (decision.history.ran, decision.history.starts) == (timedelta(), (NOW,))


def test_a_clock_that_was_set_back_gives_nobody_negative_time() -> None:
    assert Situation({}, NOW, NOW + HOUR).uptime == timedelta()


# --- Facts that follow from the history


def test_the_history_is_told_as_facts() -> None:
    history = History(4, 3, ran=2 * HOUR, stuck=(RuleTally("killed", "spec", 2),))
    decision = after({"cause": "killed"}, RESUME, history=history)
    assert {name: value for name, value in decision.facts.items() if name.startswith("attempt.")} == {
        "attempt.n": 5,
        "attempt.charged": 3,
        "attempt.same_root": 2,
        "attempt.uptime_s": 3600.0,
        "attempt.wall_s": 3 * 3600.0,
    }


@pytest.mark.parametrize(
    ("known", "root"),
    [
        ({"root": "r", "cause": "c"}, "r"),
        ({"cause": "killed"}, "killed"),
        ({"exit.class": "signal"}, "signal"),
        ({}, "unknown"),
    ],
)
def test_the_root_is_the_best_that_is_known(known: Facts, root: str) -> None:
    assert failure_fingerprint(known) == root


# --- Backoff


def test_the_wait_doubles_with_each_setback_up_to_the_longest() -> None:
    backoff = Backoff(jitter=0)
    waits = [backoff.wait(n, "").total_seconds() for n in (0, 1, 2, 3, 4, 7, 8, 10**6)]
    assert waits == [5, 5, 10, 20, 40, 300, 300, 300]


def test_the_jitter_spreads_jobs_and_is_the_same_every_time() -> None:
    backoff = Backoff(first=timedelta(seconds=100), jitter=0.2)
    waits = {backoff.wait(1, f"job-{n}").total_seconds() for n in range(200)}
    assert all(80 <= wait <= 120 for wait in waits)
    assert max(waits) - min(waits) > 35
    assert backoff.wait(1, "job-1") == backoff.wait(1, "job-1")


def test_the_longest_wait_is_the_longest_with_jitter_too() -> None:
    assert all(Backoff(jitter=1).wait(20, str(n)) <= timedelta(minutes=5) for n in range(50))


def test_progress_makes_the_wait_short_again() -> None:
    stuck = History(setbacks=5)
    assert after({}, RESUME, history=stuck).action.delay == timedelta(seconds=160)
    assert after({"progress.advanced": True}, RESUME, history=stuck).action.delay == timedelta(seconds=5)


# --- While it runs


def watch(known: Facts, *rules: Rule, ceilings: Ceilings | None = None) -> PolicyDecision:
    situation = Situation(known, NOW, NOW - HOUR)
    return decide(
        Policy("w", ceilings or Ceilings(), on_watch=rules), DecisionPoint.WATCH, History(), situation
    )


def test_a_rule_stops_when_it_is_true_and_only_then() -> None:
    rule = Rule("stalled", Verb.STOP, is_("heartbeat.age_over_limit", value=True))
    verbs = [watch(known, rule).action.verb for known in ({"heartbeat.age_over_limit": True}, {})]
    assert verbs == [Verb.STOP, Verb.KEEP]


def test_a_stop_says_in_which_phase() -> None:
    rule = Rule("too-long", Verb.STOP, is_("phase", "train"))
    assert watch({"phase": "train"}, rule).action.reason == "stop: too long, in train"


def test_a_rule_without_a_fact_stops_nothing() -> None:
    decision = watch({}, Rule("always", Verb.STOP, ALWAYS))
    assert decision.action.verb is Verb.KEEP
    assert decision.rule_results[0].note == "no fact speaks for it: a running attempt is not disturbed"


def test_advice_is_given_beside_the_verdict() -> None:
    rules = (
        Rule("a-word", Verb.ADVISE, is_("phase", "train")),
        Rule("stop-it", Verb.STOP, is_("phase", "train")),
    )
    decision = watch({"phase": "train"}, *rules)
    assert (decision.action.verb, decision.advice) == (Verb.STOP, (Advice("a-word", "a word, in train"),))


def test_an_attempt_is_stopped_when_the_running_time_is_used() -> None:
    verdict = watch({}, ceilings=Ceilings(wall=HOUR)).action
    assert (verdict.verb, verdict.limit, verdict.reason) == (
        Verb.STOP,
        Guard.WALL,
        "the running time of 1h is used",
    )


# --- A change


def change(known: Facts, verb: Verb = Verb.RESUME, history: History | None = None) -> PolicyDecision:
    rule = Rule("change", verb, is_("econ.best", "resume"))
    return decide(
        Policy("c", on_change=(rule,)),
        DecisionPoint.CHANGE,
        history or History(),
        Situation({"econ.best": "resume", **known}, NOW),
    )


@pytest.mark.parametrize(
    ("known", "verb", "limit"),
    [
        ({"diff.class": "B", "checkpoint.valid": True}, Verb.RESUME, None),
        ({"diff.class": "B", "checkpoint.on_demand": True}, Verb.RESUME, None),
        ({"diff.class": "B"}, Verb.KEEP, Guard.NO_CHECKPOINT),
        ({"checkpoint.valid": True}, Verb.KEEP, Guard.UNUSABLE_CHECKPOINTS),
        ({"diff.class": "E", "checkpoint.valid": True}, Verb.KEEP, Guard.UNUSABLE_CHECKPOINTS),
        ({"diff.class": "B", "checkpoint.compatible": False}, Verb.KEEP, Guard.UNUSABLE_CHECKPOINTS),
        ({"diff.class": "C", "checkpoint.valid": True}, Verb.KEEP, Guard.NEEDS_APPROVAL),
        ({"diff.class": "C", "checkpoint.valid": True, "diff.allowed": True}, Verb.RESUME, None),
        ({"diff.class": "D", "checkpoint.valid": True}, Verb.KEEP, Guard.NEEDS_APPROVAL),
        ({"diff.class": "D", "checkpoint.valid": True, "operator.approved": True}, Verb.RESUME, None),
    ],
)
def test_a_running_attempt_is_resumed_with_a_change_only_where_that_loses_nothing(
    known: Facts, verb: Verb, limit: Guard | None
) -> None:
    verdict = change(known).action
    assert (verdict.verb, verdict.limit) == (verb, limit)


def test_a_restart_for_a_change_says_what_spoke_for_it() -> None:
    verdict = change({}, Verb.RESTART).action
    assert (verdict.verb, verdict.reason) == (Verb.RESTART, "restart from step 0: econ.best resume")
    assert not verdict.charged


def test_a_change_is_kept_away_when_no_rule_speaks_for_it() -> None:
    assert decide(Policy("c"), DecisionPoint.CHANGE, History(), Situation({}, NOW)).action.verb is Verb.KEEP
    rule = Rule("keep", Verb.KEEP)
    kept = decide(Policy("c", on_change=(rule,)), DecisionPoint.CHANGE, History(), Situation({}, NOW)).action
    assert kept.reason == "keep: nothing speaks for a change"


def test_changes_that_nobody_approved_are_counted() -> None:
    known: Facts = {"diff.class": "B", "checkpoint.valid": True}
    history = change(known).history
    assert history.swaps == 1
    tired = change(known, history=replace(history, swaps=2))
    assert (tired.action.verb, tired.action.limit, tired.history.swaps) == (Verb.KEEP, Guard.MAX_SWAPS, 2)
    approved = change({**known, "operator.approved": True}, history=replace(history, swaps=2))
    assert (approved.action.verb, approved.history.swaps) == (Verb.RESUME, 2)


@pytest.mark.parametrize(("gain", "pays"), [(1.15, True), (1.149, False), (2, True)])
def test_a_gain_pays_from_the_hurdle_on(gain: float, pays: bool) -> None:  # noqa: FBT001
    facts = change({"econ.resume_gain": gain, "econ.restart_gain": gain}).facts
    assert facts["econ.resume_pays"] is pays
    assert facts["econ.restart_pays"] is pays


@pytest.mark.parametrize(
    ("facts", "pays"),
    [
        ({"econ.resume_saves_s": 12 * 3600.0}, True),
        ({"econ.resume_saves_s": 13.0}, False),
        ({"econ.keep_in_time": False, "econ.resume_in_time": True}, True),
        ({"econ.keep_in_time": False, "econ.resume_in_time": False}, False),
        ({"econ.keep_in_time": True, "econ.resume_in_time": False, "econ.resume_gain": 2.0}, False),
        ({"econ.keep_in_time": True, "econ.resume_in_time": True, "econ.resume_gain": 2.0}, True),
    ],
)
def test_a_saving_pays_by_its_length_and_what_alone_is_in_time_in_any_case(
    facts: dict[str, FactValue],
    pays: bool,  # noqa: FBT001
) -> None:
    assert change({"econ.resume_gain": 1.1, **facts}).facts["econ.resume_pays"] is pays


def test_a_gain_that_nobody_knows_neither_pays_nor_fails_to() -> None:
    assert "econ.resume_pays" not in change({}).facts


# --- History and policies as values


def test_a_person_s_pardon_clears_what_was_used_up_and_keeps_what_was_seen() -> None:
    used = History(
        9,
        8,
        7,
        2,
        HOUR,
        (NOW,),
        (RuleTally("a", "b", 1, "c"),),
        (RuleTally("a", "b", 2),),
        had_checkpoint=True,
    )
    assert used.reset_counters() == History(attempts=9, starts=(NOW,), had_checkpoint=True, wanted=True)


def test_a_revision_is_another_experiment_under_the_same_ceilings() -> None:
    used = History(9, 8, 7, 2, HOUR, (NOW,), (RuleTally("a", "b", 1, "c"),), (RuleTally("a", "b", 2),))
    assert used.reset_tallies() == History(9, 8, 0, 2, HOUR, (NOW,))


def test_only_so_many_starts_are_remembered() -> None:
    history = History()
    for number in range(KEPT_STARTS + 5):
        history = history.add_attempt(NOW + number * HOUR, HOUR)
    assert len(history.starts) == KEPT_STARTS
    assert history.starts[-1] == NOW + (KEPT_STARTS + 4) * HOUR


def test_a_history_and_a_verdict_can_be_kept_as_json() -> None:
    decision = after(
        {"root": "a", "progress.advanced": False, "device.xid": (13,)}, replace(RESUME, adjust=HALVE)
    )
    histories, verdicts = TypeAdapter(History), TypeAdapter(Action)
    assert histories.validate_json(histories.dump_json(decision.history)) == decision.history
    assert verdicts.validate_json(verdicts.dump_json(decision.action)) == decision.action
