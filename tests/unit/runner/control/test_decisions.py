"""From an end to a ruling: what the loop adds to the facts, and how an answer becomes concrete."""

import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import ClassVar

import pytest

from runner.adapters.sqlite.accounting import SqliteAccounting
from runner.agent.interface import ExitFindings, PinnedPolicy
from runner.control.context import Capacity, Context
from runner.control.decisions import decide_exit, examine_exit
from runner.control.messages import Examined, LaunchRefusal
from runner.core.job.attempt import Allocation, Attempt, AttemptEnd, ExitDecision, Start, StartFrom
from runner.core.job.events import Exited, LaunchFailed
from runner.core.job.model import Job
from runner.core.job.revision_text import RevisionText
from runner.core.job.states import Preparing, Running, Starting, Stopping, StopReason
from runner.core.policy.adjustments import Overrides
from runner.core.policy.conditions import ALWAYS
from runner.core.policy.decision import Guard
from runner.core.policy.digest import compute_digest
from runner.core.policy.explain import explain_record
from runner.core.policy.facts import FactValue
from runner.core.policy.history import History
from runner.core.policy.model import Adjustment, Policy, Rule, Setting, Source, Verb
from runner.core.policy.model import StartPoint as Origin
from runner.core.ports.executor import Gone
from runner.core.ports.store import DecisionRow, JobRow
from runner.core.scheduler.snapshot import ResourceRequest
from tests.fakes.daemon.attempts import FakeAttempts, steady
from tests.fakes.daemon.clock import FakeClock
from tests.fakes.engine.executor import FakeExecutor
from tests.fakes.engine.keyed_executor import ManualLanes
from tests.fakes.gpu.vitals import FakeInventory
from tests.fakes.host.machine import ANN, GPUS, Host

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=10)
SAVED: dict[str, FactValue] = {
    "exit.class": "exception",
    "cause": "exception",
    "checkpoint.present": True,
    "checkpoint.valid": True,
    "checkpoint.step": 40,
    "checkpoint.count": 2,
    "progress.advanced": True,
}
OOM: dict[str, FactValue] = {**SAVED, "oom.device": True, "phase": "train", "effective.micro_batch": 256}


@dataclass
class Case:
    """One end of the first attempt of a job, on a machine with two devices."""

    host: Host
    policy: Policy = field(default_factory=steady)
    attempt: Attempt = field(default_factory=lambda: Attempt(1, 1))
    facts: dict[str, FactValue] = field(default_factory=lambda: dict(SAVED))
    steps: tuple[int, ...] = (40, 30)
    poisoned_at: int | None = None
    gpus: int = 1
    cause: str = "exception"
    job: Job = field(default_factory=lambda: Job("1", Preparing(NOW), attempts=1))

    @property
    def context(self) -> Context:
        attempt_service = FakeAttempts(
            "i1", {"1": ResourceRequest(1, 1024, self.gpus, "nvidia" if self.gpus else None)}
        )
        return Context(
            store=self.host.store,
            executor=FakeExecutor("i1"),
            attempt_service=attempt_service,
            clock=FakeClock(),
            capacity=Capacity(4, 1024**3, GPUS),
            work_queue=ManualLanes(),
            build_queue=ManualLanes(),
            verification_queue=ManualLanes(),
            past=SqliteAccounting(self.host.store),
            inventory=FakeInventory(devices=list(GPUS)),
            boot="boot-1",
        )

    def row(self, job: Job) -> JobRow:
        return JobRow(job, "job", ANN, NOW, 50, RevisionText.of("{}"))

    def end(self, reason: StopReason | None = None, by: str | None = None) -> tuple[Exited, DecisionRow]:
        """Return what is judged of an attempt that ran, and had perhaps been asked to stop."""
        lent = Allocation(("GPU-a",) if self.gpus else ())
        state: Running | Stopping = Running(NOW, "img", self.attempt, lent)
        if reason is not None:
            state = Stopping(LATER, "img", self.attempt, lent, reason, LATER, by=by, started=NOW)
        ended = AttemptEnd(1, self.cause, checkpoint_step=next(iter(self.steps), None))
        pinned = PinnedPolicy(self.policy, compute_digest(self.policy))
        findings = ExitFindings(ended, pinned, self.facts, self.steps, "spec", self.poisoned_at)
        news = Examined("1", 1, LATER, findings)
        found = decide_exit(self.context, self.row(replace(self.job, state=state)), news)
        assert found is not None
        event, kept = found
        assert isinstance(event, Exited)
        return event, kept

    def ruling(self, reason: StopReason | None = None, by: str | None = None) -> ExitDecision:
        return self.end(reason, by)[0].ruling

    def told(self, name: str, reason: StopReason | None = None, by: str | None = None) -> FactValue | None:
        """Return a fact as the decision was made with it."""
        value: FactValue | None = json.loads(self.end(reason, by)[1].body)["facts"].get(name)
        return value


@pytest.fixture
def case(host: Host) -> Case:
    return Case(host)


def rules(*said: Rule) -> Policy:
    return replace(steady(), on_exit=said)


def resume(source: Source, step: int | None = None, *adjust: Adjustment) -> Policy:
    return rules(Rule("r", Verb.RESUME, ALWAYS, Origin(source, step), adjust))


# --- What the loop knows


@pytest.mark.parametrize(
    ("reason", "by", "killed_by", "wish"),
    [
        (None, None, "nobody", "none"),
        (StopReason.CANCELLED, "ann", "operator", "cancel"),
        (StopReason.RESTART, "ann", "operator", "restart"),
        (StopReason.HOLD, "ann", "operator", "hold"),
        (StopReason.TIME_LIMIT, None, "deadline", "none"),
        (StopReason.CHANGE, None, "change", "none"),
        (StopReason.PREEMPTION, None, "preemption", "none"),
        (StopReason.WATCH, "stalled", "watch/stalled", "none"),
    ],
)
def test_who_ended_it_is_taken_from_the_runners_own_journal(
    case: Case, reason: StopReason | None, by: str | None, killed_by: str, wish: str
) -> None:
    assert case.told("killed_by", reason, by) == killed_by
    assert case.told("operator.request", reason, by) == wish
    assert case.told("preempted", reason, by) is (True if reason is StopReason.PREEMPTION else None)


@pytest.mark.parametrize(("boot", "known"), [("boot-1", False), ("boot-0", True), (None, None)])
def test_a_reboot_shows_in_the_boot_ids(case: Case, boot: str | None, known: FactValue | None) -> None:
    case.attempt = Attempt(1, 1, boot=boot)
    assert case.told("host.rebooted") is known


@pytest.mark.parametrize(
    ("gpus", "avoid", "others"), [(1, (), 1), (1, ("GPU-b",), 0), (2, (), 0), (0, (), 0)]
)
def test_other_devices_are_counted_only_when_they_are_enough(
    case: Case, gpus: int, avoid: tuple[str, ...], others: int
) -> None:
    case.gpus = gpus
    case.job = replace(case.job, turned=Overrides(avoid=avoid))
    assert case.told("device.others") == others


def test_the_time_limit_leaves_what_no_attempt_has_used(case: Case) -> None:
    assert case.told("deadline.slack_s") is None
    history = History(ran=timedelta(minutes=15))
    case.job = replace(case.job, time_limit=timedelta(minutes=20), history=history)
    assert case.told("deadline.slack_s") == -300


@pytest.mark.parametrize(("minutes", "killed_by"), [(10, "deadline"), (11, "nobody"), (None, "nobody")])
def test_a_limit_of_the_engine_is_the_jobs_only_when_that_is_over(
    case: Case, minutes: int | None, killed_by: str
) -> None:
    case.cause = "out_of_time"
    case.job = replace(case.job, time_limit=timedelta(minutes=minutes) if minutes else None)
    assert case.told("killed_by") == killed_by


@pytest.mark.parametrize(("minutes", "verb"), [(20, Verb.GIVE_UP), (30, Verb.RESUME)])
def test_a_job_that_gave_way_starts_again_only_if_it_has_time_left(
    case: Case, minutes: int, verb: Verb
) -> None:
    history = History(ran=timedelta(minutes=15))  # and ten more now
    case.job = replace(case.job, time_limit=timedelta(minutes=minutes), history=history)
    event, kept = case.end(StopReason.PREEMPTION, by="9")
    assert event.ruling.verdict.verb is verb
    assert json.loads(kept.body)["verdict"]["do"] == verb  # what is written down is what follows
    if verb is Verb.GIVE_UP:
        said = "time limit of 20m reached when it was preempted for job 9"
        assert (event.ruling.verdict.reason, event.ruling.verdict.limit) == (said, Guard.WALL)


def test_news_about_an_attempt_that_is_over_is_not_judged(case: Case) -> None:
    pinned = PinnedPolicy(case.policy, "x")
    news = LaunchRefusal("1", 7, NOW, "no", pinned)
    state = Starting(NOW, "img", case.attempt, Allocation())
    assert decide_exit(case.context, case.row(replace(case.job, state=state)), news) is None
    assert decide_exit(case.context, case.row(case.job), replace(news, attempt=1)) is None


# --- The answer made concrete


@pytest.mark.parametrize(
    ("source", "step", "poisoned_at", "start"),
    [
        (Source.NEWEST, None, None, Start()),
        (Source.PREVIOUS, None, None, Start(StartFrom.STEP, 30)),
        (Source.BEFORE_NAN, None, 45, Start(StartFrom.STEP, 40)),
        (Source.BEFORE_NAN, None, 40, Start(StartFrom.STEP, 30)),
        (Source.BEFORE_NAN, None, 20, Start(StartFrom.STEP, 40)),
        (Source.BEFORE_NAN, None, None, Start(StartFrom.STEP, 40)),
        (Source.STEP, 30, None, Start(StartFrom.STEP, 30)),
    ],
)
def test_where_the_next_attempt_begins_is_a_step_and_not_a_word(
    case: Case, source: Source, step: int | None, poisoned_at: int | None, start: Start
) -> None:
    case.policy, case.poisoned_at = resume(source, step), poisoned_at
    assert case.ruling().start == start


@pytest.mark.parametrize(("source", "step"), [(Source.PREVIOUS, None), (Source.STEP, 20)])
def test_a_checkpoint_that_is_not_there_holds_the_job(case: Case, source: Source, step: int | None) -> None:
    case.policy, case.steps = resume(source, step), (40,)
    verdict = case.ruling().verdict
    assert (verdict.verb, verdict.limit) == (Verb.HOLD, Guard.UNUSABLE_CHECKPOINTS)
    assert "there is no valid checkpoint to begin with" in verdict.reason


def test_a_restart_begins_a_new_lineage_and_the_first_checkpoint_is_waited_for_in_the_same(
    case: Case,
) -> None:
    case.policy = rules(Rule("r", Verb.RESTART))
    assert case.ruling().start == Start(StartFrom.SCRATCH)
    case.policy, case.steps = resume(Source.NEWEST), ()
    case.facts = {**SAVED, "checkpoint.present": False, "checkpoint.valid": False}
    ruling = case.ruling()
    assert (ruling.verdict.verb, ruling.verdict.limit) == (Verb.RESTART, Guard.NO_CHECKPOINT)
    assert ruling.start == Start()


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"checkpoint.count": 1}, "`runner restart 1 --from scratch` begins without it"),
        ({"checkpoint.count": 2}, "begins without it, --from STEP with an older one"),
        ({"progress.advanced": True}, ""),
        ({"checkpoint.valid": False}, ""),
        ({"cause": "usage_error"}, ""),
    ],
)
def test_who_fails_with_a_checkpoint_is_told_how_to_begin_without_it(
    case: Case, facts: dict[str, FactValue], told: str
) -> None:
    case.policy = rules(Rule("r", Verb.GIVE_UP))
    case.facts = {**SAVED, "cause": "exception", "progress.advanced": False, **facts}
    reason = case.ruling().verdict.reason
    assert told in reason
    assert ("runner restart" in reason) is bool(told)


def test_a_remedy_is_settled_with_the_verdict_and_written_down(case: Case) -> None:
    case.facts = OOM
    event, kept = case.end()
    assert event.ruling.turned == Overrides(micro_batch=128)
    assert event.ruling.verdict.reason == "resume from step 40 with micro-batch 256 → 128: exception in train"
    body = json.loads(kept.body)
    assert body["next"] == {"from": "checkpoint", "step": None, "settings": {"micro_batch": 128}}
    assert (kept.job_id, kept.attempt, kept.moment, kept.at) == ("1", 1, "exit", LATER)
    assert any("oom-train" in line for line in explain_record(body))


def test_another_device_is_one_that_the_attempt_did_not_have(case: Case) -> None:
    case.policy = resume(Source.NEWEST, None, Adjustment(Setting.DEVICE, "other"))
    assert case.ruling().turned == Overrides(avoid=("GPU-a",))


# --- What a person has asked for


@pytest.mark.parametrize("reason", [StopReason.RESTART, StopReason.CHANGE])
def test_what_a_person_asks_for_costs_nothing_and_no_ceiling_stands_against_it(
    case: Case, reason: StopReason
) -> None:
    history = History(attempts=19, charged=19, setbacks=3)
    case.job = replace(case.job, history=history)
    ruling = case.ruling(reason)
    assert (ruling.verdict.verb, ruling.verdict.reason) == (Verb.RESUME, f"{reason}, as asked")
    assert (ruling.history.attempts, ruling.history.charged, ruling.history.setbacks) == (20, 19, 0)
    assert ruling.history.ran == timedelta(minutes=10)
    rules_ = json.loads(case.end(reason)[1].body)["rules"]
    assert next(each["note"] for each in rules_ if each["truth"]).startswith("would answer; ")


def test_work_that_is_done_stays_done_whatever_was_asked_for(case: Case) -> None:
    case.facts = {**SAVED, "exit.class": "success", "cause": "completed"}
    assert case.ruling(StopReason.RESTART).verdict.verb is Verb.FINISH


def test_a_hold_that_was_asked_for_is_one_and_costs_nothing(case: Case) -> None:
    ruling = case.ruling(StopReason.HOLD, "ann")
    assert (ruling.verdict.verb, ruling.verdict.limit) == (Verb.HOLD, Guard.OPERATOR)
    assert (ruling.verdict.reason, ruling.verdict.charged) == ("held, as asked", False)
    assert (ruling.history.attempts, ruling.history.charged) == (1, 0)


# --- Launches that were refused


@pytest.mark.parametrize(
    ("start", "again"),
    [
        (Start(), Start()),
        (Start(StartFrom.STEP, 30), Start(StartFrom.STEP, 30)),
        (Start(StartFrom.SCRATCH), Start()),
    ],
)
def test_a_refused_launch_is_tried_again_where_it_was_to_begin(
    case: Case, start: Start, again: Start
) -> None:
    attempt = Attempt(1, 1, start)
    row = case.row(replace(case.job, state=Starting(NOW, "img", attempt, Allocation(("GPU-a",)))))
    pinned = PinnedPolicy(case.policy, "x")
    found = decide_exit(case.context, row, LaunchRefusal("1", 1, LATER, "no such device", pinned))
    assert found is not None
    event, kept = found
    assert isinstance(event, LaunchFailed)
    assert (event.why, event.ruling.verdict.verb, event.ruling.start) == (
        "no such device",
        Verb.RESUME,
        again,
    )
    facts = json.loads(kept.body)["facts"]
    assert (facts["exit.class"], facts["root"]) == ("no_start", "launch_failed: no such device")
    assert "attempt.uptime_s" not in facts


@pytest.mark.parametrize("reason", [None, StopReason.PREEMPTION, StopReason.HOLD])
def test_an_attempt_that_ends_before_it_has_loaded_its_step_is_followed_by_one_from_there(
    case: Case, reason: StopReason | None
) -> None:
    case.attempt = Attempt(1, 1, Start(StartFrom.STEP, 10), began=10)
    case.facts = {**SAVED, "progress.advanced": False}
    case.steps = (50, 10)
    assert case.ruling(reason, "ann").start == case.attempt.start
    case.steps = (10,)  # it has loaded, and so set the newer one aside
    assert case.ruling(reason, "ann").start == Start()


def test_the_checkpoint_before_the_step_to_start_from_is_older_than_it(case: Case) -> None:
    case.attempt = Attempt(1, 1, Start(StartFrom.STEP, 20), began=20)
    case.facts = {**SAVED, "progress.advanced": False}
    case.policy, case.steps = resume(Source.PREVIOUS), (50, 40, 20, 10)
    assert case.ruling().start == Start(StartFrom.STEP, 10)


def test_a_held_attempt_that_never_started_keeps_its_start(case: Case) -> None:
    case.attempt = Attempt(1, 1, Start(StartFrom.STEP, 10), began=10)
    case.facts, case.steps = {"exit.class": "no_start", "progress.advanced": False}, ()
    assert case.ruling(StopReason.HOLD, "ann").start == case.attempt.start


# --- Revisions


class Looking(FakeAttempts):
    """A workshop that remembers the revisions in which it looked into ends."""

    seen: ClassVar[list[str]] = []

    def examine(self, row: JobRow, attempt: Attempt, gone: Gone) -> ExitFindings:
        self.seen.append(row.revision)
        return super().examine(row, attempt, gone)


@pytest.mark.parametrize(("revision", "seen", "fits"), [(1, "{}", True), (2, "{}", None)])
def test_an_end_is_looked_into_in_the_revision_that_the_attempt_began_with(
    case: Case, revision: int, seen: str, fits: FactValue | None
) -> None:
    """Nobody here knows whether its checkpoint fits another revision."""
    case.host.store.add_all((case.row(case.job),), ("submitted",))
    running = Running(NOW, "img", case.attempt, Allocation())
    row = case.row(replace(case.job, revision=revision, state=running))
    if revision == 2:
        row = replace(row, text=RevisionText.of('{"new": 1}'))
    attempt_service = Looking("i1", facts={"1": {"checkpoint.compatible": True}})
    found = examine_exit(
        replace(case.context, attempt_service=attempt_service), row, case.attempt, Gone(case.host.key("1"), 1)
    )
    assert (attempt_service.seen.pop(), found.facts.get("checkpoint.compatible")) == (seen, fits)


# --- Signals that somebody has asked for


@pytest.mark.parametrize(
    ("notes", "cause", "message", "told"),
    [
        (
            ("attempt 1: SIGKILL requested by ann",),
            "killed",
            "killed (SIGKILL)",
            "; SIGKILL requested by ann",
        ),
        (
            ("attempt 1: SIGTERM requested by ann",),
            "stopped",
            "stopped after saving",
            "; SIGTERM requested by ann",
        ),
        (("attempt 1: SIGUSR1 requested by ann",), "killed", "killed (SIGKILL)", ""),
        (("attempt 2: SIGKILL requested by ann",), "killed", "killed (SIGKILL)", ""),
        (
            (
                "attempt 1: SIGINT requested by ann",
                "attempt 1: SIGKILL requested by bob",
                "attempt 1: SIGUSR1 requested by ann",
            ),
            "killed",
            "killed (SIGKILL)",
            "; SIGKILL requested by bob",
        ),
        ((), "killed", "killed (SIGKILL)", ""),
    ],
)
def test_an_end_says_who_has_asked_for_the_signal_that_brought_it_about(
    case: Case, notes: tuple[str, ...], cause: str, message: str, told: str
) -> None:
    class Signalled(FakeAttempts):
        def examine(self, row: JobRow, attempt: Attempt, gone: Gone) -> ExitFindings:
            found = super().examine(row, attempt, gone)
            return replace(found, ended=replace(found.ended, cause=cause, message=message))

    row = case.row(replace(case.job, state=Running(NOW, "img", case.attempt, Allocation())))
    case.host.store.add_all((row,), ("submitted",))
    for note in notes:
        case.host.store.note("1", NOW, "signal_requested", note)
    context = replace(case.context, attempt_service=Signalled("i1"))
    found = examine_exit(context, row, case.attempt, Gone(case.host.key("1"), 137))
    assert found.ended.message == message + told
