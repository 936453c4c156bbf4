"""Liveness of running attempts: probes on threads, and what the policy makes of them.

Every running attempt is probed every few seconds, which gathers facts and never decides.  A probe may be
slow, because it asks a process of the owner about checkpoints, and nobody's attempts wait for those of
another owner.  The loop asks the policy about the facts, and one of three things follows: nothing, advice to
the owner, or the end of the attempt.  An unknown fact is left out, so an attempt that cannot be probed is
left alone.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

import structlog

from runner.agent.interface import ProgressProbe
from runner.base.errors import Unavailable
from runner.base.fair_executor import FairExecutor
from runner.base.threads import PeriodicThread, run_guarded
from runner.control.context import Context, RepeatedWork, TrackedJob, as_started
from runner.control.decisions import decision_row
from runner.control.messages import Probed
from runner.core.job.attempt import Attempt
from runner.core.job.describe import ADVISED, attempt_prefix
from runner.core.job.events import Event, LivenessFailed
from runner.core.job.lifecycle import IllegalTransition
from runner.core.job.states import Running
from runner.core.policy.catalog import select_facts
from runner.core.policy.decision import Advice, Situation
from runner.core.policy.evaluate import decide
from runner.core.policy.facts import DecisionPoint
from runner.core.policy.heartbeat import NO_LIMITS, Heartbeat, ProgressReport
from runner.core.policy.model import Verb
from runner.core.ports.store import DecisionRow, JobRow

log = structlog.get_logger()

_Key = tuple[str, int]  # job and attempt


@dataclass(slots=True)
class Watchdog:
    """Probes running attempts, and remembers between probes what a single one cannot tell."""

    context: Context
    tracked_jobs: Mapping[str, TrackedJob]  # the loop changes it
    report: Callable[[Probed], None]
    work: RepeatedWork = field(default_factory=lambda: FairExecutor("watchdog", threads_per_user=1))
    _heartbeats: dict[_Key, Heartbeat] = field(default_factory=dict)
    thread: PeriodicThread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = PeriodicThread("watchdog", self.context.watch_every_s, self.probe_all)

    def probe_all(self) -> None:
        """Let every running attempt be probed once, unless an earlier probe of its owner is not done."""
        running, owners = set[_Key](), dict[str, list[tuple[_Key, JobRow, Running]]]()
        for each in self._running():
            running.add(each[0])
            owners.setdefault(each[1].owner.name, []).append(each)
        for key in list(self._heartbeats):
            if key not in running:
                self._heartbeats.pop(key, None)
        for owner, probed in owners.items():
            self.work.put_unless_busy(owner, partial(self._probe_of, probed))

    def _probe_of(self, running: Sequence[tuple[_Key, JobRow, Running]]) -> None:
        """Probe attempts of one owner; an error about one does not keep the others from it."""
        for key, row, state in running:
            tracked = self.tracked_jobs.get(key[0])
            if tracked is not None and tracked.suspended:
                continue  # what is not looked at is no silence
            run_guarded("probe", partial(self._report, key, row, state), job_id=row.job.id)

    def _report(self, key: _Key, row: JobRow, state: Running) -> None:
        try:
            self.report(self._probe(key, row, state))
        except Unavailable as error:
            log.info("watchdog.attempt_unavailable", job_id=row.job.id, problem=str(error))

    def _running(self) -> Iterator[tuple[_Key, JobRow, Running]]:
        for tracked in list(self.tracked_jobs.values()):
            row = tracked.row
            if isinstance(row.job.state, Running):
                yield (row.job.id, row.job.state.attempt.number), row, row.job.state

    def _probe(self, key: _Key, row: JobRow, state: Running) -> Probed:
        context, now = self.context, self.context.moment()
        row = as_started(context, row)
        probe = context.attempt_service.probe(row, state.attempt)
        started = context.started_at(state, now.at, now.monotonic) or state.since
        heartbeat = self._heartbeats.get(key)
        if heartbeat is None:
            window = context.attempt_service.policy(row).policy.economics.rate_window
            born = now.monotonic - (now.at - started).total_seconds()
            heartbeat = Heartbeat(window_s=max(window.total_seconds(), 1.0), born=born)
        heartbeat = self._heartbeats[key] = _observe(heartbeat, probe, state.attempt, now.monotonic)
        devices = context.inventory.facts(state.allocation.devices, state.since)
        silence = heartbeat_facts(heartbeat, context.silence_floor_s, context.silence_limits_s)
        disk = context.disk.facts(context.key(row.job.id, state.attempt.number))
        facts = {**probe.facts, **silence, **devices, **disk}
        if state.deadline is not None:
            facts["deadline.slack_s"] = (state.deadline - state.since - (now.at - started)).total_seconds()
        checked = select_facts(facts, DecisionPoint.WATCH)
        return Probed(
            row.job.id,
            state.attempt.number,
            now.at,
            checked,
            probe.effective,
            monotonic=now.monotonic,
            start_s=heartbeat.start_s,
            saves_when_asked=probe.saves_when_asked,
        )


def _observe(heartbeat: Heartbeat, probe: ProgressProbe, attempt: Attempt, now: float) -> Heartbeat:
    """Return the heartbeat after a probe; who should report and has not is silent from the start."""
    silent = _silent_since_start(attempt)
    if probe.sign is not None and heartbeat.sign == silent:
        heartbeat = replace(heartbeat, sign=None, age_s=0.0, idle_s=0.0)
    if probe.sign is None and probe.reports_expected and heartbeat.sign in {None, silent}:
        if heartbeat.sign is None:
            heartbeat = heartbeat.observe(silent, now if heartbeat.born is None else heartbeat.born)
        return heartbeat.observe(silent, now)
    told = probe.facts.get("progress.step")
    return heartbeat.observe(probe.sign, now, told if isinstance(told, int) else None)


def _silent_since_start(attempt: Attempt) -> ProgressReport:
    """Return a substitute for the report that an attempt should have written and has not."""
    began = attempt.began or 0
    return ProgressReport("init", began, 0.0, begun=began)


def heartbeat_facts(
    heart: Heartbeat, floor_s: float, phases: Mapping[str, float | None] = NO_LIMITS
) -> dict[str, object]:
    """Return the facts that only repeated probes can tell."""
    if heart.sign is None:
        return {} if heart.told is None else {"progress.idle_s": heart.idle_s}
    facts: dict[str, object] = {
        "heartbeat.age_s": heart.age_s,
        "heartbeat.limit_s": heart.limit_s(floor_s, phases),
        "heartbeat.age_over_limit": heart.is_over_limit(floor_s, phases),
        "progress.idle_s": heart.idle_s,
        "progress.rate": heart.rate,
        "progress.rate_recent": None if heart.recent is None else heart.recent.mean,
    }
    return {name: value for name, value in facts.items() if value is not None}


# --- in the exclusive section

ApplyEvent: TypeAlias = Callable[[TrackedJob, Event, DecisionRow], None]


@dataclass(frozen=True, slots=True)
class WatchdogFinding:
    """Decision of a policy about a running attempt."""

    event: LivenessFailed | None  # None: there is only advice
    advice: tuple[Advice, ...]  # given for the first time
    decision: DecisionRow


def act_on_findings(
    context: Context, tracked_jobs: Mapping[str, TrackedJob], probed: Probed, apply: ApplyEvent
) -> None:
    """Ask the policy what follows from a probe of an attempt, and do it.

    What cannot be recorded, because the disk is full, is found again by the next probe.
    """
    tracked = tracked_jobs.get(probed.job_id)
    try:
        finding = tracked and decide_probe(context, tracked, probed)
        if tracked and finding:
            _act(context, tracked, finding, apply)
    except (Unavailable, IllegalTransition) as error:
        log.warning("watchdog.finding_not_recorded", job_id=probed.job_id, problem=str(error))


def decide_probe(context: Context, tracked: TrackedJob, probed: Probed) -> WatchdogFinding | None:
    """Return the decision of the policy about a probe of an attempt, None if nothing follows."""
    row, state = as_started(context, tracked.row), tracked.row.job.state
    if not isinstance(state, Running) or state.attempt.number != probed.attempt:
        return None
    pinned = context.attempt_service.policy(row)
    facts = {**probed.facts, "operator.request": "none"}
    started = context.started_at(state, probed.at, probed.monotonic)
    situation = Situation(facts, probed.at, started, probed.effective, row.job.id)
    decision = decide(pinned.policy, DecisionPoint.WATCH, row.job.history, situation)
    stops = decision.action.verb is Verb.STOP
    advised = _advised(context, tracked, probed.attempt)
    advice = tuple(each for each in decision.advice if each.rule not in advised)
    if not stops and not advice:
        return None
    why = decision.action.reason.removeprefix("stop: ")
    failed = LivenessFailed(probed.at, probed.attempt, decision.action.rule, why)
    record = decision_row(row, state.attempt, pinned, situation, replace(decision, advice=advice))
    return WatchdogFinding(failed if stops else None, advice, record)


def _advised(context: Context, tracked: TrackedJob, attempt: int) -> frozenset[str]:
    """Return the rules whose advice about an attempt was given before, by an earlier daemon too."""
    if tracked.advised is None or tracked.advised[0] != attempt:
        bodies = (json.loads(row.body) for row in context.store.decisions(tracked.row.job.id, attempt))
        watched = (body for body in bodies if body.get("moment") == DecisionPoint.WATCH)
        advice = (each for body in watched for each in body.get("advice", ()))
        tracked.advised = attempt, frozenset(each["rule"] for each in advice)
    return tracked.advised[1]


def _act(context: Context, tracked: TrackedJob, finding: WatchdogFinding, apply: ApplyEvent) -> None:
    row, attempt = tracked.row, finding.decision.attempt
    if finding.event is None:
        context.store.decided(finding.decision)
    for each in finding.advice:
        context.store.note(row.job.id, finding.decision.at, ADVISED, f"{attempt_prefix(attempt)}{each.text}")
        if isinstance(row.job.state, Running):
            tell = partial(context.attempt_service.tell_terminals, row, row.job.state.attempt, each.text)
            context.work_queue.put(row.job.id, tell, row.owner.name)
    tracked.advised = attempt, _advised(context, tracked, attempt) | {each.rule for each in finding.advice}
    if finding.event is not None:
        apply(tracked, finding.event, finding.decision)
