"""Control of jobs: cancel, hold, release, restart, signal."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from runner.agent.attempts.checkpoints import program_files, read_saved
from runner.base.errors import Refused, UsageError
from runner.core.job.attempt import Start, StartFrom
from runner.core.job.describe import SIGNALLED, attempt_prefix
from runner.core.job.events import CancelRequested, Event, HoldRequested, ReleaseRequested, RestartRequested
from runner.core.job.states import Allocated, Finished, Held, State, Stopping, StopReason
from runner.core.ports.checkpoints import SavedCheckpoints, Verification
from runner.core.ports.store import JobRow
from runner.core.sweep import is_paused
from runner.files.revision import parse_revision
from runner.services.context import Caller, NotFound, ServiceContext
from runner.services.queries import JobQueries

CANARY: Final = "its canary"
"""Holds a job for some time."""

NAMED: Final = 3
"""Checkpoints that cannot be used, of which a refusal tells what is wrong with them."""


@dataclass(frozen=True, slots=True)
class JobControlService:
    """Changes the state of jobs for callers who may do so."""

    context: ServiceContext

    @property
    def queries(self) -> JobQueries:
        """The queries of the same daemon."""
        return JobQueries(self.context)

    def cancel(self, caller: Caller, reference: str) -> tuple[JobRow, bool]:
        """Cancel a job; return it, and whether this call changed anything: to cancel twice is no error."""
        return self.cancel_all(caller, (reference,))[0]

    def cancel_sweep(self, caller: Caller, reference: str) -> tuple[tuple[JobRow, bool], ...]:
        """Cancel the jobs of a matrix that have not ended, all or none; see ``cancel_all``."""
        rows = self.queries.sweep(caller, reference)
        return self._cancel(caller, _unfinished(rows))

    def cancel_all(self, caller: Caller, references: Sequence[str]) -> tuple[tuple[JobRow, bool], ...]:
        """Cancel jobs, all or none; return each, and whether this call changed it.

        Raises:
            NotFound: there is no job of one of these names.
            Refused: one belongs to another user.
        """
        return self._cancel(caller, [row for ref in references for row in self._named(caller, ref)])

    def _named(self, caller: Caller, reference: str) -> Sequence[JobRow]:
        """Return a job, or of a matrix by its name the jobs that have not ended; all if all have."""
        try:
            return (self.queries.find_living(reference, caller),)
        except NotFound as unknown:
            try:
                rows = self.queries.sweep(caller, reference)
            except NotFound:
                raise unknown from None
            return _unfinished(rows) or rows

    def _cancel(self, caller: Caller, rows: Sequence[JobRow]) -> tuple[tuple[JobRow, bool], ...]:
        for row in rows:
            self.queries.check_permission(caller, row)
        event = CancelRequested(self.context.clock.now(), self.context.user(caller).name)
        ids = tuple(dict.fromkeys(row.job.id for row in rows))

        def cancel_together() -> tuple[tuple[JobRow, bool], ...]:
            current = {job_id: self.queries.current(job_id) for job_id in ids}
            changing = [row for row in current.values() if not _is_ending(row)]
            changed = {row.job.id: row for row in self.context.daemon.apply_event_to_all(changing, event)}
            return tuple((changed.get(job_id, row), job_id in changed) for job_id, row in current.items())

        return self.context.daemon.run_exclusively(cancel_together)

    def hold(self, caller: Caller, reference: str) -> JobRow:
        """Hold a job: it gives its resources back, and waits for ``release``; to hold twice is no error."""
        job_id = self.queries.readable_living(caller, reference).job.id
        event = HoldRequested(self.context.clock.now(), self.context.user(caller).name)

        def hold_once() -> JobRow:
            row = self.queries.current(job_id)
            return row if _is_held(row.job.state) else self.context.daemon.apply_event(row, event)

        return self.context.daemon.run_exclusively(hold_once)

    def release(self, caller: Caller, reference: str) -> JobRow:
        """Release a held job into the queue.

        Raises:
            Refused: its next attempt would begin at step 0, although it has saved something.
        """
        row = self.queries.readable_living(caller, reference)
        self._check_begin(row)
        now, name = self.context.clock.now(), self.context.user(caller).name
        if is_paused(row.job.state):  # it would pause there again, unless it is told to go on from there
            step = row.job.saved
            return self._apply(row, RestartRequested(now, name, Start(StartFrom.STEP, step), None, step))
        return self._apply(row, ReleaseRequested(now, name))

    def restart(self, caller: Caller, reference: str, start: Start, lineage: int | None = None) -> JobRow:
        """Start another attempt of a job, in its present lineage or in another of its lineages.

        Raises:
            UsageError: a new lineage and an earlier one are asked for.
            Refused: the state of the job does not allow it, there is no such lineage or checkpoint, or the
                attempt would begin at step 0 in silence.
        """
        row = self.queries.readable(caller, reference)
        if start.source is StartFrom.CHECKPOINT and lineage is None:
            self._check_begin(row)
        if lineage is not None and start.source is StartFrom.SCRATCH:
            raise UsageError("restart: scratch begins a new lineage; leave out the number of an earlier one")
        saved = self._saved(row, start.step, lineage)
        now, name = self.context.clock.now(), self.context.user(caller).name
        has_versions = saved.has_versions if saved.steps else None
        return self._apply(row, RestartRequested(now, name, start, lineage, saved.newest, has_versions))

    def _check_begin(self, row: JobRow) -> None:
        """Refuse what would begin at step 0 although a program has saved something: that is asked for.

        Raises:
            Refused: none of the checkpoints can be used.
        """
        is_program = program_files(parse_revision(row.revision)) is not None
        if not is_program or not row.job.attempts or isinstance(row.job.state, Allocated):
            return
        directory = self.context.attempt_service.directory(row)
        paths = directory.paths(row.job.attempts, row.job.lineage)
        saved = read_saved(directory, paths, row, self._thoroughness(row))
        if saved.steps or not saved.complete:
            return
        aside = ", ".join(map(str, sorted(saved.set_aside)))
        found = [*saved.rejected[:NAMED], *([f"set aside: {aside} (restart --from)"] if aside else ())]
        if not found and row.job.saved is None:
            return
        fact = f"no checkpoint can be used: {'; '.join(found) or 'those that it had are gone'}"
        ways = f"mend them, or begin at step 0 with: runner restart {row.job.id} --from scratch"
        raise Refused(f"job {row.job.id}: {fact}; {ways}; nothing was changed")

    def _saved(self, row: JobRow, step: int | None, lineage: int | None) -> SavedCheckpoints:
        """Return the checkpoints of a lineage, if it is asked for; their content is not verified.

        Raises:
            Refused: the job has no such lineage, or no checkpoint of that step in it.
        """
        if step is None and lineage is None:
            return SavedCheckpoints()
        known, wanted = row.job.lineages, row.job.lineage if lineage is None else lineage
        if wanted > known:
            all_of_them = "lineage 1" if known == 1 else f"lineages 1 to {known}"
            raise Refused(f"job {row.job.id}: no lineage {wanted}; it has {all_of_them}; nothing was changed")
        directory = self.context.attempt_service.directory(row)
        paths = directory.paths(max(row.job.attempts, 1), wanted)
        saved = read_saved(directory, paths, row, self._thoroughness(row), also=step)
        if step is not None and step not in {*saved.steps, *saved.set_aside}:
            steps = ", ".join(map(str, sorted(saved.steps))) or "none"
            aside = ", ".join(map(str, sorted(saved.set_aside)))
            kind = "version" if (saved if saved.steps else row.job).has_versions else "step"
            fact = f"no valid checkpoint of {kind} {step}; lineage {wanted} has {steps}"
            fact += f", and {aside} set aside" if aside else ""
            raise Refused(f"job {row.job.id}: {fact}; nothing was changed")
        return saved

    @staticmethod
    def _thoroughness(row: JobRow) -> Verification:
        """Return the thoroughness that hashes no checkpoint.

        Files of a program that has ended do not change any more, however lately they were written.
        """
        own = program_files(parse_revision(row.revision)) is not None
        return Verification.KNOWN if own and not isinstance(row.job.state, Allocated) else Verification.SIZES

    def signal(self, caller: Caller, reference: str, number: int, name: str) -> JobRow:
        """Send a signal to the program of a job."""
        job_id = self.queries.readable_living(caller, reference).job.id
        text = f"{name} requested by {self.context.user(caller).name}"

        def send() -> JobRow:
            row = self.queries.current(job_id)
            self.context.daemon.signal(row, number)
            now = self.context.clock.now()
            self.context.store.note(job_id, now, SIGNALLED, attempt_prefix(row.job.attempts) + text)
            return row

        return self.context.daemon.run_exclusively(send)

    def _apply(self, row: JobRow, event: Event) -> JobRow:
        """Let the control loop apply an event to a job."""
        daemon = self.context.daemon
        return daemon.run_exclusively(lambda: daemon.apply_event(self.queries.current(row.job.id), event))


def _unfinished(rows: Iterable[JobRow]) -> list[JobRow]:
    return [row for row in rows if not isinstance(row.job.state, Finished)]


def _is_held(state: State) -> bool:
    """Return True if a job is held, or is about to be; not if its canary holds it, which releases it."""
    is_stopped = isinstance(state, Stopping) and state.reason == StopReason.HOLD and state.by != CANARY
    return is_stopped or (isinstance(state, Held) and state.why != f"held by {CANARY}")


def _is_ending(row: JobRow) -> bool:
    """Return True if a job has ended, or was cancelled before and is about to end."""
    state = row.job.state
    return isinstance(state, Finished) or (isinstance(state, Stopping) and state.reason == "cancelled")
