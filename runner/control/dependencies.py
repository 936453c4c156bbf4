"""Who waits for whom: jobs that others wait for, and how those have ended that have."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from runner.core.scheduler.snapshot import EndedJob


@dataclass(slots=True)
class DependencyTracker:
    """The jobs that others wait for, and how those have ended that have."""

    ended: dict[str, EndedJob] = field(default_factory=dict)
    _by: dict[str, set[str]] = field(default_factory=dict)  # who waits, by whom is waited for
    _for: dict[str, tuple[str, ...]] = field(default_factory=dict)  # the other way round

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._by

    def wait(self, job_id: str, others: Iterable[str]) -> None:
        """Let a job wait for others, and for nobody else."""
        before, self._for[job_id] = self._for.get(job_id, ()), tuple(dict.fromkeys(others))
        for other in self._for[job_id]:
            self._by.setdefault(other, set()).add(job_id)
        self._left(job_id, set(before) - set(self._for[job_id]))

    def leave(self, job_id: str) -> None:
        """Let a job wait for nobody any more; whoever is not waited for is forgotten."""
        self._left(job_id, self._for.pop(job_id, ()))

    def _left(self, job_id: str, others: Iterable[str]) -> None:
        for other in others:
            self._by[other].discard(job_id)
            if not self._by[other]:
                del self._by[other]
                self.ended.pop(other, None)

    def later(self, seconds: float) -> None:
        """Take in that somebody has set the time of day: what has ended is as long ago as it was."""
        self.ended = {job_id: replace(each, at_s=each.at_s + seconds) for job_id, each in self.ended.items()}
