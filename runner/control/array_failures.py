"""Matrices with a limit of failures: which of their jobs have failed, and which are cancelled for it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from runner.core.job.states import Finished, Outcome
from runner.core.ports.store import JobRow, Store
from runner.core.scheduler.snapshot import JobArray, PendingJob


@dataclass(slots=True)
class ArrayFailures:
    """The failed jobs of the matrices that have a limit; others are not looked at."""

    store: Store
    _failed: dict[str, set[str]] = field(default_factory=dict)  # by matrix
    _spent: set[str] = field(default_factory=set)  # matrices that have reached their limit

    def note(self, row: JobRow, array: JobArray | None) -> None:
        """Take in what a job is now."""
        if array is None or array.max_failures is None:
            return
        if array.id not in self._failed:  # what happened before this process
            members = (self.store.get(str(int(array.id) + number)) for number in range(array.count))
            self._failed[array.id] = {each.job.id for each in members if each and _has_failed(each)}
        failed = self._failed[array.id]
        (failed.add if _has_failed(row) else failed.discard)(row.job.id)
        (self._spent.add if len(failed) >= array.max_failures else self._spent.discard)(array.id)

    def given_up(self, pending: Mapping[str, PendingJob]) -> Iterator[tuple[str, str]]:
        """Yield the jobs of matrices that have reached their limit, with the reason.

        What has run loses nothing, as what runs does not, and what a person has restarted is wanted.
        """
        if not self._spent:
            return
        for job in pending.values():
            if job.array is None or job.array.id not in self._spent or job.ran_s:
                continue
            if not self.store.noted(job.job_id, "restart_requested"):
                count = len(self._failed[job.array.id])
                yield job.job_id, f"matrix.max_failures: {count} of its jobs failed"


def _has_failed(row: JobRow) -> bool:
    return isinstance(row.job.state, Finished) and row.job.state.outcome is Outcome.FAILED
