"""The status of a device: allocated, free, dirty, used by foreign processes, drained or quarantined.

It is a pure function of the status before, the last reading, the jobs that hold the device and the mark of an
operator or the daemon.  A process whose owner cannot be read counts neither as a job's nor as foreign.  A
device is allocated only after a reading that found it clean, so a device without readings is not allocated.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from runner.base.instant import Instant
from runner.base.readable import readable_duration
from runner.core.devices.reading import Health, ProcessOnDevice, Sample
from runner.core.scheduler.snapshot import GIB, DeviceState

MIB = 1024**2
SLOW_CLEANUP_S = 5.0
"""The time of release of a device that is not clean after this long is stored."""

SUSPICIOUS_BYTES = 2 * GIB
SUSPICIOUS_SHARE = 0.03
"""More memory than both of these in use by no process, at the first reading, is not the driver's own."""


@dataclass(frozen=True, slots=True)
class AdminMark:
    """A mark on a device that holds until an operator removes it."""

    state: DeviceState  # drained or quarantined
    reason: str
    by: str
    since: datetime


@dataclass(frozen=True, slots=True)
class CleanupRules:
    """The settings for the check of released devices."""

    clean_within_s: float = 60.0  # after this a device that is not clean is quarantined
    max_reading_age_s: float = 10.0  # an older reading is ignored
    spare_bytes: int = 256 * MIB  # above the least that was ever in use without a process


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """The status of a device, with what the next status depends on."""

    state: DeviceState
    since: datetime
    reason: str = ""
    holders: frozenset[str] = frozenset()
    uncleaned_jobs: frozenset[str] = frozenset()  # jobs that released it and are not proven gone
    returned_at: float | None = None  # monotonic: the last release
    baseline_bytes: int | None = None  # least memory in use without a process


@dataclass(frozen=True, slots=True)
class Remembered:
    """The part of a status that is stored until the next boot of the host."""

    baseline_bytes: int | None = None
    uncleaned_jobs: frozenset[str] = frozenset()
    returned_at: float | None = None  # monotonic


@dataclass(frozen=True, slots=True)
class StatusInput:
    """The input of ``next_status``."""

    before: DeviceStatus | None
    sample: Sample | None
    holders: frozenset[str]
    mark: AdminMark | None
    now: Instant
    memory_bytes: int | None = None  # of the device
    cleanup: CleanupRules = field(default_factory=CleanupRules)
    watched: bool = True  # False: there are no readings of this kind of device

    @property
    def fresh_sample(self) -> Sample | None:
        """The last sample, unless it is too old."""
        old = self.sample is None or self.now.monotonic - self.sample.at > self.cleanup.max_reading_age_s
        return None if old else self.sample


def next_status(case: StatusInput) -> DeviceStatus:
    """Return the status of a device now."""
    before, now = case.before, case.now
    gone = before.holders - case.holders if before else frozenset[str]()
    uncleaned_jobs = ((before.uncleaned_jobs if before else frozenset[str]()) | gone) - case.holders
    returned_at = now.monotonic if gone else before.returned_at if before and uncleaned_jobs else None
    baseline_bytes = before.baseline_bytes if before else None
    unclean = _unclean(case, uncleaned_jobs, returned_at, baseline_bytes) if uncleaned_jobs else None
    if uncleaned_jobs and unclean is None:
        uncleaned_jobs, returned_at = frozenset(), None
    state, reason = _verdict(case, uncleaned_jobs, returned_at, unclean, baseline_bytes)
    since = case.mark.since if case.mark else before.since if before and before.state is state else now.at
    if state is DeviceState.FREE:
        baseline_bytes = _lower(baseline_bytes, case.fresh_sample)
    return DeviceStatus(state, since, reason, case.holders, uncleaned_jobs, returned_at, baseline_bytes)


def _verdict(
    case: StatusInput,
    uncleaned_jobs: frozenset[str],
    returned_at: float | None,
    unclean: str | None,
    baseline_bytes: int | None,
) -> tuple[DeviceState, str]:
    """Return state and reason; a reason not to allocate the device precedes its holders."""
    if case.mark is not None:
        return case.mark.state, case.mark.reason
    broken = driver_fault(case.fresh_sample)
    if broken:
        return DeviceState.QUARANTINED, broken
    if unclean is not None and returned_at is not None:
        waited_s, after = case.now.monotonic - returned_at, f"after {_jobs(uncleaned_jobs)}: {unclean}"
        if waited_s > case.cleanup.clean_within_s:
            return (
                DeviceState.QUARANTINED,
                f"not clean {readable_duration(case.cleanup.clean_within_s)} {after}",
            )
        if not case.holders:
            return DeviceState.DIRTY, after
    if case.holders:
        return DeviceState.ALLOCATED, _jobs(case.holders)
    return _unheld(case, baseline_bytes)


def _unheld(case: StatusInput, baseline_bytes: int | None) -> tuple[DeviceState, str]:
    """Return the state of a device without holders and without a mark."""
    sample = case.fresh_sample
    if not case.watched:
        return DeviceState.FREE, ""
    if sample is None:
        return DeviceState.DIRTY, _unseen(case)
    foreign = [each for each in sample.health.processes or () if each.foreign]
    if foreign:
        return DeviceState.FOREIGN, format_processes(foreign)
    unclean = _occupied(sample.health, baseline_bytes, case)
    return (DeviceState.DIRTY, unclean) if unclean else (DeviceState.FREE, "")


def driver_fault(sample: Sample | None) -> str | None:
    """Return the fault that the driver reports; None: there is none."""
    if sample is None:
        return None
    if sample.health.lost:
        return "it no longer answers"
    recovery = sample.health.recovery
    return f"its driver asks for {recovery}" if recovery not in {None, "none"} else None


def foreign_processes(status: DeviceStatus, sample: Sample | None) -> tuple[ProcessOnDevice, ...]:
    """Return the processes on an allocated device that are known not to belong to its holders."""
    if not status.holders or sample is None:
        return ()
    fine = status.holders | status.uncleaned_jobs
    on_it = sample.health.processes or ()
    return tuple(each for each in on_it if each.foreign or (each.job and each.job not in fine))


def format_processes(occupants: Iterable[ProcessOnDevice]) -> str:
    """Return processes as text: the first two, and the number of others."""
    first, *others = list(occupants)
    shown = [str(first), *(str(each) for each in others[:1])]
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    return f"{', '.join(shown)}{more}"


def _unclean(
    case: StatusInput, uncleaned_jobs: frozenset[str], returned_at: float | None, baseline_bytes: int | None
) -> str | None:
    """Return the reason why a released device is not proven clean; None: it is clean."""
    sample = case.fresh_sample
    if not case.watched:
        return None
    if sample is None:
        return _unseen(case)
    if returned_at is not None and sample.at <= returned_at:
        return "not looked at since"
    if case.holders:  # other jobs share it, so its memory proves nothing
        theirs = [each for each in sample.health.processes or () if each.job in uncleaned_jobs]
        return f"still used by {format_processes(theirs)}" if theirs else None
    return _occupied(sample.health, baseline_bytes, case)


def _occupied(health: Health, baseline_bytes: int | None, case: StatusInput) -> str | None:
    """Return the use of a device that no job holds; None: there is none."""
    if health.unusable:
        return health.unusable
    if health.processes:
        return f"used by {format_processes(health.processes)}"
    normal = _normal(baseline_bytes, case)
    if health.used_bytes is None or normal is None or health.used_bytes <= normal:
        return None
    fact = f"{health.used_bytes / GIB:.3g} GiB in use by no process that can be seen"
    return fact if baseline_bytes is None else f"{fact}, where {baseline_bytes / GIB:.3g} GiB is normal"


def _normal(baseline_bytes: int | None, case: StatusInput) -> int | None:
    """Return the bytes that may be in use on a device without processes."""
    if baseline_bytes is not None:
        return baseline_bytes + case.cleanup.spare_bytes
    if case.memory_bytes is None:
        return None
    return max(SUSPICIOUS_BYTES, int(SUSPICIOUS_SHARE * case.memory_bytes))


def _lower(baseline_bytes: int | None, sample: Sample | None) -> int | None:
    """Return the least memory that was ever in use without a process."""
    used = sample.health.used_bytes if sample else None
    return min((each for each in (baseline_bytes, used) if each is not None), default=None)


def _unseen(case: StatusInput) -> str:
    if case.sample is None:
        return "not looked at yet"
    return f"its driver has not answered for {readable_duration(case.now.monotonic - case.sample.at)}"


def _jobs(jobs: frozenset[str]) -> str:
    return ", ".join(f"job {job}" for job in sorted(jobs, key=lambda job: (len(job), job)))


def clear_status(before: DeviceStatus, sample: Sample | None, monotonic: float) -> DeviceStatus:
    """Return the status after an operator has cleared a device: memory in use now is normal from now on.

    A device without a reading since its release waits for one anew.
    """
    if before.returned_at is not None and (sample is None or sample.at <= before.returned_at):
        return replace(before, returned_at=monotonic)
    idle = sample is not None and not sample.health.processes
    baseline_bytes = sample.health.used_bytes if sample and idle else before.baseline_bytes
    return replace(before, uncleaned_jobs=frozenset(), returned_at=None, baseline_bytes=baseline_bytes)


def remember_status(status: DeviceStatus, monotonic: float) -> Remembered:
    """Return what to store of a status; the release is stored only if the device does not get clean soon."""
    slow = status.returned_at is not None and monotonic - status.returned_at >= SLOW_CLEANUP_S
    return (
        Remembered(status.baseline_bytes, status.uncleaned_jobs, status.returned_at)
        if slow
        else Remembered(status.baseline_bytes)
    )


def restore_status(kept: Remembered, now: Instant, cleanup: CleanupRules) -> DeviceStatus:
    """Return the status of a device when the daemon starts.

    There were no readings while it was down, so the device gets time for a new reading.
    """
    if kept.returned_at is None:
        return DeviceStatus(DeviceState.DIRTY, now.at, baseline_bytes=kept.baseline_bytes)
    latest = now.monotonic - max(cleanup.clean_within_s - cleanup.max_reading_age_s, 0.0)
    returned_at = max(kept.returned_at, latest)
    since = now.at - timedelta(seconds=now.monotonic - kept.returned_at)
    return DeviceStatus(
        DeviceState.DIRTY, since, "", frozenset(), kept.uncleaned_jobs, returned_at, kept.baseline_bytes
    )


# --- Names for people -------------------------------------------------------------------------------------


def assign_labels(known: dict[str, str], found: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return a label for every UUID: known labels stay, and all labels differ.

    ``found`` has the labels of the drivers, whose numbers change when a card is removed.
    """
    named = dict(known)
    for uuid, label in found:
        if uuid not in named:
            taken = set(named.values())
            named[uuid] = next(each for each in _candidates(label) if each not in taken)
    return named


def _candidates(label: str) -> Iterator[str]:
    """Yield a label, then the same label with other numbers."""
    yield label
    stem = label.rstrip("0123456789")
    number = 0
    while True:
        yield f"{stem}{number}"
        number += 1
