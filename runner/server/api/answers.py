"""The answers of the HTTP API in its OpenAPI description.

Only a request for the description imports this module: answers are made as JSON without models, and to create
these classes takes longer than a submission.
"""

from collections.abc import Mapping
from typing import Any, Final, NotRequired

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from runner.client.types import AccountResponse, JobDetail, JobEvent, JobSummary

REFERENCES: Final = "#/components/schemas/{model}"


class Error(TypedDict):
    """Reason of a refusal, as the command line prints it, and with its exit code."""

    kind: str
    message: str
    lines: list[str]
    exit_code: int
    details: NotRequired[list[str]]


class VersionAnswer(TypedDict):
    version: str
    contract_version: int
    api: int
    instance: str
    state_dir: str
    executor: str
    pid: int
    started_at: str
    jobs: dict[str, int]


class Firing(TypedDict):
    at: str
    state: str
    job: str | None
    text: str


class ScheduleRecord(TypedDict):
    id: str | int | None
    name: str
    owner: str
    state: str
    note: str
    made_at: str | None
    next: list[str]
    last: Firing | None


class ScheduleDetail(ScheduleRecord):
    path: str
    text: str
    occasions: list[Firing]


class NextTimesAnswer(TypedDict):
    id: str | int | None
    name: str
    state: str
    next: list[str]


class SubmittedAnswer(TypedDict):
    """Jobs or the schedule of a file."""

    job: NotRequired[JobSummary]
    jobs: NotRequired[list[JobSummary]]
    schedule: NotRequired[ScheduleRecord]
    warnings: NotRequired[list[str]]


class PlannedJob(TypedDict):
    name: str
    values: dict[str, Any]


class PlanAnswer(TypedDict):
    """A dry run: the resolved job, its spec, and the arguments of the engine."""

    job: dict[str, Any]
    spec: Any
    engine: Any
    devices: NotRequired[Any]
    warnings: list[str]
    jobs: list[PlannedJob]
    schedule: NotRequired[ScheduleRecord]


class Pending(TypedDict):
    text: str


class JobsAnswer(TypedDict):
    jobs: list[JobSummary]
    next: NotRequired[int | None]
    unrecorded: NotRequired[list[Any]]


class WhyAnswer(TypedDict):
    job: str
    name: str
    state: str
    outcome: str | None
    why: str
    starts_at: str | None
    never: bool
    until: str | None
    estimated_by: str | None


class JobAnswer(TypedDict):
    job: JobSummary


class CancelledAnswer(JobAnswer):
    changed: bool


class BeginsAnswer(JobAnswer):
    begins: str


class EventsAnswer(TypedDict):
    events: list[JobEvent]
    next: NotRequired[int]


class HolderOfDevice(TypedDict):
    id: str
    name: str
    owner: str


class DeviceAnswer(TypedDict):
    """A device; null is unknown."""

    uuid: str
    name: str
    vendor: str
    model: str
    kind: NotRequired[str]
    memory_bytes: int | None
    used_bytes: NotRequired[int | None]
    util: float | None
    temperature_c: NotRequired[float | None]
    power_w: NotRequired[float | None]
    state: str
    reason: str
    since: NotRequired[str | None]
    jobs: list[HolderOfDevice]
    processes: NotRequired[list[dict[str, Any]] | None]


class DevicesAnswer(TypedDict):
    devices: list[DeviceAnswer]
    cpus: float
    memory_bytes: int


class Change(TypedDict):
    field: str
    before: Any
    after: Any
    at_next_start: NotRequired[bool]


class DiffAnswer(TypedDict):
    before: str
    after: str
    changes: list[Change]
    code: list[Any]
    code_unknown: list[str]


class ChangedJob(TypedDict):
    id: str
    name: str
    state: str
    parked: NotRequired[bool]


class RuleVerdict(TypedDict):
    verb: str
    rule: str
    reason: str
    limit: str | None


class AppliedAnswer(TypedDict):
    """A change as the policy of the job has decided."""

    job: ChangedJob
    changes: list[Change]
    same_bits: bool
    facts: dict[str, Any]
    arithmetic: list[str]
    econ: dict[str, Any]
    verdict: RuleVerdict
    rules: list[Any]
    outcome: str
    why: str
    approved: bool
    revision: int | None


class CanaryAnswer(TypedDict):
    job: str
    canary: str
    steps: int
    done: int
    parked: bool
    finished: bool
    why: str
    rate: dict[str, float] | None


class LimitsAnswer(TypedDict):
    job: ChangedJob
    changes: list[Change]
    revision: int


class RevisionRecord(TypedDict):
    number: int
    at: str | None
    by: str
    why: str
    lineage: int | None
    present: bool


class Lent(TypedDict):
    lent: float
    total: float


class OverviewAnswer(TypedDict):
    at: str
    executor: str
    cpus: Lent
    memory_bytes: Lent
    devices: list[DeviceAnswer]
    jobs: list[dict[str, Any]]
    queue: list[dict[str, Any]]
    queue_length: int


class UsageAnswer(TypedDict):
    since: str
    until: str
    by: str
    uses: list[dict[str, Any]]
    more: int
    total: dict[str, Any]
    there: dict[str, float]
    goodput: float | None
    switching_budget: float


class RemovedRun(TypedDict):
    job: str
    name: str
    owner: str
    ended: str | None
    bytes: int | None
    why: str


class SweepCandidate(TypedDict):
    job: str
    name: str
    state: str
    parameters: dict[str, Any]
    step: int | None
    values: list[float | None]
    final: float | None
    device_h: float
    decisions: list[str]


class SweepAnswer(TypedDict):
    sweep: str
    name: str
    metric: str
    direction: str
    rungs: list[int]
    device_h: float
    best: str | None
    candidates: list[SweepCandidate]


class CurvesAnswer(TypedDict):
    """Points by the name of the curve: time, step, mean, least, largest, number."""

    job: NotRequired[str]
    name: NotRequired[str]
    curves: dict[str, list[list[float | None]]]


def _object(name: str, **fields: Any) -> Any:
    """Return the type of an object that one answer has."""
    return TypedDict(name, fields)  # type: ignore[operator]  # for pydantic alone


ANSWERS: Final[Mapping[tuple[str, str, int], Any]] = {
    ("get", "/v1/version", 200): VersionAnswer,
    ("post", "/v1/jobs", 200): PlanAnswer,
    ("post", "/v1/jobs", 201): SubmittedAnswer,
    ("post", "/v1/jobs", 202): _object("PendingAnswer", pending=Pending),
    ("get", "/v1/submissions/{token}", 200): JobsAnswer,
    ("get", "/v1/jobs", 200): JobsAnswer,
    ("get", "/v1/jobs/{reference}", 200): JobDetail,
    ("get", "/v1/jobs/{reference}/why", 200): WhyAnswer,
    ("get", "/v1/jobs/{reference}/wait", 200): _object("WaitAnswer", done=bool, job=JobDetail),
    ("post", "/v1/jobs/{reference}/cancel", 200): CancelledAnswer,
    ("post", "/v1/cancel", 200): _object("CancelledTogetherAnswer", jobs=list[CancelledAnswer]),
    ("post", "/v1/jobs/{reference}/signal", 200): JobAnswer,
    ("post", "/v1/jobs/{reference}/restart", 200): BeginsAnswer,
    ("post", "/v1/jobs/{reference}/hold", 200): JobAnswer,
    ("post", "/v1/jobs/{reference}/release", 200): BeginsAnswer,
    ("get", "/v1/jobs/{reference}/decisions", 200): _object(
        "DecisionsAnswer", decisions=list[dict[str, Any]], unreadable=list[str]
    ),
    ("get", "/v1/events", 200): EventsAnswer,
    ("post", "/v1/stop", 200): _object("Empty"),
    ("get", "/v1/devices", 200): DevicesAnswer,
    ("post", "/v1/devices/{reference}/drain", 200): _object("ChangedDeviceAnswer", device=DeviceAnswer),
    ("post", "/v1/devices/{reference}/resume", 200): _object("ChangedDeviceAnswer", device=DeviceAnswer),
    ("get", "/v1/devices/history", 200): CurvesAnswer,
    ("post", "/v1/jobs/{reference}/diff", 200): DiffAnswer,
    ("post", "/v1/apply", 200): AppliedAnswer,
    ("post", "/v1/canaries", 201): CanaryAnswer,
    ("get", "/v1/jobs/{reference}/canaries/{canary_id}", 200): CanaryAnswer,
    ("post", "/v1/jobs/{reference}/rollback", 200): _object(
        "RollbackAnswer", to=int, revision=int, follows=Any
    ),
    ("post", "/v1/jobs/{reference}/limits", 200): LimitsAnswer,
    ("get", "/v1/jobs/{reference}/revisions", 200): _object(
        "RevisionsAnswer", revisions=list[RevisionRecord]
    ),
    ("get", "/v1/overview", 200): OverviewAnswer,
    ("get", "/v1/usage", 200): UsageAnswer,
    ("post", "/v1/prune", 200): _object("PruneAnswer", removed=list[RemovedRun], unlimited=bool),
    ("post", "/v1/settings/reload", 200): _object("ReloadAnswer", changed=Any, needs_restart=Any, file=str),
    ("get", "/v1/sweeps/{reference}", 200): SweepAnswer,
    ("post", "/v1/sweeps/{reference}/stop", 200): _object("SweepJobsAnswer", jobs=list[str]),
    ("post", "/v1/sweeps/{reference}/resume", 200): _object("SweepJobsAnswer", jobs=list[str]),
    ("get", "/v1/schedules", 200): _object("SchedulesAnswer", schedules=list[ScheduleRecord]),
    ("get", "/v1/schedules/{reference}", 200): ScheduleDetail,
    ("get", "/v1/schedules/{reference}/next", 200): NextTimesAnswer,
    ("post", "/v1/schedules/{reference}/{verb}", 200): _object("ScheduleAnswer", schedule=ScheduleRecord),
    ("get", "/v1/jobs/{reference}/curves", 200): CurvesAnswer,
    ("get", "/v1/jobs/{reference}/account", 200): AccountResponse,
}
"""The type of each answer in JSON, by method, path and status."""

ERROR: Final = ("", "", 0)
"""The key of what every request may be answered with."""

OTHERS: Final[Mapping[tuple[str, str], str]] = {
    ("get", "/v1/jobs/{reference}/log"): "text/plain",
    ("get", "/v1/jobs/{reference}/files"): "application/x-tar",
    ("get", "/metrics"): "text/plain",
}
"""The media types of answers that are no JSON."""


def described(document: dict[str, Any]) -> dict[str, Any]:
    """Return an OpenAPI document with the types of the answers."""
    types = {**ANSWERS, ERROR: _object("ErrorAnswer", error=Error)}
    known, definitions = TypeAdapter.json_schemas(
        [(key, "serialization", TypeAdapter(type_)) for key, type_ in types.items()], ref_template=REFERENCES
    )
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(definitions.get("$defs", {}))
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            responses = operation["responses"] = {"default": _json(known[ERROR, "serialization"])}
            if (kind := OTHERS.get((method, path))) is not None:
                responses["200"] = {"description": "the content", "content": {kind: {}}}
            for status in (200, 201, 202):
                if (method, path, status) in ANSWERS:
                    responses[str(status)] = _json(known[(method, path, status), "serialization"])
    return document


def _json(schema: Any) -> dict[str, Any]:
    return {"description": "the answer", "content": {"application/json": {"schema": schema}}}
