"""The types of the daemon's answers.

Only the type checker imports this module: creating these classes takes longer than a submission.
"""

from typing import Any, NotRequired

from typing_extensions import TypedDict  # pydantic reads those of ``typing`` from Python 3.12 on


class ProgressResponse(TypedDict, total=False):
    """The last report of the program, with the fields of ``jobs.contract.Status``."""

    phase: str
    time: float
    step: int | None
    total_steps: int | None
    items_per_s: float | None
    data_wait: float | None
    loss: float | None
    memory_bytes: int | None
    checkpoint_step: int | None
    resumed_from: int | None
    metrics: dict[str, float]


class JobSummary(TypedDict):
    """One job in a list."""

    id: str
    name: str
    owner: str
    state: str
    outcome: str | None
    why: str
    since: str
    submitted_at: str
    attempt: int
    attempts_max: int
    priority: int
    gpus: list[str]
    progress: ProgressResponse | None
    last_progress: NotRequired[ProgressResponse | None]  # only where it is asked for
    saved_step: NotRequired[int | None]  # of the newest checkpoint
    saved_version: NotRequired[int]  # of the newest checkpoint, if their names have no step
    labels: dict[str, str]


class AttemptResponse(TypedDict):
    """One attempt of a job."""

    number: int
    lineage: int
    placed_at: str | None
    launched_at: str | None
    ended_at: str | None
    exit_code: int | None
    cause: str | None
    message: str | None
    verdict: str | None
    resumed_from: int | None
    checkpoint_step: int | None
    set_aside: list[str]  # below run_dir


class NetworkResponse(TypedDict):
    """Network access of a job, and whether all else is known to be closed."""

    access: str
    holds: bool | None
    problem: str


class EpochsResponse(TypedDict):
    """The epochs of a training: the length of one, and how many are done and wanted."""

    steps_per_epoch: int
    done: float
    total: float | None
    epoch_s: float | None


class OperatorResponse(TypedDict):
    """Time of one operator or kernel in a trace, without what it calls."""

    name: str
    calls: int
    cpu_s: float
    device_s: float


class TraceResponse(TypedDict):
    """The operators of a trace that took the most time, the slowest first."""

    attempt: int
    first_step: int
    last_step: int
    seconds: float
    file: str
    operators: list[OperatorResponse]


class DiskResponse(TypedDict):
    """Rates at which a job reads from disks and writes to them, and totals since its attempt began."""

    read_per_s: float
    written_per_s: float
    read_bytes: int
    written_bytes: int


class TimeResponse(TypedDict):
    """The seconds of a job from its submission on, in parts that make the whole."""

    work_s: float
    waiting_s: float
    starting_s: float
    saving_s: float
    lost_s: float | None
    total_s: float
    goodput: float | None


class AccountResponse(TypedDict):
    """Time of a job by what it went to, and its use of what it asked for."""

    job: str
    asked: dict[str, float]
    used: dict[str, Any]
    time: TimeResponse
    advice: list[str]


class JobDetail(JobSummary):
    """One job with its history."""

    attempts: list[AttemptResponse]
    lineage: int
    lineages: int
    run_dir: str
    image: str | None
    network: NetworkResponse
    settings: dict[str, Any]
    next_start: list[str]  # what the next attempt has otherwise than the one that runs
    epochs: EpochsResponse | None
    trace: TraceResponse | None
    disk: DiskResponse | None
    advice: list[str]
    account: NotRequired[AccountResponse]  # only where it is asked for
    revision: dict[str, Any] | None
    result: dict[str, Any] | None
    unreadable: list[str]  # rows of the store


class JobEvent(TypedDict):
    """Something that happened to a job."""

    seq: int
    job: str
    name: str
    at: str
    kind: str
    text: str
