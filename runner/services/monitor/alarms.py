"""Idle alarms: a running attempt that does not use its resources gets a line on its job that says why."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from runner.core.devices.bottleneck import IdleAlarm, LoaderSetup, SampleWindow, alarm_kind, idle_alarm
from runner.core.job.describe import attempt_prefix
from runner.core.job.states import Running
from runner.core.policy.facts import FactValue
from runner.core.ports.store import JobRow
from runner.services.jobs import JobService

ALARM: Final = "alarm"
"""The kind of an alarm's line in the store."""


@dataclass(slots=True)
class IdleAlarms:
    """The alarms of running jobs."""

    service: JobService
    current: dict[str, str] = field(default_factory=dict)  # texts by job
    _noted: dict[tuple[str, int], set[str | None]] = field(default_factory=dict)  # kinds by job and attempt

    def forget_others(self, running: set[tuple[str, int]]) -> None:
        """Forget the alarms of all but the attempts that run."""
        jobs = {job_id for job_id, _ in running}
        self.current = {job_id: text for job_id, text in self.current.items() if job_id in jobs}
        self._noted = {key: kinds for key, kinds in self._noted.items() if key in running}

    def check(self, row: JobRow, state: Running, samples: SampleWindow) -> None:
        """Raise or clear the alarm of an attempt; each kind is written once for each attempt."""
        alarm = self._alarm(row, state, samples)
        if alarm is None:
            self.current.pop(row.job.id, None)
            return
        self.current[row.job.id] = alarm.text
        noted = self._noted_kinds(row, state.attempt.number)
        if alarm.kind not in noted:
            service, now = self.service, self.service.clock.now()
            text = f"{attempt_prefix(state.attempt.number)}{alarm.text}"
            service.daemon.run_exclusively(lambda: service.store.note(row.job.id, now, ALARM, text))
            noted.add(alarm.kind)

    def _noted_kinds(self, row: JobRow, attempt: int) -> set[str | None]:
        """Return the kinds of alarms that are written about an attempt, by an earlier daemon too."""
        key = (row.job.id, attempt)
        if key not in self._noted:
            lines, prefix = self.service.store.noted(row.job.id, ALARM), attempt_prefix(attempt)
            self._noted[key] = {alarm_kind(text) for text in lines if text.startswith(prefix)}
        return self._noted[key]

    def _alarm(self, row: JobRow, state: Running, samples: SampleWindow) -> IdleAlarm | None:
        settings, on_devices = self.service.settings.alarm, bool(state.allocation.devices)
        highest = max(settings.below_percent, *settings.profiles.values(), 0.0) / 100
        if idle_alarm(samples, LoaderSetup(), highest, settings.window_s, on_devices=on_devices) is None:
            return None  # at any limit, so that nothing is read from the disk
        facts = self.service.attempt_service.probe(row, state.attempt).facts
        below = settings.profiles.get(str(facts.get("effective.profile")), settings.below_percent) / 100
        status = self.service.queries.progress(row)
        setup = _loader_setup(facts, {} if status is None else status.parts)
        return idle_alarm(samples, setup, below, settings.window_s, on_devices=on_devices)


def _loader_setup(facts: Mapping[str, FactValue], parts: Mapping[str, float]) -> LoaderSetup:
    """Return the loader settings of an attempt, as far as they are known.

    A program of the user's own may ignore its profile; it does not save on demand, which tells it apart.
    """
    if facts.get("checkpoint.on_demand") is not True:
        return LoaderSetup(parts)
    workers, batch = facts.get("effective.workers"), facts.get("effective.micro_batch")
    compiled = facts.get("effective.compile")
    return LoaderSetup(
        parts,
        workers if isinstance(workers, int) else None,
        batch if isinstance(batch, int) else None,
        compiled if isinstance(compiled, bool) else None,
    )
