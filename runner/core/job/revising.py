"""What a new revision of its file does to a job, as a pure function.

The verdict is part of the event: the policy was asked before, with the rates as they were measured.  What
runs goes on, or is asked to stop and begins again; what waits is only told.  Nothing is deleted: a revision
that is left keeps its lineage, and a rollback goes back to it.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TypeAlias

from runner.core.job.model import (
    Command,
    Finished,
    Held,
    Job,
    PrepareImage,
    Preparing,
    Queued,
    RevisionApplied,
    Running,
)
from runner.core.policy.model import STARTS
from runner.core.policy.turned import Turned

Step: TypeAlias = tuple[Job, tuple[Command, ...]]


def revised(job: Job, event: RevisionApplied) -> tuple[Job, bool]:
    """Return the job under its new revision, and whether what runs is to be stopped for it."""
    stops = event.verb in STARTS and isinstance(job.state, Running)
    after = replace(
        job,
        revision=event.number,
        grace=event.grace,
        time_limit=event.time_limit,
        attempts_max=event.attempts_max,
        history=event.history,
        turned=Turned(),
        promise=event.promise,
        stale=job.stale or event.other_image,
    )
    if event.verb in STARTS:
        after = replace(after, next_start=event.start)
    if event.lineage is not None:
        history = replace(after.history, had_checkpoint=event.saved is not None)
        after = replace(after, lineage=event.lineage, saved=event.saved, history=history)
    if isinstance(after.state, Running):
        after = replace(after, state=replace(after.state, deadline=deadline_of(after, after.state.since)))
    return after, stops


def deadline_of(job: Job, since: datetime) -> datetime | None:
    """Return when an attempt that runs ``since`` then has used up the time limit of its job."""
    if job.time_limit is None:
        return None
    return since + max(job.time_limit - job.history.ran, timedelta())


def waiting(job: Job) -> Step:
    """Return a job that is not stopped for its new revision."""
    if isinstance(job.state, Held | Finished):
        return replace(job, stale=False), ()  # it begins with an image that is found then
    return again(job)


def again(job: Job) -> Step:
    """Return a job as it goes on; one that waits gets another image where its revision wants one."""
    if isinstance(job.state, Queued) and job.stale:
        return replace(job, state=Preparing(job.state.since), stale=False), (PrepareImage(),)
    return job, ()
