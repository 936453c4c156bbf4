"""Dependencies between jobs: which jobs are waited for, and how those that have ended did."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from runner.core.scheduler.snapshot import EndedJob


@dataclass(slots=True)
class DependencyTracker:
    """The jobs that others wait for, and how those that have ended did."""

    ended: dict[str, EndedJob] = field(default_factory=dict)
    _dependants: dict[str, set[str]] = field(default_factory=dict)  # by the job that they wait for
    _predecessors: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by the job that waits

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._dependants

    def wait(self, job_id: str, others: Iterable[str]) -> None:
        """Let a job wait for others, and for no job else."""
        before, self._predecessors[job_id] = self._predecessors.get(job_id, ()), tuple(dict.fromkeys(others))
        for other in self._predecessors[job_id]:
            self._dependants.setdefault(other, set()).add(job_id)
        self._remove(job_id, set(before) - set(self._predecessors[job_id]))

    def leave(self, job_id: str) -> None:
        """Let a job wait for no job any more; jobs that nobody waits for are forgotten."""
        self._remove(job_id, self._predecessors.pop(job_id, ()))

    def _remove(self, job_id: str, others: Iterable[str]) -> None:
        for other in others:
            self._dependants[other].discard(job_id)
            if not self._dependants[other]:
                del self._dependants[other]
                self.ended.pop(other, None)

    def shift(self, seconds: float) -> None:
        """Shift the times of all ends after the time of day was set: they are as long ago as before."""
        self.ended = {job_id: replace(each, at_s=each.at_s + seconds) for job_id, each in self.ended.items()}
