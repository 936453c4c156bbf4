"""Who may begin a session inside of a job, in which attempt, and the events that record it.

The streams of a session are moved by ``runner.server.api.sessions``; this service does what has to be right
before the first byte and after the last one.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from runner.base.errors import Refused
from runner.base.textfile import one_line
from runner.core.job.attempt import Attempt
from runner.core.job.describe import attempt_prefix
from runner.core.job.states import Running, Stopping
from runner.core.ports.executor import Key
from runner.core.ports.store import JobRow
from runner.services.context import Caller, ServiceContext
from runner.services.queries import JobQueries

BEGUN: Final = "session_begun"
ENDED: Final = "session_ended"
"""Kinds of the events of sessions.  Everybody may read events, so they name no arguments of a command."""

LONGEST_NAME: Final = 80


@dataclass(frozen=True, slots=True)
class Session:
    """A session inside of one attempt."""

    row: JobRow
    attempt: Attempt
    key: Key
    user: str
    what: str
    began_at: datetime


@dataclass(frozen=True, slots=True)
class SessionService:
    """Begins and ends sessions; calls block, and belong on a thread."""

    context: ServiceContext

    def begin(self, caller: Caller, reference: str, what: str) -> Session:
        """Return a new session in the running attempt of a job, and record that it begins.

        Args:
            caller: who asks.
            reference: id or name of the job.
            what: the kind of session and what it is about, for the event.

        Raises:
            NotFound: there is no such job.
            Refused: it belongs to another user, or does not run.
        """
        row = JobQueries(self.context).readable(caller, reference)
        user, now = self.context.user(caller).name, self.context.clock.now()
        state = row.job.state
        if not isinstance(state, Running | Stopping):
            raise Refused(f"job {row.job.id}: is {state.kind}; a session needs a running job")
        key = self.context.daemon.context.key(row.job.id, state.attempt.number)
        session = Session(row, state.attempt, key, user, one_line(what)[:LONGEST_NAME], now)
        self._note(session, BEGUN, f"{session.what}, begun by {user}")
        return session

    def end(self, session: Session, outcome: str) -> None:
        """Record the end of a session."""
        lasted_s = (self.context.clock.now() - session.began_at).total_seconds()
        text = f"{session.what} of {session.user}, ended after {lasted_s:.0f} s: {outcome}"
        self._note(session, ENDED, text)

    def _note(self, session: Session, kind: str, text: str) -> None:
        now, prefix = self.context.clock.now(), attempt_prefix(session.attempt.number)
        self.context.daemon.run_exclusively(
            lambda: self.context.store.note(session.row.job.id, now, kind, prefix + text)
        )
