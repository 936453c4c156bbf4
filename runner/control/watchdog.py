"""Looking after attempts that run: what they say of themselves, how their devices are, what follows.

A thread looks at every running attempt every few seconds and gathers facts; it may be slow, and
never decides.  The loop asks the policy about them, and knows the three things that can follow:
nothing, a word to its owner, or the end of the attempt.  A fact that nobody could find out is left
out, so what cannot be looked at is left alone.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

import structlog

from runner.base.errors import Unavailable
from runner.base.threads import PeriodicThread, run_guarded
from runner.control.context import Context, TrackedJob
from runner.control.decisions import decision_row
from runner.control.messages import Probed
from runner.control.schedulable import as_started
from runner.core.job.describe import ADVISED, attempt_prefix
from runner.core.job.events import Event, LivenessFailed
from runner.core.job.lifecycle import IllegalTransition
from runner.core.job.states import Running
from runner.core.policy.catalog import facts_at, validate_facts
from runner.core.policy.decision import Advice, Situation
from runner.core.policy.evaluate import decide
from runner.core.policy.facts import DecisionPoint
from runner.core.policy.heartbeat import Heartbeat
from runner.core.policy.model import Verb
from runner.core.ports.store import DecisionRow, JobRow

log = structlog.get_logger()

_Key = tuple[str, int]  # job and attempt


@dataclass(slots=True)
class Watchdog:
    """Looks at running attempts, and remembers between looks what one look cannot tell."""

    context: Context
    entries: Mapping[str, TrackedJob]  # the daemon's own; it alone changes them
    report: Callable[[Probed], None]
    _hearts: dict[_Key, Heartbeat] = field(default_factory=dict)
    thread: PeriodicThread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = PeriodicThread("watchdog", self.context.watch_every_s, self.look)

    def look(self) -> None:
        """Look at every running attempt once; one that cannot be looked at costs only itself."""
        running = dict(self._running())
        self._hearts = {key: heart for key, heart in self._hearts.items() if key in running}
        for key, (row, state) in running.items():
            run_guarded("probe", partial(self._probe, key, row, state), job_id=row.job.id)

    def _probe(self, key: _Key, row: JobRow, state: Running) -> None:
        try:
            self.report(self._look_at(key, row, state))
        except Unavailable as error:
            log.info("watchdog.attempt_unavailable", job_id=row.job.id, problem=str(error))

    def _running(self) -> Iterator[tuple[_Key, tuple[JobRow, Running]]]:
        for entry in list(self.entries.values()):
            row = entry.row
            if isinstance(row.job.state, Running):
                yield (row.job.id, row.job.state.attempt.number), (row, row.job.state)

    def _look_at(self, key: _Key, row: JobRow, state: Running) -> Probed:
        context, now = self.context, self.context.moment()
        row = as_started(context, row)
        glance = context.attempt_service.probe(row, state.attempt)
        heart = self._hearts.get(key)
        if heart is None:
            window = context.attempt_service.policy(row).policy.economics.rate_window
            born = now.monotonic - (now.at - state.since).total_seconds()
            heart = Heartbeat(window_s=max(window.total_seconds(), 1.0), born=born)
        heart = self._hearts[key] = heart.observe(glance.sign, now.monotonic)
        devices = context.vitals.facts(state.allocation.devices, state.since) if context.vitals else {}
        facts = {**glance.facts, **heartbeat_facts(heart, context.silence_floor_s), **devices}
        if state.deadline is not None:
            facts["deadline.slack_s"] = (state.deadline - now.at).total_seconds()
        askable = facts_at(DecisionPoint.WATCH)
        checked = validate_facts(
            {name: value for name, value in facts.items() if name in askable}, DecisionPoint.WATCH
        )
        return Probed(row.job.id, state.attempt.number, now.at, checked, glance.effective, heart.start_s)


def heartbeat_facts(heart: Heartbeat, floor_s: float) -> dict[str, object]:
    """Return the facts that only looking again and again can tell."""
    if heart.sign is None:
        return {}
    facts: dict[str, object] = {
        "heartbeat.age_s": heart.age_s,
        "heartbeat.limit_s": heart.limit_s(floor_s),
        "heartbeat.age_over_limit": heart.is_over_limit(floor_s),
        "progress.idle_s": heart.idle_s,
        "progress.rate": heart.rate,
        "progress.rate_recent": None if heart.recent is None else heart.recent.mean,
    }
    return {name: value for name, value in facts.items() if value is not None}


# --- With the turn ---------------------------------------------------------------------------------------

Happen: TypeAlias = Callable[[TrackedJob, Event, DecisionRow], None]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a policy has to say about a running attempt."""

    event: LivenessFailed | None  # None: it is only worth a word
    advice: tuple[Advice, ...]  # said for the first time
    decision: DecisionRow


def act_on_findings(
    context: Context, entries: Mapping[str, TrackedJob], news: Probed, happen: Happen
) -> None:
    """Let the policy say what follows from a look at an attempt, and do it.

    What cannot be recorded, because the disk is full, is found again at the next look.
    """
    entry = entries.get(news.job_id)
    try:
        found = entry and find_concern(context, entry, news)
        if entry and found:
            _carry_out(context, entry, found, happen)
    except (Unavailable, IllegalTransition) as error:
        log.warning("watching.no_effect", job_id=news.job_id, problem=str(error))


def find_concern(context: Context, entry: TrackedJob, news: Probed) -> Finding | None:
    """Return what follows from a look at an attempt, None if nothing does."""
    row, state = as_started(context, entry.row), entry.row.job.state
    if not isinstance(state, Running) or state.attempt.number != news.attempt:
        return None
    pinned = context.attempt_service.policy(row)
    facts = {**news.facts, "operator.request": "none"}
    situation = Situation(facts, news.at, state.since, news.effective, row.job.id)
    decision = decide(pinned.policy, DecisionPoint.WATCH, row.job.history, situation)
    stops = decision.action.verb is Verb.STOP
    advice = tuple(each for each in decision.advice if each.rule not in _said(context, entry, news.attempt))
    if not stops and not advice:
        return None
    why = decision.action.reason.removeprefix("stop: ")
    condemned = LivenessFailed(news.at, news.attempt, decision.action.rule, why)
    kept = decision_row(row, state.attempt, pinned, situation, replace(decision, advice=advice))
    return Finding(condemned if stops else None, advice, kept)


def _said(context: Context, entry: TrackedJob, attempt: int) -> frozenset[str]:
    """Return the rules whose advice about an attempt was passed on before, by an earlier daemon too."""
    if entry.advised is None or entry.advised[0] != attempt:
        bodies = (json.loads(row.body) for row in context.store.decisions(entry.row.job.id, attempt))
        watched = (body for body in bodies if body["moment"] == DecisionPoint.WATCH)
        entry.advised = attempt, frozenset(each["rule"] for body in watched for each in body["advice"])
    return entry.advised[1]


def _carry_out(context: Context, entry: TrackedJob, found: Finding, happen: Happen) -> None:
    row, attempt = entry.row, found.decision.attempt
    if found.event is None:
        context.store.decided(found.decision)
    for each in found.advice:
        context.store.note(row.job.id, found.decision.at, ADVISED, f"{attempt_prefix(attempt)}{each.text}")
    entry.advised = attempt, _said(context, entry, attempt) | {each.rule for each in found.advice}
    if found.event is not None:
        happen(entry, found.event, found.decision)
