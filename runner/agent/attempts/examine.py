"""Examining an attempt: the evidence of its end, and the progress of one that runs.

What the program wrote is read from its run directory and is not trusted; checkpoints are verified.  A report
that cannot be read, for whatever reason, leaves its facts unknown: the end of an attempt is always recorded.
"""

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Final, TypeVar

from jobs.contract import AttemptSpec, Program, RunPaths, Status
from runner.agent.attempts import facts as attempt_facts
from runner.agent.attempts.checkpoints import read_saved_of
from runner.agent.attempts.diagnosis import LOG_TAIL_BYTES, find_complaint, find_exception
from runner.agent.attempts.missing import explain_missing
from runner.agent.attempts.start import explain_start
from runner.agent.interface import ExitFindings, PinnedPolicy, ProgressProbe
from runner.agent.ports import RunDirectory
from runner.base.errors import Unavailable
from runner.base.textfile import one_line
from runner.base.threads import run_guarded
from runner.base.units import format_size
from runner.core.accounting.curve_set import LogNumbers
from runner.core.job.attempt import Attempt, AttemptEnd
from runner.core.job.exit_cause import (
    BEGAN_AGAIN,
    NO_MATCH,
    NO_START_CODES,
    Evidence,
    explain_exit,
    is_complete,
)
from runner.core.job.states import State, Stopping
from runner.core.policy.adjustments import Overrides
from runner.core.policy.catalog import select_facts, validate_facts
from runner.core.policy.causes import ExitCause
from runner.core.policy.facts import DecisionPoint, FactValue
from runner.core.ports.checkpoints import SavedCheckpoints, Verification
from runner.core.ports.executor import Gone
from runner.files.revision import Revision

T = TypeVar("T")

ROOM_FOR_WORDS_BYTES: Final = 64 * 1024
"""A program whose disk has less free when it has failed may have had no room for a traceback."""

MOST_LEFT: Final = 5
"""Names of processes that were left running of which the message of an end tells."""

MAX_MESSAGE: Final = 800
"""Characters of the message of an end."""


@dataclass(frozen=True, slots=True)
class ExaminedAttempt:
    """An attempt with its revision, its spec and its run directory."""

    attempt: Attempt
    revision: Revision
    spec: AttemptSpec
    directory: RunDirectory
    in_container: bool
    paths_in_code: Callable[[], Collection[str]]
    """Returns the paths in the snapshot of its code."""

    @property
    def paths(self) -> RunPaths:
        """The paths of the attempt."""
        return self.directory.paths(self.attempt.number, self.attempt.lineage)

    @property
    def is_program(self) -> bool:
        """Return True if the workload is a program of the user's own."""
        return isinstance(self.revision.job.workload, Program)


def examine_exit(
    run: ExaminedAttempt, state: State, gone: Gone, pinned: PinnedPolicy, now: datetime
) -> ExitFindings:
    """Return the evidence about an attempt that has ended, in a job of a state and a policy.

    Raises:
        Unavailable: nothing can be read now; examine it again.
    """
    reports = _read_reports(run)
    unread = SavedCheckpoints(complete=False)
    saved = _read(
        run,
        "checkpoints",
        partial(read_saved_of, run.directory, run.paths, run.revision, Verification.CONTENT),
        unread,
    )
    found = _read(run, "reports", partial(_findings, run, state, gone, pinned, now, reports, saved), None)
    return found or _findings(run, state, gone, pinned, now, attempt_facts.AttemptReports(), unread)


def _read(run: ExaminedAttempt, what: str, read: Callable[[], T], unknown: T) -> T:
    """Return the result of ``read``, ``unknown`` if it fails: no report keeps an attempt from ending."""
    unavailable: list[Unavailable] = []

    def expecting_unavailable() -> T:
        try:
            return read()
        except Unavailable as error:
            unavailable.append(error)
            return unknown

    found = run_guarded(f"reading {what}", expecting_unavailable, attempt=run.attempt.number)
    if unavailable:
        raise unavailable[0]
    return unknown if found is None else found


def _findings(  # noqa: PLR0913, PLR0917  (evidence from all of these)
    run: ExaminedAttempt,
    state: State,
    gone: Gone,
    pinned: PinnedPolicy,
    now: datetime,
    reports: attempt_facts.AttemptReports,
    saved: SavedCheckpoints,
) -> ExitFindings:
    attempt, revision = run.attempt, run.revision
    evidence = replace(
        _without_last_words(run, _evidence(gone, reports, reports_expected=not run.is_program)),
        hint_of_start=_hint_of_start(run, gone, reports),
        has_checkpoint=saved.attempt == attempt.number,
        memory_limit=format_size(revision.memory(attempt.turned)),
        shared_memory_limit=format_size(revision.job.resources.shm_bytes) if run.in_container else "",
        stop_requested=_was_stop_requested(state, gone),
        node=_node(reports, attempt),
    )
    end = _attempt_end(gone, evidence, saved)
    settings = {
        **attempt_facts.of_settings(run.spec, revision.profile_name(attempt.turned), reports.effective),
        "effective.memory": revision.memory(attempt.turned),
    }
    facts: dict[str, FactValue] = {
        **attempt_facts.of_end(gone, end, evidence, reports),
        **_progress(run, reports),
        **attempt_facts.of_checkpoints(
            saved, attempt, now, keeps_files=revision.keeps_files, shown=_shown_step(reports, saved)
        ),
        **settings,
        "turnable": not run.is_program or _reports_rows(reports) or _has_overrides(attempt),
    }
    checked = validate_facts(facts, DecisionPoint.EXIT)
    effective = {name: value for name, value in checked.items() if name in settings}
    return ExitFindings(
        _with_more(end, _missing(run, reports, end), _left(run), _of_checkpoints(saved)),
        pinned,
        checked,
        saved.steps,
        attempt_facts.digest_settings(run.spec, effective),
        reports.result.step if reports.result and end.cause == "non_finite" else None,
        saves_when_asked=_saves_when_asked(run, reports),
        last_sign=_last_sign(reports),
    )


def _shown_step(reports: attempt_facts.AttemptReports, saved: SavedCheckpoints) -> int | None:
    """Return the last step that an attempt has reported; None if its checkpoints have none."""
    return reports.status.step if reports.status is not None and saved.are_steps else None


def _last_sign(reports: attempt_facts.AttemptReports) -> datetime | None:
    """Return the time of the last report of an attempt's program, by its own clock."""
    try:
        return None if reports.status is None else datetime.fromtimestamp(reports.status.time, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _with_more(end: AttemptEnd, *told: str) -> AttemptEnd:
    """Return an end that tells more: what the program misses, or that it saves under other names."""
    return replace(end, message="; ".join(filter(None, (end.message, *told)))[:MAX_MESSAGE])


def _of_checkpoints(saved: SavedCheckpoints) -> str:
    """Return that no checkpoint was ever found, or that the program did not look for its newest."""
    if saved.missed:
        return f"{NO_MATCH}{saved.missed}"
    how = "checkpoint.resume_args, or RUNNER_RESUME_FROM, gives it the path"
    return f"{BEGAN_AGAIN}{saved.went_back}; {how}" if saved.went_back else ""


def _missing(run: ExaminedAttempt, reports: attempt_facts.AttemptReports, end: AttemptEnd) -> str:
    """Return the file that a program misses and that lies in the directory of its code."""
    if not run.is_program:
        return ""
    raised = find_exception(reports.log_tail)
    said = raised.line if raised is not None else find_complaint(reports.log_tail) if end.exit_code else ""
    explain = partial(explain_missing, said, run.revision, run.paths.work_dir, run.paths_in_code)
    return _read(run, "code", partial(explain, in_container=run.in_container), "")


def _left(run: ExaminedAttempt) -> str:
    """Return the processes that a program has left running, and that the end of its attempt has ended."""
    said = _read(run, "names of processes", partial(run.directory.tail, run.paths.left, LOG_TAIL_BYTES), b"")
    names = [one_line(name) for name in said.decode(errors="replace").split("\n") if name]
    if not names:
        return ""
    kinds = list(dict.fromkeys(names))
    more = f" and {len(kinds) - MOST_LEFT} others" if len(kinds) > MOST_LEFT else ""
    number = f"{len(names)} processes were" if len(names) > 1 else "1 process was"
    return f"{number} left running, and ended with the attempt: {', '.join(kinds[:MOST_LEFT])}{more}"


def _saves_when_asked(run: ExaminedAttempt, reports: attempt_facts.AttemptReports) -> bool:
    """Return True if an attempt saves when it is asked to stop; a program of the user's own reports that."""
    if not run.spec.checkpoint.on_stop:
        return False
    return not run.is_program or (reports.status is not None and reports.status.saves_when_asked is True)


def _progress(run: ExaminedAttempt, reports: attempt_facts.AttemptReports) -> dict[str, FactValue]:
    """Return the facts about the progress of an attempt; without reports, those that its log tells.

    A log is no heartbeat: nothing is concluded from its silence.
    """
    if reports.status is None and reports.result is None:
        told = _read(run, "log", partial(read_log_status, run.directory, run.paths, run.revision), None)
        return {} if told is None else attempt_facts.of_status(told)
    return attempt_facts.of_progress(reports)


def read_log_status(directory: RunDirectory, paths: RunPaths, revision: Revision) -> Status | None:
    """Return the progress that the log of an attempt tells; None if it tells none, or of a built-in workload.

    The total number of steps is that of the job file, if it says one.
    """
    plan = revision.job.workload
    if not isinstance(plan, Program):
        return None
    told = directory.log_status(paths, revision.job.progress.pattern)
    if told is None or plan.steps is None:
        return told
    return told.model_copy(update={"total_steps": plan.steps})


def read_log_numbers(
    directory: RunDirectory, paths: RunPaths, revision: Revision, *, ended: bool
) -> tuple[LogNumbers, ...]:
    """Return the numbers of the lines that the log has gained; none of a built-in workload."""
    if not isinstance(revision.job.workload, Program):
        return ()
    return directory.log_numbers(paths, revision.job.progress.pattern, ended=ended)


def probe_progress(run: ExaminedAttempt, now: datetime) -> ProgressProbe:
    """Return the progress of a running attempt.

    It is called every few seconds, so the sizes of checkpoints are compared with the manifest, and not their
    content.
    """
    directory, paths = run.directory, run.paths
    reports = attempt_facts.AttemptReports(directory.status(paths), effective=directory.effective(paths))
    profile = run.revision.profile_name(run.attempt.turned)
    settings = attempt_facts.of_settings(run.spec, profile, reports.effective)
    facts = {
        **_progress(run, reports),
        **attempt_facts.of_checkpoints(
            read_saved_of(directory, paths, run.revision, Verification.SIZES),
            run.attempt,
            now,
            keeps_files=run.revision.keeps_files,
        ),
        **settings,
    }
    if not run.is_program:
        facts["checkpoint.on_demand"] = True
    elif isinstance(run.spec.workload, Program) and run.spec.workload.terminal:
        facts |= attempt_facts.of_terminal(directory.terminal_touched(paths), now)
    checked = select_facts(facts, DecisionPoint.WATCH)
    effective = {name: value for name, value in checked.items() if name in settings}
    report = attempt_facts.progress_report(reports.status)
    digest = attempt_facts.digest_settings(run.spec, effective)
    return ProgressProbe(
        report,
        checked,
        digest,
        reports_expected=not run.is_program,
        saves_when_asked=_saves_when_asked(run, reports),
    )


def _read_reports(run: ExaminedAttempt) -> attempt_facts.AttemptReports:
    directory, paths = run.directory, run.paths
    nothing: frozenset[str] = frozenset()
    written = _read(run, "names of reports", partial(directory.there, paths), nothing)

    def report(name: str, read: Callable[[RunPaths], T], unknown: T) -> T:
        return _read(run, name, partial(read, paths), unknown) if name in written else unknown

    return attempt_facts.AttemptReports(
        report(paths.STATUS, directory.status, None),
        report(paths.RESULT, directory.result, None),
        report(paths.EFFECTIVE, directory.effective, None),
        report(paths.METRICS, directory.rates, ()),
        _read(run, "log", partial(directory.tail, paths.log, LOG_TAIL_BYTES), b""),
    )


def _hint_of_start(run: ExaminedAttempt, gone: Gone, reports: attempt_facts.AttemptReports) -> str:
    """Return the obstacle to a program's start, of an exit code that says that it did not."""
    plan = run.revision.job.workload
    if not isinstance(plan, Program) or gone.exit_code not in NO_START_CODES:
        return ""
    nothing: Collection[str] = ()
    in_code = partial(_read, run, "code", run.paths_in_code, nothing)
    output = reports.log_tail or gone.error.encode()  # the container's own, before there is a log
    return explain_start(plan.command, output, in_code, in_container=run.in_container)


def _node(reports: attempt_facts.AttemptReports, attempt: Attempt) -> str:
    """Return the node of the process that decided the end; without an engine that has nodes, this host."""
    result, host = reports.result, attempt.host or os.uname().nodename
    if result is None or result.rank is None:
        return ""
    return result.node or ("" if set("[,") & set(host) else host)


def _has_overrides(attempt: Attempt) -> bool:
    """Return True if policy adjustments have overridden settings of the program."""
    turned = attempt.turned
    return turned != Overrides(avoid=turned.avoid, nodes=turned.nodes, memory_bytes=turned.memory_bytes)


def _was_stop_requested(state: State, gone: Gone) -> bool:
    """Return True if an attempt was asked to stop before it ended."""
    return isinstance(state, Stopping) and (gone.at is None or gone.at >= state.since)


def _evidence(gone: Gone, reports: attempt_facts.AttemptReports, *, reports_expected: bool) -> Evidence:
    result, raised = reports.result, find_exception(reports.log_tail)
    told = attempt_facts.tell_cause(reports, gone.exit_code)
    complaint = find_complaint(reports.log_tail) if gone.exit_code else ""
    return Evidence(
        exit_code=gone.exit_code,
        oom_seen=gone.oom_seen,
        engine_error=gone.error,
        result_cause=None if result is None else str(result.cause),
        result_message="" if result is None else result.message,
        writes_result=reports_expected,
        rank=None if result is None else result.rank,
        processes=None if result is None else result.processes,
        device="" if result is None else result.device or "",
        note="" if result is None else result.note,
        exception=(told and told.line) or (complaint if raised is None else raised.line),
        told=None if told is None else told.cause,
        hint="" if told is None else told.hint,
        engine_cause=None if gone.reason is None else ExitCause(gone.reason),
        never_started=gone.never_started and reports == attempt_facts.AttemptReports(),
    )


def _without_last_words(run: ExaminedAttempt, evidence: Evidence) -> Evidence:
    """Return the evidence with a full disk as the cause of a failure of which the log could not tell."""
    if not evidence.exit_code or evidence.told or evidence.exception or evidence.result_cause:
        return evidence
    room = _read(run, "room", partial(run.directory.room_to_save, run.paths), None)
    if room is None or room.free_bytes >= ROOM_FOR_WORDS_BYTES:
        return evidence
    hint = f"the disk of {run.directory.root} is full, so the last words of its log may be lost"
    return replace(evidence, told=ExitCause.DISK_FULL, hint=hint)


def _reports_rows(reports: attempt_facts.AttemptReports) -> bool:
    """Return True if a program has asked for the rows of a forward pass, and so takes another number."""
    return reports.effective is not None and reports.effective.micro_batch is not None


def _attempt_end(gone: Gone, evidence: Evidence, saved: SavedCheckpoints) -> AttemptEnd:
    cause, message = explain_exit(evidence)
    return AttemptEnd(
        exit_code=gone.exit_code,
        cause=cause,
        message=" ".join(message.split())[:MAX_MESSAGE],
        oom_seen=gone.oom_seen,
        completed=is_complete(evidence),
        checkpoint_step=saved.newest,
        checkpoints_rejected=saved.rejected,
        has_versions=saved.has_versions,
    )
