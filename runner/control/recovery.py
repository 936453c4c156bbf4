"""Does again, after a start, the clean-ups that recorded states imply and that a killed daemon has not done.

A transition is recorded before its consequences are carried out.  The commands of unfinished jobs are
implied by their states.  What follows the end of an attempt or of a job is a clean-up: the copy of the
decision is written, and secrets and drafts are removed.  All of this is idempotent, so a daemon that
starts does it for every job that has changed since the last time that this was completed.
"""

from collections import deque
from dataclasses import dataclass, field
from functools import partial
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
    _left: deque[str] = field(default_factory=deque)
    _failed: bool = False

    def start(self) -> None:
        """Queue the clean-ups, one behind the other: there may be thousands, and nobody waits for them."""
        store = self.context.store
        newest = store.last_seq()
        self._left.extend(store.changed_after(store.cleaned_up_to()))
        self._queue_next(newest)

    def _queue_next(self, newest: int) -> None:
        """Queue the clean-up of the next job behind its other work; behind the last one note the end."""
        if self._left:
            job_id = self._left.popleft()
            self.context.work_queue.put(job_id, partial(self._clean_up, job_id, newest), "")
        elif not self._failed:
            self.inbox.put(Call(partial(self.context.store.record_cleaned_up, newest)))

    def _clean_up(self, job_id: str, newest: int) -> None:
        done = False
        try:
            self._clean_up_job(job_id)
            done = True
        except RunnerError as error:  # the next daemon tries again
            log.warning("job.not_cleaned_up", job_id=job_id, problem=describe_error(error))
        finally:  # another error is told by the queue, and the other jobs are cleaned up all the same
            self._failed |= not done
            self._queue_next(newest)

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
