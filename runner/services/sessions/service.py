"""Right to begin a session inside of a job, the attempt that it joins, and the events that record it.

The streams of a session are moved by ``runner.server.api.sessions``; this service does what has to be right
before the first byte and after the last one.
"""

from dataclasses import dataclass
from datetime import datetime
from socket import socket
from typing import Final

from jobs.contract import JOB_DIR, RunPaths
from runner.agent.attempts.inside import MAIN, RELAY, TERMINAL, install, relay_command, terminal_command
from runner.agent.ports import RunDirectory
from runner.base.errors import Refused
from runner.base.readable import readable_duration
from runner.base.textfile import one_line
from runner.core.job.attempt import Attempt
from runner.core.job.describe import attempt_prefix
from runner.core.job.states import Finished, Running, Stopping
from runner.core.ports.exec import TerminalSize
from runner.core.ports.executor import Alive, Key
from runner.core.ports.store import JobRow
from runner.services.context import Caller, ServiceContext
from runner.services.queries import JobQueries

BEGUN: Final = "session_begun"
ENDED: Final = "session_ended"
"""Kinds of the events of sessions.  Everybody may read events, so they name no arguments of a command."""

LONGEST_NAME: Final = 80

MOST_TERMINALS: Final = 16
"""Terminals that are held in one attempt at a time."""


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
class AttemptOutcome:
    """End of an attempt under a session, and what became of its job."""

    name: str
    job: str
    cause: str  # one word, as in ``runner show``
    verdict: str
    state: str  # the outcome of a job that has ended, else its state


@dataclass(frozen=True, slots=True)
class SessionService:
    """Begins and ends sessions; calls block, and belong on a thread."""

    context: ServiceContext

    def record_begin(self, session: Session) -> None:
        """Record that a session begins; may raise Unavailable."""
        self._note(session, BEGUN, f"{session.what}, begun by {session.user}")

    def find(self, caller: Caller, reference: str, what: str) -> Session:
        """Return a new session in the running attempt of a job.

        Args:
            caller: who asks.
            reference: id or name of the job.
            what: the kind of session and what it is about, for the event.

        Raises:
            NotFound: there is no such job.
            Refused: it belongs to another user, or does not run.
        """
        row = JobQueries(self.context).readable_living(caller, reference)
        user, now = self.context.user(caller).name, self.context.clock.now()
        state = row.job.state
        if not isinstance(state, Running | Stopping):
            raise Refused(f"{_named(row)}: is {state.kind}; a session needs a running job")
        key = self.context.daemon.context.key(row.job.id, state.attempt.number)
        return Session(row, state.attempt, key, user, one_line(what)[:LONGEST_NAME], now)

    def prepare_terminal(
        self, session: Session, name: str, argv: tuple[str, ...], size: TerminalSize
    ) -> tuple[str, ...]:
        """Return the command that holds a new terminal in an attempt.

        Raises:
            Refused: the attempt has too many terminals.
            Unavailable: the file system refuses it.
        """
        directory, paths = self._place(session)
        held = directory.terminals(paths)
        if len(held) >= MOST_TERMINALS:
            raise Refused(
                f"{_named(session.row)}: has {len(held)} terminals already; end some: {held[0]}, ..."
            )
        install(directory, session.attempt.number, TERMINAL)
        in_container = self.context.daemon.context.executor.in_container
        return terminal_command(self._seen(session), name, argv, in_container=in_container, size=size)

    def prepare_relay(self, session: Session, name: str, port: int) -> tuple[str, ...]:
        """Return the command that connects a socket with a port of an attempt; may raise Unavailable."""
        directory, _ = self._place(session)
        install(directory, session.attempt.number, RELAY)
        in_container = self.context.daemon.context.executor.in_container
        return relay_command(self._seen(session), name, port, in_container=in_container)

    def choose_terminal(self, session: Session, name: str | None) -> str:
        """Return the name of the terminal to attach to: the named one, that of the program, or the newest.

        Raises:
            Refused: there is none.
        """
        directory, paths = self._place(session)
        held = directory.terminals(paths)
        if name is not None and name not in held:
            raise Refused(f"{one_line(name)}: no such terminal; there {_are(held)}")
        if not held:
            fact = "has no terminal; runner exec -it makes one"
            raise Refused(f"{_named(session.row)}: {fact}")
        return name or (MAIN if MAIN in held else held[-1])

    def connect(self, session: Session, name: str) -> socket:
        """Return a connection to a socket of an attempt; may raise Refused."""
        directory, paths = self._place(session)
        return directory.connect(paths, name)

    def _place(self, session: Session) -> tuple[RunDirectory, RunPaths]:
        directory = self.context.attempt_service.directory(session.row)
        return directory, directory.paths(session.attempt.number, session.attempt.lineage)

    def _seen(self, session: Session) -> RunPaths:
        """Return the paths of an attempt as it sees them."""
        if self.context.daemon.context.executor.in_container:
            return RunPaths(JOB_DIR, session.attempt.number, session.attempt.lineage)
        return self._place(session)[1]

    def is_alive(self, session: Session) -> bool:
        """Return True if the attempt of a session still runs, as the executor sees it."""
        executor = self.context.daemon.context.executor
        return any(seen.key == session.key and isinstance(seen, Alive) for seen in executor.observe())

    def outcome(self, session: Session) -> AttemptOutcome | None:
        """Return the end of a session's attempt; None if that is not known yet."""
        job_id = session.row.job.id
        attempts = self.context.store.attempts(job_id)
        ended = next((each for each in attempts if each.number == session.attempt.number), None)
        if ended is None or ended.ended_at is None:
            return None
        state = JobQueries(self.context).find(job_id).job.state
        result = str(state.outcome) if isinstance(state, Finished) else state.kind
        return AttemptOutcome(session.row.name, job_id, ended.cause or "", ended.verdict or "", result)

    def end(self, session: Session, outcome: str) -> None:
        """Record the end of a session."""
        lasted_s = (self.context.clock.now() - session.began_at).total_seconds()
        text = f"{session.what} of {session.user}, ended after {readable_duration(lasted_s)}: {outcome}"
        self._note(session, ENDED, text)

    def _note(self, session: Session, kind: str, text: str) -> None:
        now, prefix = self.context.clock.now(), attempt_prefix(session.attempt.number)
        self.context.daemon.run_exclusively(
            lambda: self.context.store.note(session.row.job.id, now, kind, prefix + text)
        )


def _named(row: JobRow) -> str:
    """Return a job as its user knows it."""
    return f"{row.name} (job {row.job.id})"


def _are(names: tuple[str, ...]) -> str:
    return f"are {', '.join(names)}" if names else "is none"
