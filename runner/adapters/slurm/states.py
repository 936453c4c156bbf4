"""Meaning of Slurm's words about a job for the attempt that it is: a pure table.

Success is believed of the exit status alone that the batch script itself has written; a zero that only Slurm
knows is unknown, because a second start of the script that runs nothing ends with zero, too.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from signal import SIGKILL
from typing import Final, TypeAlias

from runner.core.ports.executor import Alive, EndReason, Gone, Key, Observation, Waiting

WAITING: Final = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
)
SUSPENDED: Final = frozenset({"SUSPENDED", "STOPPED"})

ENDED: Final = frozenset({"COMPLETED", "FAILED", "OUT_OF_MEMORY", "LAUNCH_FAILED", "RECONFIG_FAIL"})
"""States that end a job, beside those of ``REASONS``; one that nobody knows here ends none."""

REASONS: Final = {
    "PREEMPTED": EndReason.PREEMPTED,
    "NODE_FAIL": EndReason.NODE_FAILED,
    "BOOT_FAIL": EndReason.NODE_FAILED,
    "TIMEOUT": EndReason.OUT_OF_TIME,
    "DEADLINE": EndReason.OUT_OF_TIME,
    "CANCELLED": EndReason.CANCELLED_ELSEWHERE,
    "REVOKED": EndReason.CANCELLED_ELSEWHERE,
}
"""States of Slurm that end a job for a reason that is not the program's."""

STARTED_BEFORE: Final = 79
"""The exit code of ``batch.sh`` where it finds that the attempt was started before."""

NOWHERE: Final = frozenset({"", "n/a"})
"""The node of a job that has none."""

FAILED_START: Final = re.compile(r"Duplicate jobid|Prolog")
"""Beginnings of the reasons for which slurmctld drains a node that could not start a job."""

FIRST_PERSON: Final = 1000
"""The smallest uid of a person: Slurm cancels jobs as root or as its own user."""

_CANCELLER: Final = re.compile(r"by (\d+)")

COMPLETING: Final = timedelta(seconds=60)
"""Time in which Slurm cleans up after an attempt whose exit status is known."""

NO_ESTIMATE: Final = timedelta(days=300)
"""Slurm says a year where no job has a time limit; that is no estimate."""

WORDS: Final = {
    "Resources": "waits for free resources",
    "Priority": "jobs with a higher priority go first",
    "Dependency": "waits for another job of Slurm",
    "BeginTime": "its begin time has not come",
    "JobHeldUser": "was held by its user with scontrol hold; scontrol release lets it go on",
    "JobHeldAdmin": "was held by an administrator of Slurm; only an administrator can release it",
    "ReqNodeNotAvail": "the nodes that it asks for are down, drained or reserved",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is inactive",
    "PartitionNodeLimit": "asks for more than its partition allows",
    "PartitionTimeLimit": "its time limit is longer than its partition allows",
    "Reservation": "waits for its reservation",
    "Licenses": "waits for a license",
    "Prolog": "its node is being prepared",
    "Cleaning": "an earlier start of it is being cleaned up",
    "NodeDown": "a node that it asks for is down",
    "BadConstraints": "no node has what it asks for",
    "AccountNotAllowed": "its account may not use this partition",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its QOS is not valid",
    "QOSNotAllowed": "its QOS may not use this partition",
    "None": "Slurm is about to look at it",
}
"""Slurm's reasons in words; the others are told as they are."""

_LIMITS: Final = re.compile(r"(QOS|Assoc)(Max|Grp|Min)\w*|MaxSubmit\w*")


@dataclass(frozen=True, slots=True)
class Row:
    """One job in the answer of ``squeue``."""

    number: str
    state: str
    reason: str
    node: str
    uid: int
    starts: str
    status: int  # as wait(2) has it: signal, and code times 256
    name: str
    output: str = ""  # where its batch script writes; nobody can change it once it has begun

    @property
    def waits(self) -> bool:
        return self.state in WAITING

    @property
    def ended(self) -> bool:
        return self.state in ENDED or self.state in REASONS


@dataclass(frozen=True, slots=True)
class Claim:
    """Note that the batch script wrote when it began the attempt."""

    number: str
    node: str  # of several nodes, as Slurm writes them: node[1-2]
    gpus: tuple[str, ...] = ()

    @property
    def has_many_nodes(self) -> bool:
        return not set("[,").isdisjoint(self.node)


@dataclass(frozen=True, slots=True)
class SlurmEvidence:
    """Contents of the files of an attempt, and this daemon's own requests to Slurm."""

    claim: Claim | None = None
    exit_code: int | None = None
    exited_at: datetime | None = None
    cancelled: int | None = None  # the signal for which it was taken out of Slurm's queue
    killed: bool = False  # SIGKILL was sent
    restarted: bool = False  # Slurm had put it back into its queue, where it was cancelled
    said: str = ""  # the last line that the batch script or Slurm's node has printed


@dataclass(frozen=True, slots=True)
class Missing:
    """Slurm does not know the job, or has ended it and its exit status is not there yet."""


@dataclass(frozen=True, slots=True)
class StartedTwice:
    """Slurm is about to start the attempt again; the job must be cancelled."""


Verdict: TypeAlias = Observation | Missing | StartedTwice

FIELDS: Final = (
    "JobID",
    "State",
    "Reason",
    "BatchHost",
    "UserID",
    "StartTime",
    "exit_code",
    "Name",
    "STDOUT",
)
_STATUS: Final = re.compile(r"(\d+)(?::(\d+))?")


def query(mark: str) -> str:
    """Return the fields that ``squeue --Format`` is asked for; the mark is in each row of its answer.

    Anybody may give his job a name of several lines, which must not look like the row of another job.
    """
    first, *others = FIELDS
    return ",".join([f"{first}:|{mark}|", *(f"{name}:|" for name in others)])


def parse_rows(text: str, mark: str) -> list[Row]:
    """Return the jobs in an answer to a query; the last two fields may have any character."""
    rows = []
    parts = re.split(rf"^(\d+)\|{mark}\|", text, flags=re.MULTILINE)[1:]
    for number, rest in zip(parts[::2], parts[1::2], strict=True):
        fields = rest.removesuffix("\n").split("|", len(FIELDS) - 2)
        if len(fields) < len(FIELDS) - 1 or not fields[3].isdecimal():
            continue
        state, reason, node, uid, starts, code, name, output = fields
        if (status := _status(code, by_wait=True)) is not None:
            rows.append(
                Row(number, state, reason, node, int(uid), starts, status, name, output.removesuffix("|"))
            )
    return rows


def _status(text: str, *, by_wait: bool = False) -> int | None:
    """Return an exit status as wait(2) has it, of ``CODE:SIGNAL`` or ``by_wait`` of that number itself."""
    found = _STATUS.fullmatch(text)
    if found is None:
        return None
    if by_wait and found[2] is None:
        return int(found[1])
    return int(found[1]) * 256 + int(found[2] or 0) % 128


def judge(key: Key, row: Row | None, seen: SlurmEvidence, now: datetime) -> Verdict:
    """Return the state of an attempt; ``row`` is its job, None if Slurm does not know it."""
    if seen.restarted and (row is None or row.ended):
        return started_twice(key, "" if row is None else row.number)
    if row is None:
        return _judge_forgotten(key, seen)
    if row.waits:
        if seen.exit_code is not None or seen.claim is not None:
            return StartedTwice()
        return Waiting(key, f"Slurm: {describe_wait(row.reason)}", estimate(row.starts, now))
    if not row.ended:
        return _judge_live(key, row, seen, now)
    return _judge_ended(key, row, seen)


def _judge_live(key: Key, row: Row, seen: SlurmEvidence, now: datetime) -> Verdict:
    """Return the state of a job that is on its node; it has begun when its script has claimed it."""
    if seen.exited_at is not None and now - seen.exited_at > COMPLETING:
        return Gone(key, seen.exit_code, at=seen.exited_at)
    if seen.claim is None:
        return Waiting(key, f"Slurm: {row.node} is about to start it")
    return alive(key, seen, row)


def alive(key: Key, seen: SlurmEvidence, row: Row | None = None) -> Alive:
    """Return an attempt that has not ended; its node and GPUs are known from the claim."""
    node = seen.claim.node if seen.claim is not None else row.node if row is not None else None
    gpus = () if seen.claim is None else tuple(f"gpu:{number}" for number in seen.claim.gpus)
    return Alive(key, host=node, devices=gpus, suspended=row is not None and row.state in SUSPENDED)


def started_twice(key: Key, number: str) -> Gone:
    """Return the end of an attempt that Slurm has put back into its queue after it had begun."""
    why = f"Slurm has put job {number} back into its queue although it had begun"
    return Gone(key, None, error=why, reason=EndReason.STARTED_TWICE)


def left_alone(key: Key, seen: SlurmEvidence) -> Gone | None:
    """Return an end about which Slurm need not be asked, None if there is no such end."""
    if seen.exit_code == 0:
        return Gone(key, 0, at=seen.exited_at)
    return None


def may_have_failed_to_start(row: Row, seen: SlurmEvidence) -> bool:
    """Return True if Slurm itself may have cancelled a job: it had a node, and its script never ran.

    A node that cannot start a job that must not be requeued cancels it, and is drained by slurmctld.
    """
    has_begun = seen.claim is not None or seen.exit_code is not None
    by_us = seen.killed or seen.cancelled is not None
    return row.state == "CANCELLED" and row.node not in NOWHERE and not has_begun and not by_us


def parse_drained(text: str, row: Row) -> str | None:
    """Return the reason for a drained node, since it was given to a job, from ``sinfo``'s ``%H|%E``.

    None if that was before, by a person, or for another reason than that a job could not be started.
    """
    for line in text.splitlines():
        at, _, why = line.partition("|")
        if at >= row.starts and FAILED_START.match(why):
            return why.strip()
    return None


def failed_start(key: Key, row: Row, why: str) -> Gone:
    """Return the end of an attempt whose job was cancelled because its node could not start it."""
    error = f"Slurm could not start job {row.number} on {row.node} and has cancelled it: {why}"
    return Gone(key, None, error=error, never_started=True, reason=EndReason.NODE_FAILED)


def was_cancelled_by_person(known: Row | None) -> bool:
    """Return True if Slurm's accounting names a person who has cancelled a job, and not Slurm or nobody."""
    found = None if known is None else _CANCELLER.fullmatch(known.reason)
    return found is not None and int(found[1]) >= FIRST_PERSON


def _judge_forgotten(key: Key, seen: SlurmEvidence) -> Verdict:
    if seen.exit_code is not None:
        return Gone(key, seen.exit_code, at=seen.exited_at)
    if seen.cancelled is not None and seen.claim is None:
        return Gone(key, 128 + seen.cancelled, never_started=True)
    if seen.killed:
        return Gone(key, 128 + SIGKILL)
    return Missing()


def _judge_ended(key: Key, row: Row, seen: SlurmEvidence) -> Verdict:
    if seen.cancelled is not None and seen.claim is None:
        return Gone(key, 128 + seen.cancelled, never_started=True)
    reason = _reason(row, seen)
    oom = row.state == "OUT_OF_MEMORY"
    code = seen.exit_code
    if code is None and reason is None:
        code = _code_of_slurm(row, seen, oom=oom)
    if code is None and reason is None:
        return _unexplained(key, row, seen)
    error = "" if reason is None else _describe_end(row, reason)
    if not error and code in {2, 126, 127}:
        error = seen.said
    unborn = reason is not None and seen.claim is None and seen.exit_code is None
    return Gone(key, code, oom, error, seen.exited_at, never_started=unborn, reason=reason)


def _reason(row: Row, seen: SlurmEvidence) -> EndReason | None:
    reason = REASONS.get(row.state)
    if reason is EndReason.CANCELLED_ELSEWHERE and (seen.killed or seen.cancelled is not None):
        return None
    if reason is None and seen.exit_code is None and row.status >> 8 == STARTED_BEFORE:
        return EndReason.STARTED_TWICE
    return reason


def _code_of_slurm(row: Row, seen: SlurmEvidence, *, oom: bool) -> int | None:
    """Return the exit code where the batch script has written none; Slurm's zero is not believed."""
    if seen.killed or oom:
        return 128 + SIGKILL
    signal, code = row.status & 0x7F, row.status >> 8
    return 128 + signal if signal else code or None


def _unexplained(key: Key, row: Row, seen: SlurmEvidence) -> Verdict:
    """Return the state of a job that has ended, says Slurm, and has left no exit status."""
    if row.state == "COMPLETED" or seen.claim is not None:
        return Missing()  # on a shared file system it may become visible later
    return Gone(key, None, error=_describe_end(row, None), never_started=True)


def _describe_end(row: Row, reason: EndReason | None) -> str:
    where = "" if row.node in NOWHERE else f" on {row.node}"
    why = "" if row.reason in {"None", ""} else f" ({row.reason})"
    match reason:
        case EndReason.CANCELLED_ELSEWHERE:
            return f"job {row.number} was cancelled in Slurm{where}{_canceller(row)}"
        case EndReason.STARTED_TWICE:
            return f"Slurm has started job {row.number} twice{where}; the second start ran nothing"
        case EndReason.NODE_FAILED:
            return f"Slurm has lost the node of job {row.number}{where}{why}"
        case EndReason.PREEMPTED:
            return f"Slurm has preempted job {row.number}{where}"
        case EndReason.OUT_OF_TIME:
            return f"the time limit of job {row.number} in Slurm is over{where}"
        case None:  # exhaustive
            return f"job {row.number} ended in Slurm as {row.state}{why}{where}"


def _canceller(row: Row) -> str:
    """Return the canceller of a job, where the state of the accounting has it (``CANCELLED by 1000``)."""
    found = _CANCELLER.fullmatch(row.reason)
    return f" by uid {found[1]}" if found else ""


def describe_silence(since: datetime, said: str) -> str:
    """Return since when slurmctld has not answered; ``said`` is the error of the command that asked."""
    return f"slurmctld has not answered since {since:%Y-%m-%d %H:%M:%S} UTC ({said})"


def describe_standing(number: str | None, seen: SlurmEvidence) -> str:
    """Return the standing of an attempt without Slurm's word, by its own files."""
    if number is None:
        return "the attempt has not been handed over; that is tried again"
    if seen.exit_code is not None:
        ended = f"the attempt has ended with exit code {seen.exit_code}"
        return f"{ended}; what follows is decided when Slurm answers"
    if seen.claim is not None:
        where = f"the attempt began on {seen.claim.node} and is taken to run there"
        return f"{where}; its log and its checkpoints are followed, and an exit code of 0 is its end"
    return f"job {number} had not begun; it keeps its place in Slurm's queue"


def describe_wait(reason: str) -> str:
    """Return a pending reason of Slurm in words."""
    short = reason.partition(",")[0].strip("() ")
    if short in WORDS:
        return WORDS[short] if short == "None" else f"{WORDS[short]} ({short})"
    if _LIMITS.fullmatch(short):
        return f"a limit of its QOS or account is reached ({short})"
    return short


def estimate(starts: str, now: datetime) -> datetime | None:
    """Return Slurm's estimate of a start, which is in UTC; None if it has none."""
    try:
        at = datetime.fromisoformat(starts).replace(tzinfo=UTC)
    except ValueError:
        return None
    return at if now <= at <= now + NO_ESTIMATE else None


def parse_accounting(text: str, number: str, node: str, name: str) -> Row | None:
    """Return a job that only the accounting still knows, from ``sacct --parsable2``; None if it does not."""
    for line in text.splitlines():
        job, state, code, uid = [*line.split("|"), "", "", "", ""][:4]
        if job == number and uid.isdecimal():
            said, _, by = state.partition(" ")
            return Row(number, said, by, node, int(uid), "", _status(code) or 0, name)
    return None
