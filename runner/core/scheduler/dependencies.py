"""Jobs that wait for other jobs: what their ends mean, which names mean whom, and no circles."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from runner.core.job.states import Outcome
from runner.core.scheduler.snapshot import Dependency, DependencyCondition, EndedJob


class Readiness(StrEnum):
    """What the ends of other jobs mean for one that waits for them."""

    READY = "ready"
    PENDING = "pending"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Named:
    """A job that a dependency may mean; the later one of two with the same name is meant."""

    job_id: str
    name: str
    owner: str


class CircularDependency(ValueError):
    """Jobs would wait for one another for ever: each for the next of a circle, which ends where it begins."""

    def __init__(self, circle: Sequence[str]) -> None:
        super().__init__(f"circular dependency: {' waits for '.join(circle)}")
        self.circle = tuple(circle)


def resolve(reference: str, owner: str, known: Sequence[Named]) -> str | None:
    """Return the id that a reference means: an id, or the newest job of that name and owner; None: nobody.

    ``known`` is in the order of submission.
    """
    if any(job.job_id == reference for job in known):
        return reference
    named = [job.job_id for job in known if job.name == reference and job.owner == owner]
    return named[-1] if named else None


def check_cycles(edges: Mapping[str, Iterable[str]]) -> None:
    """Look for jobs that wait for one another, given for each the jobs that it waits for.

    Raises:
        CircularDependency: with the circle in words.
    """
    done: set[str] = set()
    for start in edges:
        _walk(start, edges, done)


def _walk(start: str, edges: Mapping[str, Iterable[str]], done: set[str]) -> None:
    """Follow every path from a job, without recursion: chains may be long."""
    path: dict[str, None] = {}
    todo: list[tuple[str, bool]] = [(start, False)]
    while todo:
        job, leaving = todo.pop()
        if leaving:
            done.add(job)
            path.pop(job)
        elif job in path:
            raise CircularDependency([*list(path)[list(path).index(job) :], job])
        elif job not in done:
            path[job] = None
            todo.append((job, True))
            todo += [(other, False) for other in edges.get(job, ())]


def check_dependency(after: Dependency, ended: Mapping[str, EndedJob]) -> Readiness:
    """Return what is known about one dependency."""
    end = ended.get(after.job_id)
    if end is None:
        return Readiness.PENDING
    succeeded = end.outcome is Outcome.SUCCEEDED
    wanted = {
        DependencyCondition.OK: succeeded,
        DependencyCondition.FAILED: not succeeded,
        DependencyCondition.ANY: True,
    }
    return Readiness.READY if wanted[after.condition] else Readiness.NEVER


def check_dependencies(after: Sequence[Dependency], ended: Mapping[str, EndedJob]) -> Readiness:
    """Return what is known about all of a job's dependencies together."""
    each = {check_dependency(one, ended) for one in after}
    if Readiness.NEVER in each:
        return Readiness.NEVER
    return Readiness.PENDING if Readiness.PENDING in each else Readiness.READY
