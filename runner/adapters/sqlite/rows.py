"""Converts jobs, attempts, events, revisions and decisions to columns and back.

The state of a job and its events are JSON with the fields of their dataclasses.
"""

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from operator import itemgetter
from typing import Annotated, Any, Final, TypeAlias

from pydantic import Discriminator, TypeAdapter

from runner.base import jsontext as compact
from runner.core.job import describe as story
from runner.core.job.events import (
    Event,
    Exited,
    HostFailed,
    ImageMissing,
    Launched,
    LaunchFailed,
    Placed,
    RevisionApplied,
)
from runner.core.job.model import Job
from runner.core.job.revision_text import NO_EDITS, RevisionText, SharedText
from runner.core.job.states import Allocated, Finished, Starting
from runner.core.ports.store import (
    AttemptRow,
    DecisionRow,
    EventRow,
    JobRow,
    RecordedTransition,
    RevisionRow,
    UsageRecord,
)
from runner.core.ports.users import Owner

Row: TypeAlias = sqlite3.Row | dict[str, Any]
"""A row of a statement, or an object of a page."""

SharedTextById: TypeAlias = Callable[[int], SharedText]

_jobs: Final = TypeAdapter(Job)
_events: Final = TypeAdapter(
    Annotated[Event, Discriminator("kind")]
)  # finds the member at once, without trying one after the other
_labels: Final = TypeAdapter(dict[str, str])


# --- writing


def new_job_values(row: JobRow, token: str | None) -> dict[str, object]:
    """Return a new job as columns; ``token`` identifies the submission."""
    return {
        "id": int(row.job.id),
        "name": row.name,
        "uid": row.owner.uid,
        "gid": row.owner.gid,
        "owner": row.owner.name,
        "submitted_at": row.submitted_at.isoformat(),
        "priority": row.priority,
        "state": row.job.state.kind,
        "job": _jobs.dump_json(row.job).decode(),
        "labels": _labels.dump_json(dict(row.labels)).decode(),
        "token": token,
    }


def event_values(job_id: str, at: datetime, kind: str, text: str) -> dict[str, object]:
    """Return an event that changes no state as columns."""
    return {"job_id": int(job_id), "at": at.isoformat(), "kind": kind, "text": text, "body": "{}"}


def lifecycle_event(event: Event, after: Job) -> dict[str, object]:
    """Return a transition as columns: the event, the state that it led to, and a description."""
    known = {"text"} if isinstance(event, RevisionApplied) else None  # it is that of the revision
    body, entered = _events.dump_json(event, exclude=known).decode(), _entered(event, after)
    if entered:  # appended as text for speed: this runs three times for each job
        body = f"{body[:-1]}, {compact.dumps(entered)[1:]}"
    return {**event_values(after.id, event.at, event.kind, story.describe_event(event, after)), "body": body}


def _entered(event: Event, after: Job) -> dict[str, object]:
    """Return the state that an event has led to, and the outcome; nothing if the state is the same."""
    state = after.state
    if state.since != event.at:
        return {}
    outcome = {"outcome": str(state.outcome)} if isinstance(state, Finished) else {}
    return {"entered": {"state": state.kind, **outcome}}


def transition_statements(change: RecordedTransition) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the statements, with values, that record a transition and its consequences."""
    job_id = int(change.after.id)
    yield "update_job", job_values(change.after)
    yield "add_event", lifecycle_event(change.event, change.after)
    if change.usage is not None:  # before its end, which may be the same transition
        yield "add_lending", usage_values(change.usage)
    for name, values in attempt_changes(change.before, change.after, change.event):
        yield name, {"job_id": job_id, **values}
    if change.decision is not None:
        yield "add_decision", decision_values(change.decision)


def job_values(job: Job) -> dict[str, object]:
    """Return the columns of a job that a transition changes."""
    ended = job.state.since.isoformat() if isinstance(job.state, Finished) else None
    return {
        "id": int(job.id),
        "state": job.state.kind,
        "job": _jobs.dump_json(job).decode(),
        "ended_at": ended,
    }


def attempt_changes(before: Job, after: Job, event: Event) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the statements, with values, that an event causes for attempts, usage and revisions."""
    at = event.at.isoformat()
    if isinstance(before.state, Allocated) and not isinstance(after.state, Allocated):
        yield "end_lending", {"number": before.state.attempt.number, "at": at}
    match event:
        case Placed():
            image = getattr(after.state, "image", "")
            yield (
                "add_attempt",
                {"number": after.attempts, "lineage": after.lineage, "image": image, "at": at},
            )
        case Launched():
            yield "attempt_launched", {"number": after.attempts, "at": at}
        case ImageMissing() | HostFailed() if isinstance(before.state, Starting):
            yield "drop_attempt", {"number": before.attempts}
        case ImageMissing() | HostFailed():
            yield "attempt_ended", _end(after, at, cause="not_started")
        case LaunchFailed(_, why, _):
            yield "attempt_ended", _end(after, at, cause="launch_failed", message=why)
        case Exited(_, _, ended, _):
            known = {"cause": ended.cause, "message": ended.message, "exit_code": ended.exit_code}
            yield "attempt_ended", _end(after, at, **known, checkpoint_step=ended.checkpoint_step)
        case RevisionApplied():
            yield from _revision_changes(before, event)
        case _:
            pass


def _revision_changes(before: Job, event: RevisionApplied) -> Iterator[tuple[str, Mapping[str, Any]]]:
    job = json.loads(event.text)["job"]
    at, labels = event.at.isoformat(), _labels.dump_json(job.get("labels", {})).decode()
    yield "leave_revision", {"number": before.revision, "lineage": before.lineage}
    text = text_values(event.text)
    yield "add_text", text
    yield (
        "add_revision",
        {
            "number": event.number,
            "at": at,
            "by": event.by,
            "why": event.why,
            "digest": text["digest"],
            "edits": NO_EDITS,
        },
    )
    yield "take_up_revision", {"priority": job.get("priority", 50), "labels": labels}


def usage_values(usage: UsageRecord) -> dict[str, object]:
    """Return the allocation of an attempt as columns."""
    return {
        "job_id": int(usage.job_id),
        "attempt": usage.attempt,
        "owner": usage.owner,
        "team": usage.team,
        "gpus": usage.gpus,
        "cpus": usage.cpus,
        "devices": json.dumps(usage.devices),
        "placed_at": usage.placed_at.isoformat(),
    }


def first_revision(row: JobRow, digest: object) -> dict[str, object]:
    """Return the submitted job file as the columns of the first revision; ``digest`` names its text."""
    return {
        "job_id": int(row.job.id),
        "number": row.job.revision,
        "at": row.submitted_at.isoformat(),
        "by": row.owner.name,
        "why": "submitted",
        "digest": digest,
        "edits": row.text.edits,
    }


def text_values(text: str) -> dict[str, object]:
    """Return a text that revisions refer to as columns."""
    return {"digest": hashlib.sha256(text.encode()).digest(), "text": text}


def _end(after: Job, at: str, **known: object) -> dict[str, object]:
    values: dict[str, object] = {"exit_code": None, "cause": None, "message": "", "checkpoint_step": None}
    return {**values, **known, "number": after.attempts, "at": at, "verdict": story.describe_decision(after)}


_JOB_COLUMNS: Final = itemgetter(
    "job", "priority", "text_id", "edits", "labels", "name", "owner", "uid", "gid", "submitted_at"
)


def job_columns(row: Row) -> tuple[object, ...]:
    """Return all columns of which ``job_row`` makes a job."""
    found: tuple[object, ...] = _JOB_COLUMNS(row)
    return found


def job_row(shared: SharedTextById, row: Row) -> JobRow:
    """Return a job; ``shared`` returns a text of the store by its number."""
    return JobRow(
        job=_jobs.validate_json(row["job"]),
        name=row["name"],
        owner=Owner(row["uid"], row["gid"], row["owner"]),
        submitted_at=datetime.fromisoformat(row["submitted_at"]),
        priority=row["priority"],
        text=revision_text(shared, row),
        labels=_labels.validate_json(row["labels"]),
    )


def attempt_row(row: sqlite3.Row) -> AttemptRow:
    return AttemptRow(
        job_id=str(row["job_id"]),
        number=row["number"],
        lineage=row["lineage"],
        image=row["image"],
        placed_at=datetime.fromisoformat(row["placed_at"]),
        launched_at=_time(row["launched_at"]),
        ended_at=_time(row["ended_at"]),
        exit_code=row["exit_code"],
        cause=row["cause"],
        message=row["message"],
        verdict=row["verdict"],
        checkpoint_step=row["checkpoint_step"],
    )


def revision_text(shared: SharedTextById, row: Row) -> RevisionText:
    """Return the text of a revision; ``shared`` returns a text of the store by its number."""
    if row["edits"] != NO_EDITS and not isinstance(json.loads(row["edits"]), list):
        raise ValueError("has edits that are no JSON array")
    return RevisionText(shared(row["text_id"]), row["edits"])


def revision_row(row: sqlite3.Row) -> RevisionRow:
    at = datetime.fromisoformat(row["at"])
    return RevisionRow(row["number"], at, row["by"], row["why"], row["lineage"])


def event_row(row: sqlite3.Row) -> EventRow:
    at = datetime.fromisoformat(row["at"])
    return EventRow(row["seq"], str(row["job_id"]), at, row["kind"], row["text"], row["body"])


def decision_values(decision: DecisionRow) -> dict[str, object]:
    """Return a decision as columns."""
    return {
        "job_id": int(decision.job_id),
        "attempt": decision.attempt,
        "moment": decision.moment,
        "at": decision.at.isoformat(),
        "body": decision.body,
    }


def texts(text: str) -> tuple[str, ...]:
    """Return the texts in a JSON array; may raise ValueError."""
    found = json.loads(text)
    if not isinstance(found, list):
        raise ValueError("is no JSON array")
    return tuple(map(str, found))


def json_object(text: str) -> dict[str, Any]:
    """Return the object that a text is as JSON; may raise ValueError."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("is no JSON object")
    return found


def decision_row(row: sqlite3.Row) -> DecisionRow:
    at = datetime.fromisoformat(row["at"])
    json_object(row["body"])
    return DecisionRow(str(row["job_id"]), row["attempt"], row["moment"], at, row["body"])


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
