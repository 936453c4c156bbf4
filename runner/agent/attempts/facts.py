"""The policy facts about an attempt, from its end, its reports and its checkpoints.

What the program wrote is a hint only; exit codes and kernel counters come from the executor, and checkpoints
are verified.  Facts that are unknown are left out.
"""

import hashlib
import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from jobs.contract import AttemptSpec, CheckpointPlan, Effective, ExitCode, Phase, Result, Status
from runner.agent.attempts.diagnosis import Diagnosis, diagnose, find_exception
from runner.core.job.attempt import Attempt, AttemptEnd, StartFrom
from runner.core.job.exit_cause import Evidence, is_complete
from runner.core.policy.facts import FactValue
from runner.core.policy.heartbeat import ProgressReport
from runner.core.policy.history import fingerprint
from runner.core.ports.checkpoints import SavedCheckpoints
from runner.core.ports.executor import Gone

KILLS: Final = frozenset(
    {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}
)
"""Signals after which what a program has printed last tells nothing about its end."""


@dataclass(frozen=True, slots=True)
class AttemptReports:
    """The reports of an attempt; None or empty if they cannot be read."""

    status: Status | None = None
    result: Result | None = None
    effective: Effective | None = None
    rates: tuple[float, ...] = ()  # items per second, from metrics.jsonl
    log_tail: bytes = b""


def of_end(
    gone: Gone, ended: AttemptEnd, evidence: Evidence, reports: AttemptReports
) -> dict[str, FactValue]:
    """Return the facts about the end of an attempt."""
    facts: dict[str, FactValue] = {
        "exit.class": _class(evidence),
        "cause": ended.cause,
        "root": fingerprint(ended.cause, ended.message),
        "oom.host": gone.oom_seen,
    }
    if gone.reason is not None:
        facts["engine.ended"] = str(gone.reason)
    if gone.exit_code is not None:
        facts["exit.code"] = gone.exit_code
    if facts["exit.class"] == "exception" and (raised := find_exception(reports.log_tail)) is not None:
        facts["exit.exception"] = raised.kind
    if (device := _out_of_device_memory(evidence)) is not None:
        facts["oom.device"] = device
    if (
        evidence.exit_code == ExitCode.NON_FINITE
        or evidence.result_cause is not None
        or ended.cause == "non_finite"
    ):
        facts["nan"] = ended.cause == "non_finite"
    return facts


def of_terminal(touched_s: float | None, now: datetime) -> dict[str, FactValue]:
    """Return the idle time of the terminals of an attempt, last used at a Unix time."""
    return {} if touched_s is None else {"terminal.idle_s": max(now.timestamp() - touched_s, 0.0)}


def _class(evidence: Evidence) -> str:
    code = evidence.exit_code
    if code is None:
        return "no_start" if evidence.never_started else "vanished"
    if is_complete(evidence):
        return "success"
    if code == 0:
        return "no_result"
    return "signal" if 128 < code <= 128 + 64 else "exception"


def _out_of_device_memory(evidence: Evidence) -> bool | None:
    """Return True if a device had no memory left; None if that is unknown."""
    said = {evidence.result_cause, *(("device_out_of_memory",) if evidence.exit_code == 98 else ())}
    if "device_out_of_memory" in said:
        return True
    if evidence.result_cause is not None or evidence.exit_code == 0:
        return False
    return True if evidence.told == "device_out_of_memory" else None


def tell_cause(reports: AttemptReports, exit_code: int | None) -> Diagnosis | None:
    """Return the cause that the message of a result, or else the end of the log, tells.

    A killed program may have printed it long before, and gone on.
    """
    if exit_code in {None, 0} or (exit_code or 0) - 128 in KILLS:
        return None
    said = b"" if reports.result is None else reports.result.message.encode()
    return (diagnose(said, exit_code) if said else None) or diagnose(reports.log_tail, exit_code)


def of_progress(reports: AttemptReports) -> dict[str, FactValue]:
    """Return the facts about the phase and the progress of an attempt, as it has reported them."""
    facts: dict[str, FactValue] = {}
    status, result = reports.status, reports.result
    phase = result.phase if result is not None and result.phase is not None else status and status.phase
    if isinstance(phase, Phase):
        facts["phase"] = phase.value
    if status is not None:
        facts |= of_status(status)
    if result is not None:
        facts["progress.step"] = result.step
    length = reports.effective.steps_per_epoch if reports.effective is not None else None
    if length and isinstance(step := facts.get("progress.step"), int):
        facts["progress.epoch_fraction"] = step % length / length
    if reports.rates:
        facts["progress.rate"] = sum(reports.rates) / len(reports.rates)
    return facts


def of_status(status: Status) -> dict[str, FactValue]:
    """Return the facts about the progress in a heartbeat."""
    facts: dict[str, FactValue] = {} if status.step is None else {"progress.step": status.step}
    if status.data_wait is not None:
        facts["data_wait"] = status.data_wait
    if status.items_per_s is not None:
        facts["progress.rate_recent"] = status.items_per_s
    if status.total_steps:
        facts["progress.total"] = status.total_steps
        if status.step is not None:
            facts["progress.total_fraction"] = min(status.step / status.total_steps, 1.0)
    return facts


def progress_report(status: Status | None) -> ProgressReport | None:
    """Return a heartbeat as the learner of silences takes it."""
    if status is None:
        return None
    return ProgressReport(
        status.phase.value,
        status.step or 0,
        status.time,
        status.items,
        status.resumed_from or 0,
        status.step_s,
    )


def of_checkpoints(
    saved: SavedCheckpoints,
    attempt: Attempt,
    now: datetime,
    *,
    keeps_files: bool = False,
    shown: int | None = None,
) -> dict[str, FactValue]:
    """Return the facts about the verified checkpoints of a lineage; ``shown`` is the last step in its report.

    A checkpoint that could not be verified may be valid or not: every fact that depends on it is left out.
    So is the progress of a program that keeps its files, as they may hold all of it.  What is newer than the
    step that an attempt was to start from is set aside once it has loaded that: before, it is no progress.
    """
    waiting = (
        attempt.start.source is StartFrom.STEP and saved.advanced is None and saved.attempt != attempt.number
    )
    there = bool(saved.steps or saved.rejected or saved.unverified)
    by_step = not waiting and (saved.newest or 0) > (attempt.began or 0)
    advanced = by_step if saved.advanced is None else saved.advanced
    sure = saved.complete and not saved.unverified
    known: dict[str, tuple[FactValue, bool]] = {
        "checkpoint.present": (there, there or saved.complete),
        "checkpoint.valid": (bool(saved.steps), bool(saved.steps) or sure),
        "checkpoint.count": (len(saved.steps), sure),
        "checkpoint.rejected": (len(saved.rejected), sure),
        "progress.advanced": (advanced, advanced or (sure and (there or not keeps_files))),
        "checkpoint.only_first": (
            bool(saved.only_first) and attempt.lineage == 1 and (saved.newest or 0) >= (shown or 0),
            saved.only_first is not None and sure,
        ),
    }
    facts = {name: value for name, (value, is_known) in known.items() if is_known}
    if saved.newest is not None and saved.are_steps:
        facts["checkpoint.step"] = min(saved.newest, attempt.began or 0) if waiting else saved.newest
    if saved.changed is not None:
        facts["checkpoint.age_s"] = max((now - saved.changed).total_seconds(), 0.0)
    if saved.attempt == attempt.number:  # what runs next is what made it
        facts["checkpoint.compatible"] = True
    return facts


# --- What took effect ---------------------------------------------------------------------------------


def of_settings(spec: AttemptSpec, profile: str, effective: Effective | None) -> dict[str, FactValue]:
    """Return the settings that took effect; those of the spec if the program has not reported any.

    ``profile`` is the name of the one that the job starts from.
    """
    facts: dict[str, FactValue] = {"effective.profile": profile}
    facts |= _asked(spec)
    if spec.parallel.nodes > 1:
        facts["effective.nodes"] = spec.parallel.nodes
    return facts if effective is None else {**facts, **_reported(effective)}


def _asked(spec: AttemptSpec) -> dict[str, FactValue]:
    profile = spec.profile
    facts: dict[str, FactValue] = {"effective.workers": profile.loader_workers}
    rows = profile.micro_batch or getattr(spec.workload, "batch_size", None)
    if isinstance(rows, int):
        facts["effective.micro_batch"] = rows
    if isinstance(evaluated := profile.eval_batch or rows, int):
        facts["effective.eval_batch"] = evaluated
    if profile.precision != "auto":
        facts["effective.precision"] = profile.precision
    return facts


def _reported(effective: Effective) -> dict[str, FactValue]:
    facts: dict[str, FactValue] = {
        "effective.precision": effective.precision,
        "effective.compile": effective.compile_graphs > 0,
    }
    if effective.micro_batch is not None:
        facts["effective.micro_batch"] = effective.micro_batch
        facts["effective.eval_batch"] = _number(effective, "eval_batch") or effective.micro_batch
    if (workers := _number(effective, "loader_workers")) is not None:
        facts["effective.workers"] = workers
    return facts


def _number(effective: Effective, switch: str) -> int | None:
    known = effective.switches.get(switch)
    text = (known.applied or "") if known else ""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None


def digest_settings(spec: AttemptSpec, settings: Mapping[str, FactValue]) -> str:
    """Return a digest that is equal for attempts with equal settings, whatever their numbers are."""
    same = spec.model_copy(
        update={
            "job_id": "",
            "attempt": 1,
            "lineage": 1,
            "resume_step": None,
            "checkpoint": CheckpointPlan(),
        }
    )
    text = same.model_dump_json() + json.dumps(settings, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
