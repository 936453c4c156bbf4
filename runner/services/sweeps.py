"""Sweeps: lets the best candidates go on at each rung, and ends a sweep.

A decision is noted, with the value by which it was made, before it is carried out.  All else is read anew, so
a daemon that was killed between two decisions makes the same ones.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import structlog

from runner.base.errors import Refused, RunnerError
from runner.base.fair_executor import FairExecutor
from runner.base.threads import PeriodicThread
from runner.core.accounting.curve import Curve, Point
from runner.core.accounting.curve_set import NOT_FINITE, CurveSet
from runner.core.job.attempt import Start, StartFrom
from runner.core.job.events import CancelRequested, RestartRequested
from runner.core.job.model import Job
from runner.core.job.states import Finished, Held, State, Stopping, StopReason
from runner.core.ports.store import JobRow
from runner.core.sweep import (
    DECIDED,
    OVER,
    Candidate,
    CandidateVerb,
    SweepTerms,
    compared,
    decide,
    decided_values,
    is_paused,
    winner,
)
from runner.files.revision import parse_revision
from runner.services.context import Caller, NotFound
from runner.services.curves import CurveService, is_of_host
from runner.services.jobs import JobService

log = structlog.get_logger()

LOOK_S: Final = 1.0

BUDGET_S: Final = 10.0
"""Between two looks at sweeps with a budget: it is used up while nothing else happens."""

MOST_KNOWN: Final = 10_000
"""Candidates whose values are in memory; to read them again costs a look at their files."""

NAME: Final = "its sweep"
"""Requester of a restart or an end, in the events of a candidate."""


@dataclass(slots=True)
class SweepService:
    """Looks at the sweeps of one daemon."""

    service: JobService
    curves: CurveService
    _seen: int = field(default=-1)
    """The event up to which all is decided."""
    _looked: float = -math.inf
    """Time of the last look at all, by the monotonic clock."""
    _work: FairExecutor = field(default_factory=lambda: FairExecutor("sweep", threads_per_user=1))
    _deciding: set[str] = field(default_factory=set)  # the first jobs of sweeps
    _known: dict[str, tuple[object, Candidate]] = field(default_factory=dict)  # that do not run, by job

    def thread(self) -> PeriodicThread:
        """Return a thread that looks from now on; it is not started yet."""
        return PeriodicThread("sweeps", LOOK_S, self.look)

    def look(self) -> None:
        """Decide what has changed since the last look; what cannot be read now is looked at again.

        The files of one owner may be slow, or many: nobody else's sweep waits for them.
        """
        newest, now = self.service.store.last_seq(), self.service.clock.monotonic()
        is_new, is_due = newest != self._seen, now - self._looked >= BUDGET_S
        if not is_new and not is_due:
            return
        self._seen, self._looked = newest, now
        groups = {}
        for tracked in list(self.service.daemon.tracked_jobs.values()):
            terms = self.service.attempt_service.terms(tracked.row)
            if terms.sweep_terms is None or terms.sweep is None:
                continue
            if is_new or terms.sweep_terms.budget_h is not None:
                groups[terms.sweep.id] = tracked.row.owner.uid, terms.sweep_terms
        for first, (owner, sweep) in groups.items():
            if first in self._deciding:
                self._seen = -1
                continue
            self._deciding.add(first)
            self._work.put(str(owner), partial(self._decide, first, sweep))

    def _decide(self, first: str, terms: SweepTerms) -> None:
        """Decide about the candidates of a sweep."""
        try:
            rows = {row.job.id: row for row in self._rows(first)}
            ended = []
            for each in decide(terms, [self.candidate(terms, row) for row in rows.values()]):
                noted = self.service.store.noted(each.job_id, DECIDED)
                if each.verb is not CandidateVerb.PROMOTE and any(line.startswith(OVER) for line in noted):
                    self._promote(each.job_id, rows[each.job_id].job.saved)  # somebody has restarted it
                    continue
                if each.reason not in noted:
                    self.service.store.note(each.job_id, self.service.clock.now(), DECIDED, each.reason)
                if each.verb is CandidateVerb.PROMOTE:
                    self._promote(each.job_id, each.step)
                ended += [each.job_id] if each.verb is CandidateVerb.END else []
            self._end(ended)
        except (RunnerError, OSError) as error:
            log.info("sweep.not_decided", sweep=first, problem=str(error))
            self._seen = -1
        finally:
            self._deciding.discard(first)

    def _rows(self, first: str) -> tuple[JobRow, ...]:
        store = self.service.store
        row = store.get(first)
        found = None if row is None else parse_revision(row.revision).sweep
        return () if found is None else store.following(first, found.count)

    def _promote(self, job_id: str, step: int | None) -> None:
        """Let a candidate go on from its rung; one that no longer waits there is left alone."""

        def promote() -> None:
            row = self.service.queries.current(job_id)
            if is_paused(row.job.state):
                event = RestartRequested(
                    self.service.clock.now(), NAME, Start(StartFrom.STEP, step), None, step
                )
                self.service.daemon.apply_event(row, event)

        self.service.daemon.run_exclusively(promote)

    def _end(self, ids: Sequence[str]) -> None:
        """Cancel the candidates that have not ended, all at once."""

        def end() -> None:
            current = [self.service.queries.current(job_id) for job_id in ids]
            left = [row for row in current if not _is_cancelled(row.job.state)]
            self.service.daemon.apply_event_to_all(left, CancelRequested(self.service.clock.now(), NAME))

        if ids:
            self.service.daemon.run_exclusively(end)

    def candidate(self, terms: SweepTerms, row: JobRow, *, all_of_it: bool = False) -> Candidate:
        """Return a candidate as it is now, its hours if they are needed; may raise Unavailable."""
        key = (terms, row.job.state, row.job.saved, row.job.lineage)
        known, found = self._known.get(row.job.id, (None, None))
        if found is None or key != known:
            found = self._read(terms, row)
            if isinstance(row.job.state, Held | Finished):  # else it may still report
                if len(self._known) >= MOST_KNOWN:
                    self._known.clear()
                self._known[row.job.id] = key, found
        needs_hours = terms.budget_h is not None or all_of_it
        return replace(found, device_h=self._hours(row) if needs_hours else 0.0)

    def _read(self, terms: SweepTerms, row: JobRow) -> Candidate:
        job, state = row.job, row.job.state
        revision = parse_revision(row.revision)
        outcome = str(state.outcome) if isinstance(state, Finished) else None
        saved = (
            len(terms.rungs) if outcome == "succeeded" else sum(r <= (job.saved or 0) for r in terms.rungs)
        )
        found = self._curves(row) if saved or outcome else CurveSet()
        curves = found.curves
        return Candidate(
            job_id=job.id,
            number=1 if revision.sweep is None else revision.sweep.number,
            reached=saved,
            values=self._values(terms, job, curves, saved),
            paused=is_paused(state),
            outcome=outcome,
            final=self._final(terms, row, curves) if outcome == "succeeded" else None,
            lineage=job.lineage,
            reported=frozenset(name for name in found.metrics() if not is_of_host(name)),
        )

    def _final(self, terms: SweepTerms, row: JobRow, curves: Mapping[str, Curve]) -> float | None:
        """Return the last value of the metric, which a program may tell in its result only."""
        if not curves.keys().isdisjoint({terms.metric, f"{terms.metric}{NOT_FINITE}"}):
            return _value_at(curves, terms.metric, None)
        directory = self.service.attempt_service.directory(row)
        result = directory.result(directory.paths(row.job.attempts, row.job.lineage))
        return None if result is None else result.metrics.get(terms.metric)

    def _curves(self, row: JobRow) -> CurveSet:
        """Return the reports of a candidate; all of them if it does not run: one look reads a part."""
        found = self.curves.of_job(row)
        while isinstance(row.job.state, Held | Finished):
            at = found.attempt, found.offset
            found = self.curves.of_job(row)
            if (found.attempt, found.offset) == at:
                break
        return found

    def _values(
        self, terms: SweepTerms, job: Job, curves: Mapping[str, Curve], saved: int
    ) -> tuple[float | None, ...]:
        """Return the values at the rungs that a candidate has reached; one that was decided by stays."""
        noted = self.service.store.noted(job.id, DECIDED) if saved else ()
        known = decided_values(terms.metric, noted, job.lineage)
        return tuple(
            known[rung] if rung in known else compared(_value_at(curves, terms.metric, rung))
            for rung in terms.rungs[:saved]
        )

    def _hours(self, row: JobRow) -> float:
        """Return the device hours of a job, CPU hours of one without devices."""
        now, revision = self.service.clock.now(), parse_revision(row.revision)
        resources = revision.job.resources
        attempts = self.service.store.attempts(row.job.id)
        spans = ((each.ended_at or now) - each.launched_at for each in attempts if each.launched_at)
        seconds = sum(span.total_seconds() for span in spans)
        return seconds / 3600 * (resources.gpus or resources.cpus) * revision.nodes(row.job.turned)

    def describe(self, caller: Caller, reference: str) -> dict[str, Any]:
        """Return a sweep as JSON: its terms, its candidates with their values, and the best of them.

        Raises:
            NotFound: the job is no candidate.
        """
        queries = self.service.queries
        rows = queries.sweep(caller, reference)
        queries.check_permission(caller, rows[0])
        terms = self.service.attempt_service.terms(rows[0]).sweep_terms
        if terms is None:
            raise NotFound(f"job {rows[0].job.id}: is of a matrix, which has no metric; runner list --sweep")
        found = [self.candidate(terms, row, all_of_it=True) for row in rows]
        best = winner(terms, found)
        return {
            "sweep": rows[0].job.id,
            "name": rows[0].name.rpartition("-")[0],
            "metric": terms.metric,
            "direction": "maximize" if terms.maximize else "minimize",
            "rungs": list(terms.rungs),
            "device_h": sum(each.device_h for each in found),
            "best": None if best is None else best.job_id,
            "candidates": [self._shown(*each) for each in zip(rows, found, strict=True)],
        }

    def _shown(self, row: JobRow, candidate: Candidate) -> dict[str, Any]:
        place = parse_revision(row.revision).sweep
        return {
            "job": row.job.id,
            "name": row.name,
            "state": "paused" if candidate.paused else candidate.outcome or row.job.state.kind,
            "parameters": {} if place is None else place.values,
            "step": row.job.saved,
            "values": list(candidate.values),
            "final": candidate.final,
            "device_h": candidate.device_h,
            "decisions": list(self.service.store.noted(row.job.id, DECIDED)),
        }

    def hold(self, caller: Caller, reference: str) -> Iterator[JobRow]:
        """Hold the candidates that neither wait at a rung nor have ended, and yield them.

        Raises:
            Refused: one of them is just being stopped for another reason; all others are held.
        """
        rows = self.service.queries.sweep(caller, reference)
        for row in sorted(rows, key=lambda each: isinstance(each.job.state, Stopping)):
            if not _is_over_or_held(row.job.state):
                yield self.service.job_control.hold(caller, row.job.id)

    def release(self, caller: Caller, reference: str) -> Iterator[JobRow]:
        """Release the candidates that a person has held, and yield them.

        Raises:
            Refused: one of them is still being stopped.
        """
        rows = self.service.queries.sweep(caller, reference)
        for row in rows:
            if isinstance(row.job.state, Stopping) and row.job.state.reason is StopReason.HOLD:
                raise Refused(f"job {row.job.id}: is still being stopped; try again when it is held")
        for row in rows:
            if isinstance(row.job.state, Held) and not is_paused(row.job.state):
                yield self.service.job_control.release(caller, row.job.id)


def _is_cancelled(state: State) -> bool:
    """Return True if a candidate has ended, or is being stopped for that."""
    return isinstance(state, Finished) or (
        isinstance(state, Stopping) and state.reason is StopReason.CANCELLED
    )


def _is_over_or_held(state: State) -> bool:
    """Return True if a candidate does not run on: it has ended or is held, or is being stopped for that."""
    held = isinstance(state, Stopping) and state.reason is StopReason.HOLD
    return held or isinstance(state, Held) or _is_cancelled(state)


def _value_at(curves: Mapping[str, Curve], metric: str, step: int | None) -> float | None:
    """Return the last value of a metric up to a step, or of all; None: it was not finite, or not reported."""
    last, lost = (_last(curves.get(name), step) for name in (metric, f"{metric}{NOT_FINITE}"))
    if last is None or (lost is not None and (lost.step or 0, lost.at) >= (last.step or 0, last.at)):
        return None
    return last.mean  # of the same step if a later attempt has repeated it


def _last(curve: Curve | None, step: int | None) -> Point | None:
    """Return the last point of a curve up to a step, or of all of it."""
    points = [] if curve is None else reversed(curve.points)
    return next((each for each in points if step is None or each.step is None or each.step <= step), None)
