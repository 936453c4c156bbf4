"""Dependencies between jobs: whether they are satisfied, and whether they make a cycle."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from typing import Final

from runner.core.job.states import Outcome
from runner.core.scheduler.snapshot import Dependency, DependencyCondition, EndedJob

REQUIRED_END: Final = {
    DependencyCondition.OK: "succeed",
    DependencyCondition.ANY: "end",
    DependencyCondition.FAILED: "fail",
}


class Readiness(StrEnum):
    """State of the dependencies of a job."""

    READY = "ready"
    PENDING = "pending"
    NEVER = "never"  # a job that it waits for has ended in another way


class CircularDependency(ValueError):
    """Jobs wait for one another in a cycle.  ``cycle`` ends with the job that it begins with."""

    def __init__(self, cycle: Sequence[str]) -> None:
        super().__init__(f"circular dependency: {' waits for '.join(cycle)}")
        self.cycle = tuple(cycle)


def check_cycles(dependencies: Mapping[str, Iterable[str]]) -> None:
    """Check the jobs that each job waits for.

    Raises:
        CircularDependency: they make a cycle.
    """
    graph = {job_id: tuple(others) for job_id, others in dependencies.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        # The sorter names each job before the one that waits for it, and the first job once more at the end.
        waiting = list(reversed(error.args[1]))[1:]
        first = waiting.index(next(job_id for job_id in graph if job_id in waiting))
        raise CircularDependency([*waiting[first:], *waiting[: first + 1]]) from None


def check_dependency(dependency: Dependency, ended: Mapping[str, EndedJob]) -> Readiness:
    """Return the readiness that follows from one dependency."""
    ends = [ended.get(job_id) for job_id in dependency.group or (dependency.job_id,)]
    known = [end.outcome for end in ends if end is not None]
    if len(known) < len(ends):
        return Readiness.PENDING
    succeeded = all(outcome is Outcome.SUCCEEDED for outcome in known)
    satisfied = {
        DependencyCondition.OK: succeeded,
        DependencyCondition.FAILED: not succeeded,
        DependencyCondition.ANY: True,
    }
    return Readiness.READY if satisfied[dependency.condition] else Readiness.NEVER


@dataclass(frozen=True, slots=True)
class Unmet:
    """A dependency that cannot be met any more."""

    why: str
    since_s: float


def find_unmet(dependencies: Sequence[Dependency], ended: Mapping[str, EndedJob]) -> Unmet | None:
    """Return the first dependency of a job that cannot be met any more, None if all still can."""
    for dependency in dependencies:
        if check_dependency(dependency, ended) is Readiness.NEVER:
            end, required = ended[dependency.job_id], REQUIRED_END[dependency.condition]
            if not dependency.group:
                why = f"job {dependency.job_id} {end.outcome}, but it had to {required}"
                return Unmet(why, end.at_s)
            why = f"jobs {dependency.group[0]} to {dependency.group[-1]} succeeded, but one had to {required}"
            return Unmet(why, max(ended[job_id].at_s for job_id in dependency.group))
    return None


def check_dependencies(dependencies: Sequence[Dependency], ended: Mapping[str, EndedJob]) -> Readiness:
    """Return the readiness that follows from all dependencies of a job."""
    found = {check_dependency(dependency, ended) for dependency in dependencies}
    if Readiness.NEVER in found:
        return Readiness.NEVER
    return Readiness.PENDING if Readiness.PENDING in found else Readiness.READY
