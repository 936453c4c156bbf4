"""A store with many ended jobs, each with the complete history that the daemon would have recorded.

The store and the state machine of the runner create it, so that its content is exactly what a daemon would
have written: five events, one attempt with its usage and one decision for every job, spread over a month.
All of it is summed and cleaned up.
"""

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from bench.support.jobfile import CPUS, job_text
from runner.adapters.sqlite.accounting import SqliteAccounting
from runner.adapters.sqlite.store import SqliteStore
from runner.core.job.attempt import Allocation, AttemptEnd, ExitDecision
from runner.core.job.events import Event, Exited, ImageReady, Launched, Placed
from runner.core.job.lifecycle import advance
from runner.core.job.model import Job
from runner.core.job.revision_text import RevisionText
from runner.core.job.states import Preparing
from runner.core.policy.decision import Action
from runner.core.policy.history import History
from runner.core.policy.model import Verb
from runner.core.ports.store import DecisionRow, JobRow, RecordedTransition, UsageRecord
from runner.core.ports.users import Owner
from runner.files.job.load import parse_job
from runner.files.revision import Revision

SPAN: Final = timedelta(days=30)
OWNER: Final = Owner(65532, 65532, "nobody")
IMAGE: Final = f"sha256:{'0' * 64}"


def build_store(path: Path, count: int, now: datetime | None = None) -> None:
    """Create a store of ``count`` succeeded jobs, of which the last ended at ``now``."""
    newest = now or datetime.now(UTC)
    revision = _revision(path.with_name("job.yaml"))
    with closing(SqliteStore(path)) as store:
        for number in range(1, count + 1):
            began = newest - SPAN * (count - number) / count - timedelta(minutes=1)
            _record_job(store, number, began, revision)
        SqliteAccounting(store).sum_up(newest + timedelta(hours=1))
        store.record_cleaned_up(store.last_seq())


def job_events(began: datetime) -> Iterator[Event]:
    """Yield the events of a job with one attempt."""
    yield ImageReady(began + timedelta(seconds=0.1), IMAGE)
    yield Placed(began + timedelta(seconds=0.2), Allocation())
    yield Launched(began + timedelta(seconds=0.5))
    ended = AttemptEnd(0, "completed", completed=True, checkpoint_step=300)
    ruling = ExitDecision(Action(Verb.FINISH, "done", "finish: completed"), History(attempts=1, charged=1))
    yield Exited(began + timedelta(seconds=40), 1, ended, ruling)


def _record_job(store: SqliteStore, number: int, began: datetime, revision: str) -> None:
    job = Job(str(number), Preparing(began))
    row = JobRow(job, f"finished-{number}", OWNER, began, 50, RevisionText.of(revision))
    store.add_all((row,), (f"submitted by {OWNER.name}: job.yaml",))
    for event in job_events(began):
        after, _ = advance(job, event)
        change = RecordedTransition(job, after, event, _decision(job, event), _usage(job, event))
        store.record_all((change,))
        job = after


def _usage(job: Job, event: Event) -> UsageRecord | None:
    """Return what an attempt is given when it is placed."""
    if not isinstance(event, Placed):
        return None
    return UsageRecord(job.id, 1, OWNER.name, "", 0, CPUS, (), event.at)


def _decision(job: Job, event: Event) -> DecisionRow | None:
    """Return the decision about the end of an attempt, with what usage reports read of it."""
    if not isinstance(event, Exited):
        return None
    facts = {"progress.advanced": True, "checkpoint.age_s": 0.0, "killed_by": "nobody"}
    body = json.dumps({"job": job.id, "attempt": 1, "facts": facts, "verdict": {"rule": "completed"}})
    return DecisionRow(job.id, 1, "exit", event.at, body)


def _revision(path: Path) -> str:
    """Return the stored form of a job file that never existed on the disk."""
    return Revision(
        job=parse_job(job_text().encode(), path),
        path=str(path),
        accelerator="cpu",
        uid=OWNER.uid,
        gid=OWNER.gid,
        groups=(),
        user=OWNER.name,
    ).model_dump_json()
