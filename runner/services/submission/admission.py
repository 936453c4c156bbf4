"""Admission: what keeps a job from being accepted, with its place in the job file.

A request that can never be met is refused at once, with the resources that there are.  A request for
resources that are in use now is accepted, and waits.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from runner.base.readable import readable_size
from runner.base.textfile import Problem, one_line
from runner.base.yaml import PathPart
from runner.control.context import Capacity
from runner.core.scheduler.admission import Refusal, RefusalReason, check_admission
from runner.core.scheduler.snapshot import PendingJob, ResourceRequest, Snapshot
from runner.files.job.model import JobFile
from runner.files.revision import VENDORS, Revision
from runner.files.submission import Submission

PLACES: Final[Mapping[RefusalReason, tuple[PathPart, ...]]] = {
    RefusalReason.CLASS: ("queue", "priority_class"),
    RefusalReason.COUNT: ("resources", "gpus"),
    RefusalReason.KIND: ("devices", "kind"),
    RefusalReason.MODEL: ("devices", "model"),
    RefusalReason.MEMORY: ("devices", "memory"),
    RefusalReason.CAPABILITY: ("devices", "capability"),
    RefusalReason.HOST: ("resources",),
}
"""The field of the job file that a refusal is about; a full queue has none."""


@dataclass(frozen=True, slots=True)
class AdmissionResult:
    """The problems of one job file, and the quotas that its owner has used up."""

    problems: tuple[Problem, ...]
    refused: tuple[str, ...]


def missing_resources(job: JobFile, capacity: Capacity) -> Iterator[tuple[tuple[PathPart, ...], str]]:
    """Yield the fields of a resource request that exceed this machine, each with the fact."""
    wants = job.resources
    if wants.cpus > capacity.cpus:
        yield ("resources", "cpus"), f"asks for {wants.cpus:g}; there {_is(capacity.cpus)} {capacity.cpus:g}"
    if wants.memory > capacity.memory_bytes:
        there = readable_size(capacity.memory_bytes)
        yield ("resources", "memory"), f"asks for {readable_size(wants.memory)}; there are {there}"
    if capacity.chooses_devices:
        return
    vendor = VENDORS.get(job.accelerator)
    count = sum(vendor in {None, device.vendor} for device in capacity.devices)
    if wants.gpus > count:
        problem = capacity.nvidia_problem() if vendor in {None, "nvidia"} else None
        why = "" if problem is None else f": NVML says {problem}; ask the operator (runner doctor)"
        yield ("resources", "gpus"), f"asks for {wants.gpus}; there {_is(count)} {count}{why}"


def _is(count: float) -> str:
    return "is" if count == 1 else "are"


@dataclass(frozen=True, slots=True)
class Admission:
    """Checks the jobs of one submission."""

    submission: Submission
    capacity: Capacity
    _asked: Callable[[ResourceRequest, str, str], tuple[Refusal, ...]]

    def found(self, revision: Revision) -> AdmissionResult:
        """Return the reasons against accepting one of the jobs."""
        job = revision.job
        lacks = tuple(missing_resources(job, self.capacity))
        problems = [job.origin.problem(path, fact) for path, fact in lacks]
        refused = []
        for refusal in self._asked(revision.needs(), job.queue.priority_class, revision.team):
            if refusal.reason is RefusalReason.QUOTA:
                refused.append(refusal.text)
            elif not lacks or refusal.reason is RefusalReason.CLASS:
                problems.append(self.submission.problem(job, PLACES[refusal.reason], refusal.text))
        return AdmissionResult(tuple(problems), tuple(refused))


def admission(
    submission: Submission, capacity: Capacity, snapshot: Snapshot, owner: str, jobs: int
) -> Admission:
    """Return the check of ``jobs`` that are submitted together; equal requests are checked once."""

    @cache
    def asked(needs: ResourceRequest, priority_class: str, team: str) -> tuple[Refusal, ...]:
        waiting = PendingJob("", owner, needs, snapshot.now_s, group=team, priority_class=priority_class)
        return check_admission(waiting, snapshot, jobs)

    return Admission(submission, capacity, asked)


def too_large(owner: str, present: int, more: int, limit: int | None) -> tuple[str, ...]:
    """Return that the job files of a user's unfinished jobs would exceed their limit, as text."""
    if limit is None or present + more <= limit:
        return ()
    sizes = f"has {readable_size(present)}; this submission has {readable_size(more)}"
    fact = f"user {owner} may have unfinished jobs with {readable_size(limit)} of job files, and {sizes}"
    return (f"{fact}; wait for jobs to end, or put what is large into files that the job reads",)


def stored_too_fast(owner: str, limit: int) -> str:
    """Return that more job files were stored for a user lately than may be."""
    fact = f"user {owner} may store {readable_size(limit)} of job files an hour, and has stored much more"
    return f"{fact}, also of jobs that have ended; wait, or put what is large into files that the job reads"


def refusal(submission: Submission, facts: Iterable[str]) -> str:
    """Return the message of a refusal: the file, the facts, and the next step."""
    said = "; ".join(facts)
    waiting = "runner list --mine has them" if "waiting" in said else "ask the operator of this machine"
    return f"{one_line(submission.shown or submission.path)}: {said}; {waiting}"
