"""Totals of each user and group in the queue, counted job by job: a check costs the same for any queue."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from runner.core.job.revision_text import RevisionText
from runner.core.job.states import Finished, Preparing, Queued
from runner.core.ports.store import JobRow

STORED_AT_ONCE: Final = 8
"""Writes of job files that a user may have at once, beyond one each hour."""

HOUR_S: Final = 3600.0


class _Share(NamedTuple):
    """Contribution of one job to the totals."""

    owner: str
    group: str
    waits: bool
    text: RevisionText


@dataclass(slots=True, repr=False)
class OwnerTotals:
    """The totals of all unfinished jobs; to be used in the exclusive section."""

    _shares: dict[str, _Share] = field(default_factory=dict)  # by job
    _user_waits: Counter[str] = field(default_factory=Counter)
    _group_waits: Counter[str] = field(default_factory=Counter)
    _user_bytes: Counter[str] = field(default_factory=Counter)
    _stored: dict[str, tuple[float, float]] = field(default_factory=dict)  # by user: bytes, and when
    _sharers: Counter[tuple[str, int]] = field(default_factory=Counter)  # by user and identity of the text

    def update(self, row: JobRow, group: str) -> None:
        """Replace what a job adds by what it adds now."""
        state = row.job.state
        if (before := self._shares.pop(row.job.id, None)) is not None:
            self._add(before, -1)
        if not isinstance(state, Finished):
            waits = isinstance(state, Preparing | Queued)
            share = self._shares[row.job.id] = _Share(row.owner.name, group, waits, row.text)
            self._add(share, 1)

    def queued(self, owner: str, group: str) -> tuple[int, int]:
        """Return the waiting jobs of a user and of a group."""
        return self._user_waits[owner], self._group_waits[group]

    def job_file_bytes(self, owner: str) -> int:
        """Return the size of the job files of a user's unfinished jobs, a text that they share once."""
        return self._user_bytes[owner]

    def store(self, owner: str, more: int, limit: int, now_s: float) -> bool:
        """Count a text that the store keeps for ever; return False if a user has had too many lately."""
        size, at = self._stored.get(owner, (0.0, now_s))
        size = max(0.0, size - (now_s - at) * limit / HOUR_S) + more
        if size > STORED_AT_ONCE * limit:
            return False
        self._stored[owner] = (size, now_s)
        return True

    def _shared_size(self, share: _Share, sign: int) -> int:
        """Return the size of the shared text for the first job and the last one that refer to it, else 0."""
        key, size = (share.owner, id(share.text.shared)), len(share.text.shared.text)
        self._sharers[key] += sign
        if sign > 0:
            return size if self._sharers[key] == 1 else 0
        if self._sharers[key]:
            return 0
        del self._sharers[key]
        return size

    def _add(self, share: _Share, sign: int) -> None:
        self._user_bytes[share.owner] += sign * (share.text.own_size + self._shared_size(share, sign))
        if share.waits:
            self._user_waits[share.owner] += sign
            self._group_waits[share.group] += sign
