"""Asking the policy what follows from an end, and making its answer concrete.

The lane that looked into the end has gathered what the attempt and its directory say; the loop adds what
only it knows: who asked for a stop, which devices there are.  Judging blocks nothing and reads no clock.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any, Final, TypeAlias

from runner.base import jsontext as compact
from runner.control.context import Examined, Findings, Pinned, Unstarted, World
from runner.control.schedulable import as_begun, fit
from runner.core.job.model import (
    Attempt,
    Ended,
    Exited,
    From,
    Job,
    LaunchFailed,
    Lent,
    Ruling,
    Running,
    Start,
    Stopping,
    StopReason,
)
from runner.core.job.notes import SIGNALLED, about
from runner.core.policy import explain as records
from runner.core.policy.catalog import at, known
from runner.core.policy.decision import Decision, Limit, Situation, Verdict
from runner.core.policy.evaluate import decide, overruled
from runner.core.policy.facts import Known, Moment
from runner.core.policy.history import History
from runner.core.policy.model import Source, Verb
from runner.core.policy.roots import fingerprint
from runner.core.policy.turned import Turned, turn
from runner.core.policy.wording import span
from runner.core.ports.all import DecisionRow, Gone, JobRow

Judgement: TypeAlias = tuple[Exited | LaunchFailed, DecisionRow]

KILLED_BY: Final[Mapping[StopReason, str]] = {
    StopReason.CANCELLED: "operator",
    StopReason.RESTART: "operator",
    StopReason.HOLD: "operator",
    StopReason.TIME_LIMIT: "deadline",
    StopReason.CHANGE: "change",
    StopReason.PREEMPTION: "preemption",
}
REQUESTS: Final[Mapping[StopReason, str]] = {
    StopReason.CANCELLED: "cancel",
    StopReason.RESTART: "restart",
    StopReason.HOLD: "hold",
}


def looked_into(world: World, row: JobRow, attempt: Attempt, gone: Gone) -> Findings:
    """Return what is found out about an end; blocks, and is called in a lane.

    An attempt ran in the revision that it began with; what follows is for the newest one's policy to say.
    Its log is cut once more, before the end is on record: nobody else cuts what it gained last.
    """
    begun = as_begun(world, row)
    world.workshop.tend(begun, attempt)
    found = world.workshop.examine(begun, attempt, gone)
    found = replace(found, ended=_with_sender(world, row.job.id, attempt, found.ended))
    if begun.revision == row.revision:
        return found
    facts = {name: value for name, value in found.facts.items() if name != "checkpoint.compatible"}
    return replace(found, pinned=world.workshop.policy(row), facts=facts)


def _with_sender(world: World, job_id: str, attempt: Attempt, ended: Ended) -> Ended:
    """Return an end with who has asked for the signal that may have brought it about, where somebody has."""
    if ended.cause != "stopped" and "SIG" not in ended.message:
        return ended  # most have ended by themselves, and need no look into the store
    prefix = about(attempt.number)
    for note in reversed(world.store.noted(job_id, SIGNALLED)):
        sent = note.removeprefix(prefix)
        if note.startswith(prefix) and (sent.split()[0] in ended.message or ended.cause == "stopped"):
            return replace(ended, message=f"{ended.message}; {sent}")
    return ended


def judged(world: World, row: JobRow, news: Examined | Unstarted) -> Judgement | None:
    """Return the event that an end is, with the policy's ruling; None when it is about an older attempt."""
    state = row.job.state
    if not isinstance(state, Lent) or state.attempt.number != news.attempt:
        return None
    findings = news.findings if isinstance(news, Examined) else _not_started(news)
    facts = known({**findings.facts, **_told(world, row, state)}, Moment.EXIT)
    started = state.since if isinstance(state, Running) else getattr(state, "started", None)
    situation = Situation(facts, news.at, started, findings.effective, row.job.id)
    if row.job.time_limit is not None:
        left = row.job.time_limit - row.job.history.ran - situation.uptime
        situation = replace(situation, facts={**facts, "deadline.slack_s": left.total_seconds()})
    decision = decide(findings.pinned.policy, Moment.EXIT, row.job.history, situation)
    decision = _as_asked(decision, row.job, state, situation)
    decision, start = _begun(decision, state.attempt, findings)
    devices = state.allocation.devices
    turned = turn(row.job.turned, decision.verdict.adjust, decision.facts, devices)
    ruling = Ruling(decision.verdict, decision.history, start, turned)
    kept = recorded(row, state.attempt, findings.pinned, situation, decision, _next(ruling))
    if isinstance(news, Unstarted):
        return LaunchFailed(news.at, news.why, ruling), kept
    return Exited(news.at, news.attempt, findings.ended, ruling), kept


def recorded(  # noqa: PLR0913, PLR0917  (a record is about all of these)
    row: JobRow,
    attempt: Attempt,
    pinned: Pinned,
    situation: Situation,
    decision: Decision,
    following: Mapping[str, Any] | None = None,
) -> DecisionRow:
    """Return a decision as the store keeps it."""
    about = records.About(row.job.id, attempt.number, pinned.digest)
    body = records.record(about, pinned.policy, situation, decision)
    if following is not None:
        body["next"] = following
    moment = str(decision.moment)
    return DecisionRow(row.job.id, attempt.number, moment, situation.now, compact.dumps(body))


_SETTINGS: Final = tuple(each.name for each in fields(Turned))


def _next(ruling: Ruling) -> dict[str, Any]:
    """Return where the next attempt begins and with which settings, as JSON."""
    turned = ((name, getattr(ruling.turned, name)) for name in _SETTINGS)
    settings = {name: value for name, value in turned if value not in {None, ()}}
    return {"from": str(ruling.start.source), "step": ruling.start.step, "settings": settings}


# --- Facts that the loop knows ------------------------------------------------------------------------


def _told(world: World, row: JobRow, state: Lent) -> dict[str, object]:
    """Return who ended it, what was asked for, and what there is besides."""
    asked = state.reason if isinstance(state, Stopping) else None
    killed_by = "nobody" if asked is None else KILLED_BY.get(asked, f"watch/{getattr(state, 'by', '')}")
    boot = state.attempt.boot
    return {
        "killed_by": killed_by,
        "operator.request": "none" if asked is None else REQUESTS.get(asked, "none"),
        "preempted": True if asked is StopReason.PREEMPTION else None,
        "host.rebooted": None if boot is None or world.boot is None else boot != world.boot,
        "device.others": _others(world, row, state),
        **_of_devices(world, state),
    }


def _of_devices(world: World, state: Lent) -> dict[str, object]:
    """Return how the devices of the attempt are, and how they have been since it started."""
    started = state.since if isinstance(state, Running) else getattr(state, "started", None)
    if world.vitals is None or started is None:
        return {}
    found, askable = world.vitals.facts(state.allocation.devices, started), at(Moment.EXIT)
    return {name: value for name, value in found.items() if name in askable}


def _others(world: World, row: JobRow, state: Lent) -> int:
    """Return how many devices could take the place of those that the attempt had; 0 if they are too few."""
    taken = (*state.allocation.devices, *row.job.turned.avoid)
    needs = world.workshop.needs(row)
    others = sum(needs.vendor in {None, device.vendor} and device.uuid not in taken for device in fit(world))
    return others if others >= needs.gpus > 0 else 0


def _not_started(news: Unstarted) -> Findings:
    """Return what is known of an attempt that the executor refused: it did not run, so it saved nothing."""
    facts: dict[str, Known] = {
        "exit.class": "no_start",
        "cause": "launch_failed",
        "root": fingerprint("launch_failed", news.why),
        "progress.advanced": False,
    }
    return Findings(Ended(None, "launch_failed", news.why), news.pinned, facts)


# --- The answer made concrete -------------------------------------------------------------------------


def _as_asked(decision: Decision, job: Job, state: Lent, situation: Situation) -> Decision:
    """Return what follows from what a person or the queue wants: it costs nothing, whatever ceilings say."""
    if not isinstance(state, Stopping) or state.reason not in _FREE or decision.verdict.verb is Verb.FINISH:
        return decision
    advanced = decision.facts.get("progress.advanced") is True
    before = job.history.revised() if advanced else job.history
    history = _one_more(before, situation, had_checkpoint=decision.history.had_checkpoint)
    if state.reason is StopReason.PREEMPTION:
        history = history.asked_for()  # the next start is the queue's wish, and part of no storm
    verb = Verb.HOLD if state.reason is StopReason.HOLD else Verb.RESUME
    verdict = Verdict(verb, "", _wish(state), charged=False, limit=Limit.OPERATOR)
    if state.reason is StopReason.PREEMPTION and job.time_limit is not None and history.ran >= job.time_limit:
        verdict = replace(verdict, verb=Verb.GIVE_UP, reason=_spent(job, state), limit=Limit.WALL)
    return overruled(replace(decision, verdict=verdict, history=history))


def _spent(job: Job, state: Stopping) -> str:
    """Return why a job that gave way does not start again: another attempt would have no time at all."""
    return f"time limit of {span(job.time_limit or timedelta())} reached when it {_wish(state)}"


def _wish(state: Stopping) -> str:
    if state.reason is StopReason.PREEMPTION:
        return f"gave way to job {state.by}"
    return f"{'held' if state.reason is StopReason.HOLD else state.reason}, as asked"


_FREE: Final = frozenset({StopReason.RESTART, StopReason.CHANGE, StopReason.HOLD, StopReason.PREEMPTION})


def _one_more(before: History, situation: Situation, *, had_checkpoint: bool) -> History:
    ended = before.ended(situation.started or situation.now, situation.uptime)
    return replace(ended, had_checkpoint=had_checkpoint)


def _begun(decision: Decision, attempt: Attempt, findings: Findings) -> tuple[Decision, Start]:
    """Return a decision whose start can be had, and that start."""
    verdict = decision.verdict
    if decision.facts.get("exit.class") == "no_start" and verdict.verb is Verb.RESUME:
        return decision, Start() if attempt.start.source is From.SCRATCH else attempt.start
    if verdict.verb is Verb.RESTART:
        return decision, Start() if verdict.limit is Limit.NO_CHECKPOINT else Start(From.SCRATCH)
    if verdict.verb is not Verb.RESUME or verdict.start.source is Source.NEWEST:
        return decision, Start()
    step = _step(verdict, findings)
    if step is None:
        return replace(decision, verdict=_nowhere(verdict)), Start()
    return decision, Start(From.STEP, step)


def _step(verdict: Verdict, findings: Findings) -> int | None:
    """Return the step of the checkpoint that a verdict means, None if there is no valid one."""
    match verdict.start.source:
        case Source.PREVIOUS:
            return next(iter(findings.steps[1:]), None)
        case Source.BEFORE_NAN:
            end = findings.poisoned_at
            before = [step for step in findings.steps if end is None or step < end]
            return next(iter(before or findings.steps), None)
        case _:
            return verdict.start.step if verdict.start.step in findings.steps else None


def _nowhere(verdict: Verdict) -> Verdict:
    where = str(verdict.start.source) if verdict.start.step is None else f"step {verdict.start.step}"
    why = f"there is no valid checkpoint to begin with ({where}); {verdict.reason}"
    return Verdict(Verb.HOLD, verdict.rule, why, charged=verdict.charged, limit=Limit.UNUSABLE_CHECKPOINTS)
