"""How long a job will probably hold what it gets: as long as its owner's latest jobs of that name."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from runner.ports import JobRow, Past

LEAST_S: Final = 60.0
"""A job that has had all the time that was expected is taken to need so much more at least,"""

MORE: Final = 0.1
"""and at least this part of what was expected."""

STEP: Final = 1.25
"""What is learned is rounded up in such steps, so that it seldom changes."""

_Name = tuple[str, str]  # owner and name


@dataclass(slots=True)
class Learned:
    """What the past suggests, and which unfinished jobs it is about."""

    past: Past | None  # None: there is none
    _known: dict[_Name, float | None] = field(default_factory=dict)
    _jobs: dict[_Name, set[str]] = field(default_factory=dict)
    _names: dict[str, _Name] = field(default_factory=dict)

    def left_s(self, row: JobRow) -> float | None:
        """Return for how long a job will go on; None: nobody knows.  The job is remembered."""
        if self.past is None or row.job.time_limit is not None:
            return None
        name = (row.owner.name, row.name)
        self._names[row.job.id] = name
        self._jobs.setdefault(name, set()).add(row.job.id)
        if name not in self._known:
            self._known[name] = rounded(self.past.lasted_s(*name))
        lasts_s, ran_s = self._known[name], row.job.history.ran.total_seconds()
        return None if lasts_s is None else max(lasts_s - ran_s, MORE * lasts_s, LEAST_S)

    def again(self, owner: str, name: str) -> tuple[str, ...]:
        """Look at the past of a name again, and return the jobs for which it now says something else."""
        key = (owner, name)
        if self.past is None or key not in self._jobs:
            return ()
        before, self._known[key] = self._known.get(key), rounded(self.past.lasted_s(owner, name))
        return () if before == self._known[key] else tuple(self._jobs[key])

    def forget(self, job_id: str) -> None:
        """Forget an unfinished job, and its name with the last one of that name."""
        name = self._names.pop(job_id, None)
        if name is not None:
            self._jobs[name].discard(job_id)
            if not self._jobs[name]:
                del self._jobs[name]
                self._known.pop(name, None)


def rounded(lasted_s: Iterable[float]) -> float | None:
    """Return the longest of some durations, rounded up; None where there is none."""
    longest_s = max(lasted_s, default=None)
    if longest_s is None:
        return None
    step_s = LEAST_S
    while step_s < longest_s:
        step_s *= STEP
    return step_s
