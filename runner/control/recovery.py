"""Does again, after a start, the clean-ups that recorded states imply and that a killed daemon has not done.

A transition is recorded before its consequences are carried out.  The commands of unfinished jobs are
implied by their states.  What follows the end of an attempt or of a job is a clean-up: the copy of the
decision is written, and secrets and drafts are removed.  All of this is idempotent, so a daemon that
starts does it for every job that has changed since the last time that this was completed.
"""

from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Final

import structlog

from runner.base.errors import RunnerError
from runner.base.retry import describe_error
from runner.control.context import Context
from runner.control.inbox import Inbox
from runner.control.messages import Call
from runner.core.job.states import Finished

log = structlog.get_logger()

EXIT: Final = "exit"
"""The moment of decisions about the end of an attempt, of which each attempt gets a copy."""


@dataclass(slots=True, repr=False)
class Recovery:
    """The clean-ups of one start."""

    context: Context
    inbox: Inbox
    _pending: set[str] = field(default_factory=set)
    _lock: Lock = field(default_factory=Lock)

    def start(self) -> None:
        """Queue the clean-up of each job behind its other work."""
        store = self.context.store
        newest, changed = store.last_seq(), store.changed_after(store.cleaned_up_to())
        self._pending.update(changed)
        for job_id in changed:
            self.context.work_queue.put(job_id, partial(self._clean_up, job_id, newest))

    def _clean_up(self, job_id: str, newest: int) -> None:
        """Clean up after one job; the last one records that the work is done."""
        try:
            self._clean_up_job(job_id)
        except RunnerError as error:  # the next daemon tries again
            log.warning("job.not_cleaned_up", job_id=job_id, problem=describe_error(error))
            return
        with self._lock:
            self._pending.discard(job_id)
            done = not self._pending
        if done:
            self.inbox.put(Call(partial(self.context.store.record_cleaned_up, newest)))

    def _clean_up_job(self, job_id: str) -> None:
        row, attempts = self.context.store.get(job_id), self.context.attempt_service
        if row is None:
            return
        latest = {each.attempt: each for each in self.context.store.decisions(job_id) if each.moment == EXIT}
        for decision in latest.values():
            if not attempts.has_decision(row, decision):
                attempts.save_decision(row, decision)
        if isinstance(row.job.state, Finished):
            attempts.clean_up_files(row)
