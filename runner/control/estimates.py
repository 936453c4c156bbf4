"""Run-time estimates: a job will probably run as long as its owner's latest jobs that were like it.

Jobs of one array are alike, and so are those of one schedule: each of them has a name of its own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from runner.core.job.attempt import Attempt, StartFrom
from runner.core.job.model import Job
from runner.core.job.states import Allocated, Queued
from runner.core.ports.store import JobRow, SimilarBy, UsageHistory
from runner.core.scheduler.snapshot import EstimateSource, JobArray

LEAST_S: Final = 60.0
"""A job that has run as long as expected is taken to need so much more at least,"""

MORE: Final = 0.1
"""and at least this part of what was expected."""

STEP: Final = 1.25
"""An estimate is rounded up in such steps, so that it seldom changes."""

SCHEDULE: Final = "runner.schedule"
"""Jobs of a schedule carry its id under this label; job files cannot use such labels themselves."""

_Kind = tuple[str, SimilarBy, str]  # owner, what they have in common, and which that is


LEAST_STEPS: Final = 5
"""A rate is believed after so many steps."""


@dataclass(slots=True)
class ReportedProgress:
    """The progress of one attempt: its first step that was seen, and what follows for its end."""

    attempt: int
    revision: int  # of the job file that it began with
    first_s: float  # when its step was still the first one
    first_step: int
    seen_s: float  # when the newest step was reported
    remaining_s: float | None = None  # from then
    stepped: bool = False  # since it was first seen
    step_s: float = 0.0
    total: int = 0

    def observe(self, at_s: float, step: int, total: int, begun_s: float | None = None) -> float | None:
        """Return for how long the attempt will go on at the rate so far; None if that is unknown.

        Evaluations and saves since the first step are part of the rate, as they are of what is to come.  What
        comes before the first step is not, nor is that step itself: loading and compiling are done once.

        Args:
            at_s: when the step was reported.
            step: the last completed one.
            total: how many there will be.
            begun_s: when the first step of the attempt was done; None if nobody knows.
        """
        self.seen_s = at_s
        if step == self.first_step:
            self.first_s = at_s
        elif not self.stepped:
            self.stepped = True
            if begun_s is not None and self.first_s < begun_s <= at_s:
                self.first_s, self.first_step = begun_s, self.first_step + 1
        if step - self.first_step < LEAST_STEPS or at_s <= self.first_s:
            return None
        self.step_s, self.total = (at_s - self.first_s) / (step - self.first_step), total
        return self.continue_from(step)

    def continue_from(self, step: int) -> float:
        """Return for how long the job will go on after a step."""
        self.remaining_s = max(self.total - step, 0) * self.step_s
        return self.remaining_s


@dataclass(slots=True)
class RunTimeEstimates:
    """Durations that earlier jobs suggest, and the unfinished jobs that they are for."""

    past: UsageHistory
    sources: dict[str, EstimateSource] = field(default_factory=dict)
    """Inputs of the last estimate of each job."""
    _known: dict[_Kind, float | None] = field(default_factory=dict)
    _jobs: dict[_Kind, set[str]] = field(default_factory=dict)
    _kinds: dict[str, tuple[_Kind, ...]] = field(default_factory=dict)
    _progress: dict[str, ReportedProgress] = field(default_factory=dict)

    def remaining_s(self, row: JobRow, sweep: JobArray | None = None) -> float | None:
        """Return for how long a job will go on, None if nothing is known.  The job is remembered.

        What the job itself reports comes first, then what earlier jobs suggest.
        """
        self.sources.pop(row.job.id, None)
        if row.job.time_limit is not None:
            return None
        reported, state = self._progress.get(row.job.id), row.job.state
        revision = state.attempt.revision if isinstance(state, Allocated) else row.job.revision
        if reported is not None and reported.revision != revision:
            reported = None  # it may have had other steps
        if reported is not None and reported.remaining_s is not None:
            if isinstance(state, Queued) and (step := _next_step(row.job)) is not None:
                reported.continue_from(step)
            self.sources[row.job.id] = EstimateSource.PROGRESS
            return reported.remaining_s
        kinds = self._kinds[row.job.id] = _kinds(row, sweep)
        for kind in kinds:
            self._jobs.setdefault(kind, set()).add(row.job.id)
            if kind not in self._known:
                self._known[kind] = self._look_up(kind)
        best = next((kind for kind in kinds if self._known[kind] is not None), None)
        if best is None or (lasts_s := self._known[best]) is None:
            return None
        self.sources[row.job.id] = EstimateSource(best[1])
        return max(lasts_s - row.job.history.ran.total_seconds(), MORE * lasts_s, LEAST_S)

    def reported_end_s(self, job_id: str, attempt: int) -> float | None:
        """Return the end of a job by its own reports, None if its last estimate follows from else.

        The reports of an earlier attempt tell no end of this one.
        """
        reported = self._progress.get(job_id)
        if self.sources.get(job_id) is not EstimateSource.PROGRESS or reported is None:
            return None
        if reported.remaining_s is None or reported.attempt != attempt:
            return None
        return reported.seen_s + reported.remaining_s

    def _look_up(self, kind: _Kind) -> float | None:
        """Return the duration of jobs of a kind, as far as earlier ones tell."""
        return rounded(self.past.lasted_s(*kind))

    def observe_progress(
        self,
        job_id: str,
        at_s: float,
        facts: Mapping[str, object],
        attempt: Attempt,
        begun_s: float | None = None,
    ) -> float | None:
        """Note the step that a job reports; return for how long it will go on, None if that is unknown.

        All times are by one clock that nobody sets.

        Args:
            job_id: of the job.
            at_s: when it reported.
            facts: what it reported.
            attempt: that reported it.
            begun_s: when the first step of the attempt was done; None if nobody saw that.
        """
        step, total = facts.get("progress.step"), facts.get("progress.total")
        if not isinstance(step, int) or not isinstance(total, int):
            return None
        known = self._progress.get(job_id)
        if known is None or known.attempt != attempt.number or step < known.first_step:
            known = self._progress[job_id] = ReportedProgress(
                attempt.number, attempt.revision, at_s, step, at_s
            )
        return known.observe(at_s, step, total, begun_s)

    def update(self, row: JobRow, sweep: JobArray | None = None) -> tuple[str, ...]:
        """Estimate anew after the end of a job, and return the jobs whose estimate has changed."""
        changed: set[str] = set()
        for kind in _kinds(row, sweep):
            if kind in self._jobs:
                before, self._known[kind] = self._known[kind], self._look_up(kind)
                changed |= set() if before == self._known[kind] else self._jobs[kind]
        return tuple(changed)

    def forget(self, job_id: str) -> None:
        """Forget a job, and with the last one of its kind what is known of the kind."""
        self._progress.pop(job_id, None)
        self.sources.pop(job_id, None)
        for kind in self._kinds.pop(job_id, ()):
            self._jobs[kind].discard(job_id)
            if not self._jobs[kind]:
                del self._jobs[kind], self._known[kind]


def _next_step(job: Job) -> int | None:
    """Return the step after which the next attempt of a job begins, None if nobody knows."""
    if job.next_start.source is StartFrom.SCRATCH:
        return 0
    number = job.saved if job.next_start.step is None else job.next_start.step
    return None if number is not None and job.has_versions else number or 0


def _kinds(row: JobRow, sweep: JobArray | None) -> tuple[_Kind, ...]:
    """Return the kinds of earlier jobs that a job is like, the most alike first."""
    owner, schedule = row.owner.name, row.labels.get(SCHEDULE)
    name: _Kind = (owner, "name", row.name)
    if sweep is not None:
        return (owner, "matrix", sweep.id), name
    return (name,) if schedule is None else ((owner, "schedule", schedule), name)


def rounded(lasted_s: Iterable[float]) -> float | None:
    """Return the longest of some durations, rounded up; None where there is none."""
    longest_s = max(lasted_s, default=None)
    if longest_s is None:
        return None
    step_s = LEAST_S
    while step_s < longest_s:
        step_s *= STEP
    return step_s
