"""Dependencies of jobs: names become ids on submission, and circular dependencies are refused.

A name means the newest of the owner's jobs with it, or all jobs of the newest matrix of that name if that is
newer.  An id may belong to any user: a dependency reveals nothing that a list does not.
"""

from collections.abc import Callable, Iterable, Iterator

from runner.base.errors import Refused
from runner.base.textfile import FileError, Problem, quoted
from runner.core.job.states import Finished, Outcome
from runner.core.ports.store import JobRow, JobStore
from runner.core.scheduler.dependencies import CircularDependency, Readiness, check_cycles, check_dependency
from runner.core.scheduler.snapshot import Dependency, DependencyCondition, EndedJob
from runner.files.job.model import JobFile
from runner.files.revision import Revision, parse_revision
from runner.files.submission import Submission

After = tuple[tuple[str, DependencyCondition], ...]


def resolved(
    submission: Submission, job: JobFile, owner: str, store: JobStore
) -> tuple[After, tuple[tuple[str, ...], ...], tuple[Problem, ...]]:
    """Return the dependencies of a job by id, and a problem for each name that matches no job.

    Of a matrix that is to fail, all jobs must have ended, and one of them not succeeded: these stand apart.
    """
    problems, found, one_failed = [], [], []
    for number, after in enumerate(job.queue.after):
        ids = tuple(jobs_named(after.job, owner, store))
        wanted = after.wanted
        if len(ids) > 1 and wanted is DependencyCondition.FAILED:
            one_failed.append(ids)
            wanted = DependencyCondition.ANY
        found += [(job_id, wanted) for job_id in ids]
        if not ids:
            fact = f"there is no job {quoted(after.job)}: no such id, and none of yours has that name"
            problems.append(submission.problem(job, ("queue", "after", number, "job"), fact))
    return tuple(dict.fromkeys(found)), tuple(dict.fromkeys(one_failed)), tuple(problems)


def refuse_hopeless(
    submission: Submission, revisions: Iterable[Revision], owner: str, store: JobStore
) -> None:
    """Check that the dependencies of new jobs can still be met.

    Raises:
        FileError: one can not be met any more, so the job would never start.
    """
    jobs = {revision.job.queue.after: revision.job for revision in revisions}  # of a matrix mostly one
    problems = [problem for job in jobs.values() for problem in _hopeless(submission, job, owner, store)]
    if problems:
        raise FileError(next(iter(jobs.values())).origin.path, problems)


def _hopeless(submission: Submission, job: JobFile, owner: str, store: JobStore) -> Iterator[Problem]:
    for number, after in enumerate(job.queue.after):
        rows = tuple(filter(None, map(store.get, jobs_named(after.job, owner, store))))
        if len(rows) > 1 and after.wanted is DependencyCondition.FAILED and not all(map(_succeeded, rows)):
            continue  # one of them has failed, or still may
        for row in rows:
            state = row.job.state
            if not isinstance(state, Finished):
                continue
            ended = {row.job.id: EndedJob(state.outcome, state.since.timestamp())}
            if check_dependency(Dependency(row.job.id, after.wanted), ended) is Readiness.NEVER:
                how = "been cancelled" if state.outcome is Outcome.CANCELLED else state.outcome
                fact = f"job {row.job.id} ({row.name}) has {how} already, and {after.wanted} waits for"
                otherwise = "a failure" if after.wanted is DependencyCondition.FAILED else "success"
                hint = f'{otherwise}; "{row.job.id}:any" would be met'
                yield submission.problem(job, ("queue", "after", number, "job"), f"{fact} {hint}")


def _succeeded(row: JobRow) -> bool:
    return isinstance(row.job.state, Finished) and row.job.state.outcome is Outcome.SUCCEEDED


def jobs_named(reference: str, owner: str, store: JobStore) -> Iterator[str]:
    """Yield the ids of a reference: of one job, of all jobs of a matrix, or none."""
    row = store.get(reference)
    yield from (each.job.id for each in ((row,) if row else newest_named(reference, owner, store)))


def newest_named(name: str, owner: str, store: JobStore) -> tuple[JobRow, ...]:
    """Return a user's newest job of a name, or all jobs of the newest matrix of that name if it is newer."""
    row, first = store.newest_of(owner, name), store.newest_of(owner, f"{name}-1")
    matrix = () if first is None else members(first, store)
    return matrix if row is None or (matrix and int(matrix[0].job.id) > int(row.job.id)) else (row,)


def members(row: JobRow, store: JobStore) -> tuple[JobRow, ...]:
    """Return all jobs of a job's matrix, in order; none if it belongs to no matrix."""
    sweep = parse_revision(row.revision).sweep
    return () if sweep is None else store.following(sweep.id, sweep.count)


def dependency_graph(
    job_id: str, after: Iterable[str], waits_for: Callable[[str], Iterable[str]]
) -> dict[str, tuple[str, ...]]:
    """Return the jobs that a job and all that it waits for wait for, directly or by way of others.

    ``waits_for`` says it of the others; ``after`` are those of the job itself.
    """
    graph = {job_id: tuple(after)}
    to_read = list(graph[job_id])
    while to_read:
        other_id = to_read.pop()
        if other_id not in graph:
            graph[other_id] = tuple(waits_for(other_id))
            to_read += graph[other_id]
    return graph


def refuse_cycle(job_id: str, revision: Revision, waits_for: Callable[[str], Iterable[str]]) -> None:
    """Check that the dependencies of a new revision make no cycle; ``waits_for`` as in ``dependency_graph``.

    Raises:
        Refused: one of them waits for the job, directly or by way of others.
    """
    try:
        after = (each for each, _ in revision.after)
        check_cycles(dependency_graph(job_id, after, waits_for))
    except CircularDependency as error:
        origin = revision.job.origin
        raise Refused(
            origin.problem(("queue", "after"), f"{error}; leave one out").line(origin.path)
        ) from error
