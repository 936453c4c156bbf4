"""Deciding by policy what follows from the exit of an attempt, and making the decision concrete.

A worker has gathered what the attempt and its directory say (``examine_exit``); the loop adds what only it
knows: who asked for a stop, which devices there are.  ``decide_exit`` blocks nothing and reads no clock.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from runner.agent.interface import ExitFindings, PinnedPolicy
from runner.base import jsontext as compact
from runner.base.readable import readable_duration
from runner.base.threads import run_guarded
from runner.control.context import Context, as_started
from runner.control.messages import Examined, LaunchRefusal
from runner.core.job.attempt import Attempt, AttemptEnd, ExitDecision, Start, StartFrom
from runner.core.job.describe import SIGNALLED, attempt_prefix
from runner.core.job.events import Exited, LaunchFailed
from runner.core.job.lifecycle import state_at_end
from runner.core.job.model import Job
from runner.core.job.states import Allocated, Running, Stopping, StopReason
from runner.core.policy import explain as records
from runner.core.policy.adjustments import Overrides, apply_adjustments
from runner.core.policy.catalog import facts_at, validate_facts
from runner.core.policy.causes import ExitCause
from runner.core.policy.decision import Action, Guard, PolicyDecision, Situation
from runner.core.policy.evaluate import decide, mark_overruled
from runner.core.policy.facts import DecisionPoint, Facts, FactValue
from runner.core.policy.guards import may_have_saved
from runner.core.policy.history import History, fingerprint
from runner.core.policy.model import Source, Verb
from runner.core.ports.executor import Gone
from runner.core.ports.store import DecisionRow, JobRow
from runner.core.sweep import paused_text

ExitTransition: TypeAlias = tuple[Exited | LaunchFailed, DecisionRow]

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


def examine_exit(context: Context, row: JobRow, attempt: Attempt, gone: Gone) -> ExitFindings:
    """Return the findings about an exit; blocks, and runs on a worker.

    The attempt ran in the revision that it began with; the newest revision's policy decides what follows.
    Its log is cut once more before the exit is recorded: nobody else cuts what it gained last.
    """
    begun = as_started(context, row)
    run_guarded("log quota", lambda: context.attempt_service.limit_log(begun, attempt), job_id=row.job.id)
    found = context.attempt_service.examine(begun, attempt, gone)
    found = replace(found, ended=_with_sender(context, row.job.id, attempt, found.ended))
    if begun.text == row.text:
        return found
    facts = {name: value for name, value in found.facts.items() if name != "checkpoint.compatible"}
    return replace(found, pinned=context.attempt_service.policy(row), facts=facts)


def _with_sender(context: Context, job_id: str, attempt: Attempt, ended: AttemptEnd) -> AttemptEnd:
    """Return an exit with the person who sent the signal that may have caused it, where there is one."""
    if ended.cause != "stopped" and "SIG" not in ended.message:
        return ended  # most attempts end by themselves, and need no query of the store
    prefix = attempt_prefix(attempt.number)
    for note in reversed(context.store.noted(job_id, SIGNALLED)):
        sent = note.removeprefix(prefix)
        if note.startswith(prefix) and (sent.split()[0] in ended.message or ended.cause == "stopped"):
            return replace(ended, message=f"{ended.message}; {sent}")
    return ended


def decide_exit(
    context: Context,
    row: JobRow,
    message: Examined | LaunchRefusal,
    of_queue: Mapping[str, object] = MappingProxyType({}),
) -> ExitTransition | None:
    """Return the exit event with the policy's decision; None if the message is about an older attempt.

    ``of_queue`` are the facts that the queue knows about the job.
    """
    state = row.job.state
    if not isinstance(state, Allocated) or state.attempt.number != message.attempt:
        return None
    findings = message.findings if isinstance(message, Examined) else _launch_refused(message)
    unasked = isinstance(message, Examined) and message.unasked
    state = state_at_end(state, findings.ended, unasked=unasked)
    cause = findings.ended.cause
    started = context.started_at(state, message.at, getattr(message, "monotonic", None))
    situation = Situation({}, message.at, started, findings.effective, row.job.id)
    limit, ran = row.job.time_limit, row.job.history.ran + situation.uptime
    left = None if limit is None else limit - ran
    known = {**findings.facts, **of_queue, **_facts_of_loop(context, row, state, cause, left)}
    facts = validate_facts(known, DecisionPoint.EXIT)
    if left is not None:
        facts = {**facts, "deadline.slack_s": left.total_seconds()}
    situation = replace(situation, facts=facts)
    decision = decide(findings.pinned.policy, DecisionPoint.EXIT, row.job.history, situation)
    decision = _honour_request(decision, row.job, state, situation)
    if isinstance(state, Stopping) and _has_let_grace_pass(context, row, state, findings):
        decision = _charge_for_grace(decision, row.job, situation)
    if isinstance(message, LaunchRefusal) and message.hold and not isinstance(state, Stopping):
        decision = _hold_refused(decision, row.job, situation, message.why)
    if (rung := _paused_at(context, row, state, findings)) is not None:
        decision = _hold_refused(decision, row.job, situation, paused_text(rung))
    if cause == ExitCause.CANCELLED_ELSEWHERE and not isinstance(state, Stopping):
        decision = _hold_refused(decision, row.job, situation, findings.ended.message)
    decision, start = _choose_start(_name_restarts(decision, row.job), state.attempt, findings)
    devices = state.allocation.devices
    turned = apply_adjustments(row.job.turned, decision.action.adjust, decision.facts, devices)
    exit_decision = ExitDecision(decision.action, decision.history, start, turned)
    record = decision_row(
        row, state.attempt, findings.pinned, situation, decision, _next_attempt(exit_decision)
    )
    if isinstance(message, LaunchRefusal):
        return LaunchFailed(message.at, message.why, exit_decision), record
    return Exited(message.at, message.attempt, findings.ended, exit_decision, unasked), record


def decision_row(  # noqa: PLR0913, PLR0917  (a record is about all of these)
    row: JobRow,
    attempt: Attempt,
    pinned: PinnedPolicy,
    situation: Situation,
    decision: PolicyDecision,
    following: Mapping[str, Any] | None = None,
) -> DecisionRow:
    """Return a decision as the store keeps it."""
    about = records.DecisionSubject(row.job.id, attempt.number, pinned.digest)
    body = records.make_record(about, pinned.policy, situation, decision)
    if following is not None:
        body["next"] = following
    moment = str(decision.moment)
    return DecisionRow(row.job.id, attempt.number, moment, situation.now, compact.dumps(body))


_SETTINGS: Final = tuple(each.name for each in fields(Overrides))


def _next_attempt(decision: ExitDecision) -> dict[str, Any]:
    """Return the start and the settings of the next attempt, as JSON."""
    turned = ((name, getattr(decision.turned, name)) for name in _SETTINGS)
    settings = {name: value for name, value in turned if value not in {None, ()}}
    return {"from": str(decision.start.source), "step": decision.start.step, "settings": settings}


# --- facts that only the loop knows ------------------------------------------------------------------------


def _facts_of_loop(
    context: Context, row: JobRow, state: Allocated, cause: str, left: timedelta | None
) -> dict[str, object]:
    """Return the facts of the loop: the end's author, the request, and the state of the devices."""
    asked = state.reason if isinstance(state, Stopping) else _asked_by_engine(cause, left)
    killed_by = "nobody" if asked is None else KILLED_BY.get(asked, f"watch/{getattr(state, 'by', '')}")
    boot = state.attempt.boot
    return {
        "killed_by": killed_by,
        "operator.request": "none" if asked is None else REQUESTS.get(asked, "none"),
        "preempted": True if asked is StopReason.PREEMPTION else None,
        "host.rebooted": None if boot is None or context.boot is None else boot != context.boot,
        "device.others": _other_devices(context, row, state),
        "host.memory": context.capacity.memory_bytes,
        **_device_facts(context, state),
    }


def _asked_by_engine(cause: str, left: timedelta | None) -> StopReason | None:
    """Return the one of our own reasons to stop an attempt an engine with a queue of its own had.

    The engine's limit is not the job's where that has been raised since the launch, or is the longer one.
    """
    if cause == ExitCause.PREEMPTED:
        return StopReason.PREEMPTION
    if cause == ExitCause.OUT_OF_TIME and left is not None and left <= timedelta():
        return StopReason.TIME_LIMIT
    return None


def _device_facts(context: Context, state: Allocated) -> dict[str, object]:
    """Return the facts about the devices of the attempt since it started."""
    started = state.since if isinstance(state, Running) else getattr(state, "started", None)
    if started is None:
        return {}
    found, askable = context.inventory.facts(state.allocation.devices, started), facts_at(DecisionPoint.EXIT)
    return {name: value for name, value in found.items() if name in askable}


def _other_devices(context: Context, row: JobRow, state: Allocated) -> int:
    """Return the number of devices that could replace those of the attempt; 0 if they are too few."""
    taken = (*state.allocation.devices, *row.job.turned.avoid)
    needs = context.attempt_service.needs(row)
    unfit = context.inventory.unfit()
    others = sum(
        needs.vendor in {None, device.vendor} and device.uuid not in taken and device.uuid not in unfit
        for device in context.capacity.devices
    )
    return others if others >= needs.gpus > 0 else 0


def _launch_refused(message: LaunchRefusal) -> ExitFindings:
    """Return the facts of an attempt that the executor refused: it did not run, so it saved nothing."""
    facts: dict[str, FactValue] = {
        "exit.class": "no_start",
        "cause": "launch_failed",
        "root": fingerprint("launch_failed", message.why),
        "progress.advanced": False,
    }
    return ExitFindings(AttemptEnd(None, "launch_failed", message.why), message.pinned, facts)


# --- the decision made concrete -------------------------------------------------------------------------


def _honour_request(
    decision: PolicyDecision, job: Job, state: Allocated, situation: Situation
) -> PolicyDecision:
    """Return a decision that follows what a person or the queue asked for: no ceiling counts it."""
    if not isinstance(state, Stopping) or state.reason not in _FREE or decision.action.verb is Verb.FINISH:
        return decision
    advanced = decision.facts.get("progress.advanced") is True
    restarting = {each.rule for each in decision.rule_results if each.do is Verb.RESTART}
    before = job.history.reset_tallies(restarting) if advanced else job.history
    history = _after_exit(before, situation, had_checkpoint=decision.history.had_checkpoint)
    if state.reason is StopReason.PREEMPTION:
        history = history.request_next()  # the queue asked for the next start: no restart rate counts it
    verb = Verb.HOLD if state.reason is StopReason.HOLD else Verb.RESUME
    reason = _request_reason(state) + _failed_to_save(state, decision.facts)
    verdict = Action(verb, "", reason, charged=False, limit=Guard.OPERATOR)
    if state.reason is StopReason.PREEMPTION and job.time_limit is not None and history.ran >= job.time_limit:
        verdict = replace(verdict, verb=Verb.GIVE_UP, reason=_time_limit_reason(job, state), limit=Guard.WALL)
    return mark_overruled(replace(decision, action=verdict, history=history))


def _failed_to_save(state: Stopping, facts: Facts) -> str:
    """Return the fate of an attempt that was to save and leave and did not end by that; "" if it did."""
    cause = facts.get("cause")
    if state.reason is not StopReason.PREEMPTION or state.killed or cause in _ENDS_WHEN_ASKED:
        return ""
    if cause == ExitCause.DISK_FULL:
        return "; its disk was full when it was to save, so it goes on from before that"
    step = facts.get("checkpoint.step")
    begin = "the beginning" if step is None else f"step {step}"
    begin = "the files that it has left" if may_have_saved(facts) else begin
    return f"; it failed when it was to save ({cause}), which is not charged, and goes on from {begin}"


_ENDS_WHEN_ASKED: Final = frozenset(
    {None, ExitCause.STOPPED, ExitCause.TERMINATED, ExitCause.NOT_STARTED, ExitCause.PREEMPTED}
)


def _has_let_grace_pass(context: Context, row: JobRow, state: Stopping, findings: ExitFindings) -> bool:
    """Return True if a job that saves when it is asked had to be killed when it was to be preempted."""
    asked = state.killed and state.reason is StopReason.PREEMPTION
    return asked and (findings.saves_when_asked or context.attempt_service.terms(row).saves_when_asked)


def _charge_for_grace(decision: PolicyDecision, job: Job, situation: Situation) -> PolicyDecision:
    """Return the decision about an attempt that was preempted only when it was killed, as its job's fault."""
    if decision.action.verb is not Verb.RESUME:
        return decision
    facts = decision.facts
    advanced = facts.get("progress.advanced")
    known = advanced if isinstance(advanced, bool) else None
    history = decision.history.charge(str(facts.get("root", "")), situation.effective, advanced=known)
    fact = f"and was killed after {readable_duration(job.grace)} of grace"
    reason = f"{decision.action.reason} {fact}; from now on it counts as a job that cannot save when asked"
    return replace(decision, action=replace(decision.action, reason=reason, charged=True), history=history)


def _hold_refused(decision: PolicyDecision, job: Job, situation: Situation, why: str) -> PolicyDecision:
    """Return a decision that holds a job until a person has acted; no ceiling counts it.

    The runner itself has refused its launch, or somebody has cancelled it in the engine's own queue.
    """
    history = _after_exit(job.history, situation, had_checkpoint=decision.history.had_checkpoint)
    return mark_overruled(
        replace(decision, action=Action(Verb.HOLD, "", why, charged=False), history=history)
    )


def _paused_at(context: Context, row: JobRow, state: Allocated, findings: ExitFindings) -> int | None:
    """Return the rung of its sweep at which a candidate has paused by itself, None if it has not."""
    terms = context.attempt_service.terms(row).sweep_terms
    asked = isinstance(state, Stopping) and state.reason not in {StopReason.PREEMPTION, StopReason.CHANGE}
    step = findings.ended.checkpoint_step
    if terms is None or asked or findings.ended.cause != ExitCause.STOPPED or step not in terms.rungs:
        return None
    return step


def _time_limit_reason(job: Job, state: Stopping) -> str:
    """Return the reason why a preempted job stays: another attempt would have no time at all."""
    limit = readable_duration(job.time_limit or timedelta())
    return f"time limit of {limit} reached when it was {_request_reason(state)}"


def _request_reason(state: Stopping) -> str:
    if state.reason is StopReason.PREEMPTION:
        return f"preempted for job {state.by}"
    return f"{'held' if state.reason is StopReason.HOLD else state.reason}, as asked"


_FREE: Final = frozenset({StopReason.RESTART, StopReason.CHANGE, StopReason.HOLD, StopReason.PREEMPTION})


def _after_exit(before: History, situation: Situation, *, had_checkpoint: bool) -> History:
    ended = before.add_attempt(situation.started or situation.now, situation.uptime)
    return replace(ended, had_checkpoint=had_checkpoint)


def _name_restarts(decision: PolicyDecision, job: Job) -> PolicyDecision:
    """Return a decision that names the command for a job that fails with its checkpoint, if it gives up."""
    facts, verdict = decision.facts, decision.action
    fails = facts.get("cause") == ExitCause.EXCEPTION and facts.get("progress.advanced") is False
    if verdict.verb is not Verb.GIVE_UP or not fails or facts.get("checkpoint.valid") is not True:
        return decision
    older = ", --from STEP with an older one" if facts.get("checkpoint.count") not in {None, 0, 1} else ""
    how = f"`runner restart {job.id} --from scratch` begins without it{older}"
    reason = f"{verdict.reason} (it has saved nothing newer than its checkpoint; {how})"
    return replace(decision, action=replace(verdict, reason=reason))


def _choose_start(
    decision: PolicyDecision, attempt: Attempt, findings: ExitFindings
) -> tuple[PolicyDecision, Start]:
    """Return a decision that can be carried out, and where the next attempt starts."""
    verdict, asked = decision.action, attempt.start
    waits = decision.facts.get("exit.class") == "no_start"
    older = tuple(step for step in findings.steps if asked.step is None or step <= asked.step)
    if not waits and older != findings.steps and decision.facts.get("progress.advanced") is not True:
        waits = verdict.start.source is Source.NEWEST  # newer ones are set aside once it has loaded its own
        findings = replace(findings, steps=older)
    if waits and verdict.verb in {Verb.RESUME, Verb.HOLD}:
        return decision, Start() if asked.source is StartFrom.SCRATCH else asked
    if verdict.verb is Verb.RESTART:
        return decision, Start() if verdict.limit is Guard.NO_CHECKPOINT else Start(StartFrom.SCRATCH)
    if verdict.verb is not Verb.RESUME or verdict.start.source is Source.NEWEST:
        return decision, Start()
    step = _step(verdict, findings)
    if step is None:
        return replace(decision, action=_hold_without_checkpoint(verdict)), Start()
    return decision, Start(StartFrom.STEP, step)


def _step(verdict: Action, findings: ExitFindings) -> int | None:
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


def _hold_without_checkpoint(verdict: Action) -> Action:
    where = str(verdict.start.source) if verdict.start.step is None else f"step {verdict.start.step}"
    why = f"there is no valid checkpoint to begin with ({where}); {verdict.reason}"
    return Action(Verb.HOLD, verdict.rule, why, charged=verdict.charged, limit=Guard.UNUSABLE_CHECKPOINTS)
