"""The steps of an attempt with their times, and whether it saves when it is asked to stop.

A built-in workload writes both down.  A program of the user's own may report its steps in ``metrics.jsonl``,
or only its present step: in ``status.json``, by ``progress.pattern``, or by the lines of tqdm and of Hugging
Face's ``Trainer``.  A present step is looked at now and then, and remembered with the time of its report.
"""

import json
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from threading import Lock
from typing import Final, NamedTuple

from jobs.contract import Phase, Program
from runner.base.errors import RunnerError
from runner.core.job.states import Allocated, Running
from runner.core.policy.facts import DecisionPoint
from runner.core.ports.store import DecisionRow, JobRow
from runner.files.revision import Revision, parse_revision
from runner.services.jobs import JobService
from runner.services.rollout.throughput import METRICS_BYTES, MetricsLine, parse_metrics

MOST_LINES: Final = 4000
"""Steps of one attempt that are remembered, the newest."""

MOST_ENDED: Final = 100
"""Attempts that have ended and are remembered, the newest: a canary is measured after its end."""

ASKED: Final = frozenset({"operator", "preemption", "change"})
"""Requesters of an attempt's stop."""

STOPPED_CODE: Final = 75


@dataclass(slots=True)
class StepTimes:
    """The steps of the attempts of one daemon with their times; of programs as far as it has looked."""

    service: JobService
    _seen: dict[tuple[str, int], deque[MetricsLine]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def of(self, row: JobRow, attempt: int, lineage: int) -> tuple[MetricsLine, ...]:
        """Return the steps of an attempt with their times, the oldest first."""
        written = self.service.attempt_service.metrics(row, attempt, lineage, METRICS_BYTES)
        if (lines := parse_metrics(written)) or not _is_program(row):
            return lines
        with self._lock:
            seen = self._seen.setdefault((row.job.id, attempt), deque(maxlen=MOST_LINES))
            if isinstance(row.job.state, Allocated) and row.job.state.attempt.number == attempt:
                self._look(row, attempt, lineage, seen)
            return tuple(seen)

    def _look(self, row: JobRow, attempt: int, lineage: int, seen: deque[MetricsLine]) -> None:
        status = self.service.queries.last_progress(row, attempt, lineage)
        if status is None or status.step is None:
            return
        if status.phase is Phase.EVAL:
            if seen and seen[-1].trained:
                seen.append(MetricsLine(status.time, status.step, trained=False))
        elif status.step > max((line.step for line in seen), default=0):
            seen.append(MetricsLine(status.time, status.step, trained=True))

    def look_at_all(self) -> None:
        """Look at the programs that run, and forget attempts that have ended."""
        rows = [each.row for each in list(self.service.daemon.tracked_jobs.values())]
        running = [(row, row.job.state.attempt) for row in rows if isinstance(row.job.state, Running)]
        known = {(row.job.id, attempt.number) for row, attempt in running}
        with self._lock:
            for key in [key for key in self._seen if key not in known][:-MOST_ENDED]:
                del self._seen[key]
        for row, attempt in running:
            if _is_program(row):
                self.of(row, attempt.number, attempt.lineage)

    def has_reported(self, row: JobRow) -> bool:
        """Return True if an attempt of a job has told a step."""
        lineage = row.job.lineage
        for number in range(max(row.job.attempts, 1), 0, -1):
            status = self.service.queries.last_progress(row, number, lineage)
            if (status is not None and status.step) or self.of(row, number, lineage):
                return True
        return False


def _is_program(row: JobRow) -> bool:
    return isinstance(parse_revision(row.revision).job.workload, Program)


class Saving(NamedTuple):
    """Ability of an attempt to save when it is asked to stop, and how that is known."""

    on_demand: bool
    why: str = ""


def saves_when_asked(service: JobService, row: JobRow, revision: Revision) -> Saving:
    """Return True if a job saves when it is asked to stop: by its terms, by its report, or as it was seen.

    A program that says nothing and has never been asked is taken not to save.
    """
    if not revision.job.checkpoint.on_stop:
        return Saving(on_demand=False, why="its file says that it exits at once")
    if not isinstance(revision.job.workload, Program):
        return Saving(on_demand=True)
    asked, saved = count_saves(service.store.decisions(row.job.id))
    seen = f"it saved when it was asked, {saved} of {asked} times"
    if asked and saved < asked:
        return Saving(on_demand=False, why=seen)
    try:
        status = service.queries.progress(row)
    except RunnerError:
        status = None
    if status is not None and status.saves_when_asked:
        return Saving(on_demand=True, why="it reports that it saves when it is asked")
    if asked:
        return Saving(on_demand=True, why=seen)
    return Saving(on_demand=False, why="nothing is known of a save when it is asked")


def count_saves(decisions: Iterable[DecisionRow]) -> tuple[int, int]:
    """Return the number of requests to stop a job's attempts, and of those that saved the last step."""
    ends = [json.loads(each.body)["facts"] for each in decisions if each.moment == DecisionPoint.EXIT]
    asked = [facts for facts in ends if facts.get("killed_by") in ASKED and not _had_nothing(facts)]
    return len(asked), sum(_had_saved(facts) for facts in asked)


def _had_nothing(facts: dict[str, object]) -> bool:
    """Return True if an attempt ended before its training began: there was nothing to save."""
    loading = facts.get("phase") in {"init", "data"} and not facts.get("progress.step")
    return loading or facts.get("exit.class") == "no_start"


def _had_saved(facts: dict[str, object]) -> bool:
    if facts.get("exit.code") == STOPPED_CODE:
        return True
    step, saved = facts.get("progress.step"), facts.get("checkpoint.step")
    return isinstance(step, int) and isinstance(saved, int) and saved >= step
