"""The utilization monitor: a thread that samples every few seconds what running attempts do.

It adds up the busy times of devices for ``runner usage``, hands samples to the idle alarms, measures how
long the control loop takes to answer, and updates the counts of ``/metrics``.
"""

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Final

import structlog

from jobs.contract import Status
from runner.base.errors import Unavailable
from runner.base.threads import PeriodicThread
from runner.control.transitions import ANSWER_S
from runner.core.devices.bottleneck import SampleWindow, UtilizationSample
from runner.core.job.states import Running
from runner.core.ports.store import JobRow
from runner.core.ports.usage import BusyTimes
from runner.services.jobs import JobService
from runner.services.monitor.alarms import IdleAlarms
from runner.services.monitor.counts import OutcomeCounts

log = structlog.get_logger()

WRITE_S: Final = 60.0
"""Seconds between two writes of busy times; a killed daemon forgets that much."""

SILENT_S: Final = 60.0
"""After so long without a new heartbeat an attempt may hang, which the watchdog handles: no alarm then."""

STOP_S: Final = 5.0
"""Longest wait of ``stop`` for the end of a round."""

LAGS: Final = 60
"""Answer times of the control loop that are kept."""

_Key = tuple[str, int]  # job and attempt


@dataclass(slots=True)
class _AttemptSamples:
    """Samples of one attempt between rounds."""

    at: float  # time of the last sample
    window: SampleWindow = field(default_factory=SampleWindow)
    heartbeat: tuple[float, float] = (0.0, 0.0)  # the time in the last heartbeat, and when it was new


@dataclass(slots=True)
class UtilizationMonitor:
    """Samples what running attempts do."""

    service: JobService
    counts: OutcomeCounts = field(default_factory=OutcomeCounts)
    lags: deque[float] = field(default_factory=lambda: deque([0.0], LAGS))
    _alarms: IdleAlarms = field(init=False)
    _samples: dict[_Key, _AttemptSamples] = field(default_factory=dict)
    _busy: dict[_Key, tuple[float, float]] = field(default_factory=dict)  # not written yet
    _written: float | None = None
    _thread: PeriodicThread = field(init=False)

    def __post_init__(self) -> None:
        self._alarms = IdleAlarms(self.service)
        self._thread = PeriodicThread("utilization-monitor", self.service.settings.watch_every_s, self.sample)

    @property
    def alarms(self) -> dict[str, str]:
        """The texts of the present alarms, by job."""
        return self._alarms.current

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and write the last busy times."""
        self._thread.stop()
        self._thread.join(STOP_S)
        self._write()

    def sample(self) -> None:
        """Do one round: sample every running attempt."""
        self._measure_lag()
        now = self.service.clock.monotonic()
        running = {
            (tracked.row.job.id, tracked.row.job.state.attempt.number): (tracked.row, tracked.row.job.state)
            for tracked in list(self.service.daemon.tracked_jobs.values())
            if isinstance(tracked.row.job.state, Running)
        }
        context = self.service.daemon.context
        context.disk.sample({context.key(job_id, attempt) for job_id, attempt in running}, now)
        self._samples = {key: samples for key, samples in self._samples.items() if key in running}
        self._alarms.forget_others(set(running))
        for key, (row, state) in running.items():
            self._sample_attempt(key, row, state, now)
        if self._written is None or now - self._written >= WRITE_S:
            self._written = now
            self._write()
        self.counts.update(self.service.store)

    def _measure_lag(self) -> None:
        """Measure how long the control loop takes to answer."""
        began = self.service.clock.monotonic()
        with suppress(TimeoutError):  # then the limit itself is the measurement
            self.service.daemon.exclusive.submit(lambda: None).result(timeout=ANSWER_S)
        self.lags.append(self.service.clock.monotonic() - began)

    def _sample_attempt(self, key: _Key, row: JobRow, state: Running, now: float) -> None:
        samples = self._samples.setdefault(key, _AttemptSamples(now))
        span_s, samples.at = now - samples.at, now
        utils = self._utils(state, span_s)
        known = [util for util in utils if util is not None]
        if known and span_s > 0:
            device_s, busy_s = self._busy.get(key, (0.0, 0.0))
            self._busy[key] = device_s + len(known) * span_s, busy_s + sum(known) * span_s
        heartbeat = self.service.queries.progress(row)
        status = _fresh(heartbeat, samples, now)
        util = min(known) if known and len(known) == len(utils) else None
        phase, wait = (None, None) if status is None else (status.phase.value, status.data_wait)
        sample = UtilizationSample(now, phase, util, wait, silent=heartbeat is None)
        samples.window = samples.window.add(sample, self.service.settings.alarm.window_s)
        self._alarms.check(row, state, samples.window)

    def _utils(self, state: Running, span_s: float) -> list[float | None]:
        """Return the utilization of each device of an attempt in the last ``span_s`` seconds, as a share."""
        inventory, devices = self.service.daemon.context.inventory, state.allocation.devices
        since = self.service.clock.now() - timedelta(seconds=span_s)
        found = [inventory.facts((uuid,), since).get("device.util") for uuid in devices]
        return [util / 100 if isinstance(util, int | float) else None for util in found]

    def _write(self) -> None:
        """Let the control loop write the busy times; what cannot be written is kept for the next write."""
        busy, self._busy = self._busy, {}
        try:
            self.service.daemon.run_exclusively(partial(self._add, busy))
        except (Unavailable, TimeoutError) as error:
            log.warning("monitor.cannot_write", problem=str(error))
            self._busy = busy

    def _add(self, busy: BusyTimes) -> None:
        """Write busy times, and add the attempts that ended some time ago to the sums of usage."""
        report = self.service.usage_report
        if busy:
            report.add(busy)
        report.sum_up(self.service.clock.now())


def _fresh(status: Status | None, samples: _AttemptSamples, now: float) -> Status | None:
    """Return the last heartbeat of an attempt, None if no new one has come for a while."""
    if status is None:
        return None
    if status.time != samples.heartbeat[0]:
        samples.heartbeat = status.time, now
    return None if now - samples.heartbeat[1] > SILENT_S else status
