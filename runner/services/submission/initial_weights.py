"""The weights with which a training begins, resolved on submission: a name becomes the id of a job."""

from typing import Final

from runner.base.textfile import Problem, quoted
from runner.core.job.states import Finished, Outcome
from runner.core.ports.store import JobRow, JobStore
from runner.core.ports.users import Owner
from runner.files.job.initial_weights import JobWeights, init_from, parse_init_from
from runner.files.job.model import JobFile
from runner.files.revision import InitialWeights
from runner.files.submission import Submission
from runner.services.submission.dependencies import After, jobs_named

FIELD: Final = ("workload", "init_from")


def resolve_initial_weights(
    submission: Submission, job: JobFile, after: After, owner: Owner, store: JobStore
) -> tuple[InitialWeights | None, tuple[Problem, ...]]:
    """Return the weights that a job begins with, and the problems of the job that publishes them."""
    written = init_from(job.workload)
    if written is None:
        return None, ()
    named = parse_init_from(written)
    if named is None:
        return InitialWeights(path=str(submission.place.parent / written)), ()
    ids = tuple(jobs_named(named.job, owner.name, store))
    rows = [row for row in map(store.get, ids) if row is not None]
    fact = _problem(named, rows, {job_id for job_id, _ in after}, owner)
    if fact is not None:
        return None, (submission.problem(job, FIELD, fact),)
    return InitialWeights(job=rows[0].job.id, kind=named.kind), ()


def _problem(named: JobWeights, rows: list[JobRow], after: set[str], owner: Owner) -> str | None:
    """Return the reason why a job cannot begin with the weights of the jobs of a name; None if it can."""
    if not rows:
        return f"there is no job {quoted(named.job)}: no such id, and none of yours has that name"
    if len(rows) > 1:
        return f"{quoted(named.job)} is a matrix of {len(rows)} jobs; name one, such as {rows[0].name}"
    row, state = rows[0], rows[0].job.state
    who = f"job {row.job.id} ({row.name})"
    if (row.owner.uid, row.owner.name) != (owner.uid, owner.name):
        return f"{who} is not yours; ask its owner for a copy, and name the directory"
    if not isinstance(state, Finished):
        hint = f"add it to queue.after, so that this job waits for it: after: [{quoted(named.job)}]"
        return None if row.job.id in after else f"{who} has not ended; {hint}"
    if named.kind == "final" and state.outcome is not Outcome.SUCCEEDED:
        return f"{who} has not succeeded, so it has no finished model; job/{named.job}/best may be there"
    return None
