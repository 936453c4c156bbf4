"""The cause of the end of an attempt: one word for programs and one line for people.

An exit code alone is ambiguous: 137 is a kill by the runner, by the kernel, by somebody else, or a choice of
the program.  So the counter of the kernel and the result of the program come first.
"""

import signal
from dataclasses import dataclass, replace
from typing import Final

from runner.core.policy.causes import ExitCause


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence of the executor and of the run directory about an ended attempt."""

    exit_code: int | None
    oom_seen: bool
    engine_error: str
    result_cause: str | None  # from result.json, a hint by the program
    result_message: str
    writes_result: bool  # the workload writes a result: exit 0 alone does not mean success
    has_checkpoint: bool = False  # the attempt has left a valid checkpoint
    memory_limit: str = ""  # its memory limit as a job file writes it
    shared_memory_limit: str = ""  # size of /dev/shm as a job file writes it; empty: that of the host
    stop_requested: bool = False  # it was told to stop: exit 0 alone does not mean success
    never_started: bool = False  # it was told to stop before its program started
    rank: int | None = None  # of several processes, the one that ended first
    processes: int | None = None  # how many there were
    node: str = ""  # of that process; empty: unknown
    device: str = ""  # the GPU of that process; empty: it had none
    note: str = ""  # what their launcher has seen, such as a process that was stopped
    exception: str = (
        ""  # the last line of a traceback at the end of its log, or one that says what went wrong
    )
    told: ExitCause | None = None  # the cause that the end of its log tells
    hint: str = ""  # what can be done about that
    hint_of_start: str = ""  # what keeps the program from starting, and the line that works
    engine_cause: ExitCause | None = None  # why the engine has ended it; ``engine_error`` has the words


BY_SIGNAL: Final[dict[int, tuple[ExitCause, str]]] = {
    signal.SIGKILL: (ExitCause.KILLED, "killed from outside (SIGKILL)"),
    signal.SIGTERM: (ExitCause.TERMINATED, "terminated from outside (SIGTERM)"),
    signal.SIGSEGV: (ExitCause.SEGFAULT, "segmentation fault"),
    signal.SIGBUS: (ExitCause.BUS_ERROR, "bus error; often /dev/shm is too small (resources.shm)"),
    signal.SIGABRT: (ExitCause.ABORTED, "aborted (SIGABRT)"),
    signal.SIGFPE: (ExitCause.ARITHMETIC_ERROR, "arithmetic error (SIGFPE)"),
    signal.SIGILL: (ExitCause.ILLEGAL_INSTRUCTION, "illegal instruction (SIGILL)"),
    signal.SIGXFSZ: (ExitCause.DISK_FULL, "a file would be larger than its limit (SIGXFSZ)"),
}

BY_CODE: Final = {
    75: (ExitCause.STOPPED, "stopped after saving"),
    76: (ExitCause.LINEAGE_BUSY, "another process holds the lock of the lineage"),
    78: (ExitCause.INVALID_SPEC, "invalid configuration"),
    93: (ExitCause.DO_NOT_RESTART, "asked not to be restarted"),
    94: (ExitCause.SUPERSEDED, "a later attempt has taken the lineage over"),
    95: (ExitCause.RANK_LOST, "a process of the attempt does not answer"),
    96: (ExitCause.REPLICAS_DIFFER, "the processes hold other weights"),
    97: (ExitCause.NON_FINITE, "non-finite loss"),
    98: (ExitCause.DEVICE_OUT_OF_MEMORY, "device out of memory"),
    99: (ExitCause.NO_VALID_CHECKPOINT, "no valid checkpoint"),
    126: (ExitCause.NOT_EXECUTABLE, "the program or its interpreter cannot be executed"),
    127: (ExitCause.NOT_FOUND, "the program was not found"),
}


NO_START_CODES: Final = frozenset({126, 127})
"""Exit codes of a shell for what it cannot start."""

STOPPED_EARLY: Final = "stopped early"
"""Begins what a program says that succeeded before the last step of its plan."""

NO_MATCH: Final = "checkpoint.files has named nothing: "
"""Begins what is said of a program whose checkpoints were never found."""

BEGAN_AGAIN: Final = "the program did not go on from its checkpoint: "
"""Begins what is said of a program that did not look for its checkpoint."""

SENT_SIGNALS: Final = frozenset(
    {signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2}
)
"""Signals that somebody sends, unlike those of the kernel."""


def find_note(message: str) -> str:
    """Return the part of an end's message about checkpoints that are not found, or not looked for."""
    return next((message[message.index(note) :] for note in (NO_MATCH, BEGAN_AGAIN) if note in message), "")


def explain_exit(evidence: Evidence) -> tuple[str, str]:
    """Return (cause, message) of an ended attempt."""
    if evidence.engine_cause is not None and not _program_speaks(evidence):
        return evidence.engine_cause, evidence.engine_error or evidence.engine_cause.replace("_", " ")
    cause, message = _explain_rank(evidence)
    if evidence.exit_code == 0:
        return cause, message
    if evidence.rank is not None:
        message = f"{_describe_rank(evidence.rank, evidence)}: {message}"
    return cause, f"{message}; {evidence.note}" if evidence.note else message


def _describe_rank(rank: int, evidence: Evidence) -> str:
    """Return one of several processes in words, with its node and its device."""
    node = f" on {evidence.node}" if evidence.node else ""
    device = f" ({evidence.device})" if evidence.device else ""
    return f"rank {rank} of {evidence.processes or 'several'}{node}{device}"


def _explain_rank(evidence: Evidence) -> tuple[str, str]:
    """Return the same without the rank."""
    if not (evidence.oom_seen and _speaks(evidence.exit_code)):
        return _explain(evidence)
    cause, message = _explain(replace(evidence, oom_seen=False))
    return cause, f"{message}; a child process had been killed for memory"


def _program_speaks(evidence: Evidence) -> bool:
    """Return True if an attempt that its engine has ended has another cause, of which its program tells."""
    return is_complete(evidence) or (evidence.exit_code in BY_CODE and evidence.exit_code != 75)


def _speaks(code: int | None) -> bool:
    """Return True if an exit code has another cause than a kill for memory."""
    return code is not None and (code in BY_CODE or code - 128 in SENT_SIGNALS)


def _explain(evidence: Evidence) -> tuple[str, str]:
    match evidence:
        case Evidence(exit_code=None, never_started=True):
            return ExitCause.NOT_STARTED, "was told to stop before its program started"
        case Evidence(exit_code=None):
            return ExitCause.VANISHED, evidence.engine_error or "the attempt is gone and left no exit code"
        case Evidence(exit_code=0 | 75 as code) if code == 0 or is_complete(evidence):
            return _zero(evidence)
        case Evidence(oom_seen=True):
            return ExitCause.HOST_OOM, _starved(evidence)
        case Evidence(exit_code=75, writes_result=False, has_checkpoint=False):
            return (
                ExitCause.STOPPED,
                evidence.result_message or "left to be started again (exit 75, or 0 after SIGTERM)",
            )
        case Evidence(exit_code=int(code)) if code in BY_CODE:
            cause, message = BY_CODE[code]
            known = evidence.writes_result or code == 75
            words = message if known else f"{message} (exit code {code})"
            hint = f"; {evidence.hint_of_start}" if evidence.hint_of_start else ""
            return cause, evidence.result_message or f"{words}{hint}"
        case Evidence(told=ExitCause() as told) if _may_be_told(evidence):
            return told, _told_text(evidence)
        case Evidence(exit_code=int(code)) if code - 128 in BY_SIGNAL:
            cause, message = BY_SIGNAL[code - 128]
            if evidence.stop_requested and cause in {ExitCause.KILLED, ExitCause.TERMINATED}:
                message = f"stopped by the runner ({signal.Signals(code - 128).name})"
            last = f": {evidence.exception}" if evidence.exception and _may_be_told(evidence) else ""
            return cause, f"{message}{last}"
        case Evidence(exit_code=int(code), result_cause=None, result_message="") if (
            code - 128 in SENT_SIGNALS - {signal.SIGINT}  # also what a program makes of its own interrupt
        ):
            return ExitCause.KILLED, f"killed from outside ({signal.Signals(code - 128).name})"
        case _:
            said = evidence.result_cause if evidence.result_cause != ExitCause.COMPLETED else None
            raised = f": {evidence.exception}" if evidence.exception else ""
            words = f"{_in_words(evidence.exit_code)}{raised}"
            return said or ExitCause.EXCEPTION, evidence.result_message or evidence.engine_error or words


def _in_words(code: int | None) -> str:
    """Return an exit code, with the signal that ends a program so."""
    names = {128 + each: f" ({each.name})" for each in signal.Signals}
    return f"exit code {code}{names.get(code or 0, '')}"


def _may_be_told(evidence: Evidence) -> bool:
    """Return True if the log tells the cause of an end: nobody sent a signal or gave a cause.

    A program that reports a cause of its own knows it; a full shared memory it cannot know.
    """
    code = (evidence.exit_code or 0) - 128
    if code in SENT_SIGNALS or code == signal.SIGKILL:
        return False
    if evidence.told is ExitCause.SHARED_MEMORY:
        return evidence.result_cause in {None, ExitCause.EXCEPTION}
    return evidence.result_cause is None


def _told_text(evidence: Evidence) -> str:
    if evidence.told is ExitCause.SHARED_MEMORY:
        return _shared_memory_text(evidence)
    said = evidence.exception or _in_words(evidence.exit_code)
    return (
        f"{evidence.hint}: {said}" if evidence.hint and said not in evidence.hint else evidence.hint or said
    )


def _shared_memory_text(evidence: Evidence) -> str:
    if not evidence.shared_memory_limit:
        return "shared memory (/dev/shm of this host) is full; use fewer loader processes"
    return f"shared memory (/dev/shm) is full; raise resources.shm ({evidence.shared_memory_limit})"


def _starved(evidence: Evidence) -> str:
    """Return the message about a kill for memory, with the limit that a program can raise."""
    if evidence.writes_result or not evidence.memory_limit:
        return "the kernel killed a process for memory (resources.memory)"
    return f"the kernel killed a process; raise resources.memory ({evidence.memory_limit})"


def is_complete(evidence: Evidence) -> bool:
    """Return True if the attempt has completed its work."""
    if evidence.result_cause == ExitCause.COMPLETED:
        return evidence.exit_code in {0, 75}  # 75: it was told to stop, and had done its work all the same
    return evidence.exit_code == 0 and not evidence.writes_result and not evidence.stop_requested


def _zero(evidence: Evidence) -> tuple[str, str]:
    if not is_complete(evidence):
        if evidence.stop_requested and not evidence.writes_result and evidence.result_cause is None:
            return ExitCause.STOPPED, "exit 0 when it was told to stop: nothing says that its work is done"
        return ExitCause.NO_RESULT, "exit 0 without a result that says completed"
    if evidence.oom_seen:
        return ExitCause.COMPLETED, "a child process was killed for memory"
    if evidence.exception and not evidence.writes_result:
        return ExitCause.COMPLETED, f"its log ends with a traceback: {evidence.exception}"
    early = evidence.result_message if evidence.result_message.startswith(STOPPED_EARLY) else ""
    return ExitCause.COMPLETED, early
