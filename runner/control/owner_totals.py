"""What each user and group has in the queue, counted job by job: a check costs the same for any queue."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from runner.core.job.states import Finished, Preparing, Queued
from runner.core.ports.store import JobRow


class _Share(NamedTuple):
    """What one job adds to the totals."""

    owner: str
    group: str
    waits: bool
    size: int


@dataclass(slots=True, repr=False)
class OwnerTotals:
    """The totals of all unfinished jobs; to be used in the exclusive section."""

    _shares: dict[str, _Share] = field(default_factory=dict)  # by job
    _user_waits: Counter[str] = field(default_factory=Counter)
    _group_waits: Counter[str] = field(default_factory=Counter)
    _user_bytes: Counter[str] = field(default_factory=Counter)

    def update(self, row: JobRow, group: str) -> None:
        """Replace what a job adds by what it adds now."""
        state = row.job.state
        if (before := self._shares.pop(row.job.id, None)) is not None:
            self._add(before, -1)
        if not isinstance(state, Finished):
            waits = isinstance(state, Preparing | Queued)
            share = self._shares[row.job.id] = _Share(row.owner.name, group, waits, len(row.revision))
            self._add(share, 1)

    def queued(self, owner: str, group: str) -> tuple[int, int]:
        """Return the waiting jobs of a user and of a group."""
        return self._user_waits[owner], self._group_waits[group]

    def job_file_bytes(self, owner: str) -> int:
        """Return the size of the job files of a user's unfinished jobs."""
        return self._user_bytes[owner]

    def _add(self, share: _Share, sign: int) -> None:
        self._user_bytes[share.owner] += sign * share.size
        if share.waits:
            self._user_waits[share.owner] += sign
            self._group_waits[share.group] += sign
