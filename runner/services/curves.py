"""The curves of jobs and of devices: what they reported, in a bounded number of points, kept on the disk.

A job's curves come from the lines of ``metrics.jsonl`` of its present lineage, all of them, however often the
daemon was restarted meanwhile: how far each file has been read is kept beside the curves.  A program that
writes no such file has the numbers of the lines of its log, or of its heartbeat, sampled, and once more when
it has ended.  The use of devices is sampled, too.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any, Final, Protocol

import structlog

from jobs.contract import Status
from runner.agent.attempts.examine import read_log_numbers
from runner.base.errors import RunnerError, Unavailable
from runner.base.fair_executor import FairExecutor
from runner.base.threads import PeriodicThread
from runner.control.context import RepeatedWork
from runner.core.accounting.curve import Curve
from runner.core.accounting.curve_set import CurveSet, parse_curves
from runner.core.job.states import Running
from runner.core.notification import ReportedCurve
from runner.core.ports.store import JobRow
from runner.files.revision import parse_revision
from runner.services.jobs import JobService

log = structlog.get_logger()

SAMPLE_S: Final = 5.0
"""Between two looks at running jobs and devices."""

WRITE_S: Final = 60.0
"""Between two writes; a killed daemon loses so much of what is sampled, and nothing of what jobs wrote."""

MOST_PIECES: Final = 16
"""Pieces that one look reads at most; the next look goes on there."""

SAMPLED_PIECES: Final = 4
"""The same of all running jobs of one owner together, when nobody has asked for their curves."""

LEFT_OUT_S: Final = 60.0
"""For how long notifications tell no numbers of an owner whose files were not read in time."""

READ_S: Final = 2.0
"""For how long a notification waits for somebody who reads the same curves."""

HISTORY_S: Final = 86400.0
"""For how long the use of devices is kept."""

LOSSES: Final = ("loss", "train_loss", "eval_loss")
"""The curve that tells most about a training, the first that it has."""

RESIDENT: Final = "resident_bytes"
CPUS: Final = "cpus_used"
TRAFFIC: Final = ("disk_read_per_s", "disk_written_per_s", "network_received_per_s", "network_sent_per_s")
"""The curves of an attempt's memory, processors, and bytes per second, on this host."""

DEVICES: Final = "devices"
"""The key of the curves of devices."""

FORGOTTEN_EVERY: Final = 720
"""Rounds between two looks for the curves of jobs that the store does not know any more."""


class KeptCurves(Protocol):
    """Storage of curves; all methods may raise Unavailable."""

    def read(self, key: str) -> Any:  # noqa: ANN401  JSON
        """Return the value that is kept of a key; None if there is nothing that can be read."""

    def write(self, key: str, value: object) -> None:
        """Keep a value."""

    def remove(self, key: str) -> None:
        """Forget a key."""

    def names(self) -> tuple[str, ...]:
        """Return all keys."""


@dataclass(slots=True)
class CurveService:
    """Keeps the curves of all jobs of a daemon.

    The curves of one owner's jobs have a lock of their own, and no other is held while a file is read: who
    has written a gigabyte of numbers waits for it alone.
    """

    service: JobService
    kept: KeptCurves
    work: RepeatedWork = field(default_factory=lambda: FairExecutor("curves", threads_per_user=1))
    _live: dict[str, tuple[int, CurveSet]] = field(default_factory=dict)  # with the uid of the owner
    _devices: CurveSet | None = None
    _written: float | None = None
    _rounds: int = 0
    _lock: Lock = field(default_factory=Lock)  # of the devices
    _owners: dict[int, Lock] = field(default_factory=dict)
    _left_out: dict[int, float] = field(default_factory=dict)  # until when, by owner

    def thread(self) -> PeriodicThread:
        """Return the thread that looks at running jobs and devices; it is not started yet."""
        return PeriodicThread("curves", SAMPLE_S, self.sample)

    def of_job(self, row: JobRow) -> CurveSet:
        """Return the curves of a job as they are now; may raise Unavailable."""
        with self._lock_of(row.owner.uid):
            return self._of_job(row)

    def _of_job(self, row: JobRow) -> CurveSet:
        found = self._found(row)
        is_new = self._read_reports(row, found, MOST_PIECES)
        if (self._read_end(row, found) or is_new) and row.job.id not in self._live:
            self.kept.write(row.job.id, found.json())
        return parse_curves(found.json())

    def _lock_of(self, owner: int) -> Lock:
        return self._owners.setdefault(owner, Lock())

    def _found(self, row: JobRow) -> CurveSet:
        live = self._live.get(row.job.id)
        return parse_curves(self.kept.read(row.job.id)) if live is None else live[1]

    def reported(self, job_id: str) -> ReportedCurve | None:
        """Return the loss that a job has reported, for what others wait for; may raise Unavailable.

        None: there is none, or the files of its owner are slow: nobody waits for them again soon.
        """
        row = self.service.store.get(job_id)
        if row is None:
            return None
        owner, monotonic = row.owner.uid, self.service.clock.monotonic
        if monotonic() < self._left_out.get(owner, 0.0):
            return None
        with self._unless_read(owner, READ_S) as is_free:
            try:
                curves = self._of_job(row).curves if is_free else None
            except Unavailable:
                self._left_out[owner] = monotonic() + LEFT_OUT_S
                raise
        if curves is None:
            self._left_out[owner] = monotonic() + LEFT_OUT_S
            return None
        for name in LOSSES:
            points = curves[name].points if name in curves else []
            if with_steps := tuple((point.step, point.mean) for point in points if point.step is not None):
                return ReportedCurve(name, with_steps)
        return None

    def of_devices(self) -> CurveSet:
        """Return the curves of all devices: ``UUID util`` in percent and ``UUID memory`` as a share."""
        with self._lock:
            return parse_curves(self._device_curves().json())

    def sample(self) -> None:
        """Look at all running jobs and devices once; nobody's jobs wait for the files of another owner."""
        running: dict[int, list[JobRow]] = {owner: [] for owner, _ in list(self._live.values())}
        for tracked in list(self.service.daemon.tracked_jobs.values()):
            if isinstance(tracked.row.job.state, Running):
                running.setdefault(tracked.row.owner.uid, []).append(tracked.row)
        now = self.service.clock.now().timestamp()
        with self._lock:
            self._sample_devices(now)
        for owner, rows in running.items():
            self.work.put_unless_busy(str(owner), partial(self._sample_of, owner, rows, now))
        self._write_sometimes()

    def _sample_of(self, owner: int, rows: Sequence[JobRow], now: float) -> None:
        """Look at the jobs of an owner: those that run, and those that have run at the last look."""
        with self._unless_read(owner) as is_free:
            if not is_free:
                return
            for row in rows:
                self._sample(row, max(SAMPLED_PIECES // len(rows), 1), now)
            self._drop_ended(owner, {row.job.id for row in rows})

    def _sample(self, row: JobRow, pieces: int, now: float) -> None:
        with suppress(RunnerError, OSError):  # its directory may be going, or its owner's workers are silent
            curves = self._found(row)
            self._live[row.job.id] = row.owner.uid, curves
            self._read_reports(row, curves, pieces)
            self._sample_job(row, curves, now)

    @contextmanager
    def _unless_read(self, owner: int, wait_s: float = 0.0) -> Iterator[bool]:
        """Hold the lock of an owner, or yield that somebody reads their curves, for whom no other waits."""
        lock = self._lock_of(owner)
        is_free = lock.acquire(timeout=wait_s)
        try:
            yield is_free
        finally:
            if is_free:
                lock.release()

    def stop(self) -> None:
        """Write what is not written yet."""
        for job_id, (owner, curves) in list(self._live.items()):
            with self._lock_of(owner):
                self._keep(job_id, curves)
        self._write_devices()

    def _sample_job(self, row: JobRow, curves: CurveSet, now: float) -> None:
        self._sample_host(row, curves, now)
        self._sample_job_devices(row, curves, now)
        if isinstance(row.job.state, Running):
            attempt = row.job.state.attempt
            self._take_told(row, curves, attempt.number, attempt.lineage, now)

    def _take_told(
        self, row: JobRow, curves: CurveSet, attempt: int, lineage: int, now: float | None = None
    ) -> None:
        """Add the last heartbeat of an attempt, or what its log has told; ``now`` is None if it has ended."""
        directory = self.service.attempt_service.directory(row)
        paths = directory.paths(attempt, lineage)
        if (status := directory.status(paths)) is not None:
            for name, value in _sampled(status, alone=not curves.has_file):
                curves.add(name, status.time if now is None else now, status.step, value)
        elif not curves.has_file:
            revision = parse_revision(row.revision)
            has_been = () if curves.is_followed else frozenset(curves.curves)
            curves.is_followed = True
            for at, step, numbers in read_log_numbers(directory, paths, revision, ended=now is None):
                for name, value in numbers.items():
                    if step is not None or name not in has_been:  # a step takes the place of what was there
                        curves.add(name, at, step, value)

    def _sample_job_devices(self, row: JobRow, curves: CurveSet, now: float) -> None:
        """Add the use of the devices of a running attempt, and what their energy counters say."""
        state, inventory = row.job.state, self.service.daemon.context.inventory
        if not isinstance(state, Running):
            return
        counters = dict[str, float]()
        for number, uuid in enumerate(state.allocation.devices):
            for name, value in self._use(uuid):
                curves.add(f"device {number} {name}", now, None, value)
            if (energy_j := inventory.energy_j(uuid)) is not None:
                counters[f"{state.attempt.number} {uuid}"] = energy_j
        curves.count_energy(counters)

    def _sample_host(self, row: JobRow, curves: CurveSet, now: float) -> None:
        """Add the memory and the processors of a running attempt, where they are known."""
        context, state = self.service.daemon.context, row.job.state
        if not isinstance(state, Running):
            return
        rates = context.disk.current.get(context.key(row.job.id, state.attempt.number))
        if rates is None:
            return
        traffic = (rates.read_per_s, rates.written_per_s, rates.received_per_s, rates.sent_per_s)
        values = (rates.total.resident_bytes, rates.cpus, *traffic)
        for name, value in zip((RESIDENT, CPUS, *TRAFFIC), values, strict=True):
            if value is not None:
                curves.add(name, now, None, value)

    def _sample_devices(self, now: float) -> None:
        known = self._device_curves()
        for device in self.service.daemon.context.capacity.devices:
            for name, value in self._use(device.uuid):
                known.curves.setdefault(f"{device.uuid} {name}", Curve()).add(now, None, value)
        for curve in known.curves.values():
            curve.forget_before(now - HISTORY_S)

    def _device_curves(self) -> CurveSet:
        if self._devices is None:
            self._devices = parse_curves(self.kept.read(DEVICES))
        return self._devices

    def _use(self, uuid: str) -> Iterator[tuple[str, float]]:
        facts = self.service.daemon.context.inventory.facts((uuid,), self.service.clock.now())
        for name in ("util", "memory"):
            value = facts.get(f"device.{name}")
            if isinstance(value, int | float):
                yield name, float(value)

    def _read_reports(self, row: JobRow, curves: CurveSet, pieces: int) -> bool:
        """Add what the attempts of the lineage have written since the last look, in so many pieces."""
        if curves.lineage != row.job.lineage:
            curves.curves = {name: each for name, each in curves.curves.items() if is_of_host(name)}
            curves.lost = set()
            curves.lineage, curves.attempt, curves.offset, curves.has_file = row.job.lineage, 0, 0, False
            curves.ended = 0
        directory, is_new = self.service.attempt_service.directory(row), False
        for number in self._attempts(row, curves.attempt):
            if pieces == 0:
                break  # the rest of this file is read first, by the next look
            if number != curves.attempt:
                is_new |= self._read_last(row, curves, curves.attempt)
                curves.attempt, curves.offset, curves.has_file = number, 0, False
            paths = directory.paths(number, row.job.lineage)
            while pieces and (new := directory.read_numbers(paths, curves.offset)) is not None:
                if new.offset <= curves.offset:
                    break  # a line that is not whole yet
                is_new, pieces = True, pieces - 1
                curves.take(new)
        return is_new

    def _read_end(self, row: JobRow, curves: CurveSet) -> bool:
        """Add what the newest attempt has told last, when it has ended: that may be between two looks."""
        attempts = [
            each for each in self.service.store.attempts(row.job.id) if each.lineage == curves.lineage
        ]
        if not attempts or attempts[-1].ended_at is None:
            return False
        return self._read_last(row, curves, attempts[-1].number)

    def _read_last(self, row: JobRow, curves: CurveSet, attempt: int) -> bool:
        """Add what an attempt that has ended has told last, once."""
        if attempt <= curves.ended:
            return False
        curves.ended = attempt
        self._take_told(row, curves, attempt, curves.lineage)
        return True

    def _attempts(self, row: JobRow, first: int) -> Iterator[int]:
        for attempt in self.service.store.attempts(row.job.id):
            if attempt.lineage == row.job.lineage and attempt.number >= first:
                yield attempt.number

    def _drop_ended(self, owner: int, running: Collection[str]) -> None:
        for job_id, (whose, curves) in list(self._live.items()):
            if whose != owner or job_id in running:
                continue
            self._live.pop(job_id)
            row = self.service.store.get(job_id)
            if row is None:
                continue
            with suppress(RunnerError, OSError):
                self._read_reports(row, curves, 1)
                self._read_end(row, curves)
            self._keep(job_id, curves)

    def _write_sometimes(self) -> None:
        now = self.service.clock.monotonic()
        if self._written is None or now - self._written >= WRITE_S:
            self._written = now
            for job_id, (owner, curves) in list(self._live.items()):
                with self._unless_read(owner) as is_free:
                    if is_free:
                        self._keep(job_id, curves)
            self._write_devices()
        self._rounds += 1
        if self._rounds % FORGOTTEN_EVERY == 0:
            for key in self.kept.names():
                if key != DEVICES and self.service.store.get(key) is None:
                    self.kept.remove(key)

    def _write_devices(self) -> None:
        with self._lock:
            if self._devices is not None:
                self._keep(DEVICES, self._devices)

    def _keep(self, key: str, curves: CurveSet) -> None:
        try:
            self.kept.write(key, curves.json())
        except Unavailable as error:
            log.warning("curves.cannot_write", key=key, problem=str(error))


def is_of_host(name: str) -> bool:
    """Return True for what is measured of a job on this host, which has no steps and no lineage."""
    return name in {RESIDENT, CPUS, *TRAFFIC} or name.startswith("device ")


def _sampled(status: Status, *, alone: bool) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a heartbeat; ``alone``: the attempt writes no lines of numbers."""
    if status.memory_bytes is not None:
        yield "memory_bytes", float(status.memory_bytes)
    if not alone:
        return
    if status.loss is not None:
        yield "loss", status.loss
    if status.items_per_s is not None:
        yield "items_per_s", status.items_per_s
    yield from status.metrics.items()
