"""What a device is at this moment: who has it, whether it is clean, and whether it may be lent.

A pure function of how it was before, the last look at it, who holds it and what a person or the
daemon has said about it.  What nobody could find out accuses nobody: an unreadable process is
neither a job's nor foreign.  But a device is lent only after a look that found it clean, so one
that cannot be looked at is not lent either.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from runner.core.scheduler.snapshot import GIB, DeviceState

MIB = 1024**2
SLOW_CLEANUP_S = 5.0
"""A device that is not clean after so long may not become so: when it came back is worth keeping."""

SUSPICIOUS_BYTES = 2 * GIB
SUSPICIOUS_SHARE = 0.03
"""More than both of these in use by nobody, at the first look, is not what a driver keeps for itself."""


@dataclass(frozen=True, slots=True)
class ProcessOnDevice:
    """One process that uses a device, and whose it is as far as anybody could find out."""

    pid: int
    job: str | None = None
    foreign: bool = False  # it could be read, and no attempt of ours has it
    uid: int | None = None
    user: str = ""
    program: str = ""
    used_bytes: int | None = None

    def __str__(self) -> str:
        """Say which process, and whose, in the words of a reason."""
        known = (f"uid {self.uid}" if self.uid is not None else "", self.user, self.program)
        whose = (
            f"job {self.job}" if self.job else "a foreign process" if self.foreign else "an unknown process"
        )
        return f"{whose} ({', '.join((f'pid {self.pid}', *(word for word in known if word)))})"


@dataclass(frozen=True, slots=True)
class Reading:
    """What one look at a device found; None: the driver does not say."""

    at: float  # monotonic
    lost: bool | None = None
    unusable: str | None = None
    recovery: str | None = None
    used_bytes: int | None = None  # without what the host's own programs use
    total_bytes: int | None = None
    processes: tuple[ProcessOnDevice, ...] | None = None

    @property
    def owners_known(self) -> bool:
        """Whether it is known of every process on the device whose it is."""
        return self.processes is not None and all(each.job or each.foreign for each in self.processes)


@dataclass(frozen=True, slots=True)
class AdminMark:
    """What was said about a device and holds until a person takes it back."""

    state: DeviceState  # drained or quarantined
    reason: str
    by: str
    since: datetime


@dataclass(frozen=True, slots=True)
class DeviceNow:
    """One moment by both clocks."""

    at: datetime
    monotonic: float


@dataclass(frozen=True, slots=True)
class CleanupRules:
    """How careful to be."""

    clean_within_s: float = 60.0  # after this a device that is not clean again is quarantined
    max_reading_age_s: float = 10.0  # a look that is older says nothing any more
    spare_bytes: int = 256 * MIB  # above the least that was ever in use with nobody on it


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """Where a device stands, with what must be remembered to say so the next time."""

    state: DeviceState
    since: datetime
    reason: str = ""
    holders: frozenset[str] = frozenset()
    uncleaned_jobs: frozenset[str] = frozenset()  # jobs that gave it back and are not proven gone
    returned_at: float | None = None  # monotonic: when the last of those did
    baseline_bytes: int | None = None  # bytes in use with nobody on it


@dataclass(frozen=True, slots=True)
class Remembered:
    """What of a standing outlives the daemon, until the machine is booted anew."""

    baseline_bytes: int | None = None
    uncleaned_jobs: frozenset[str] = frozenset()
    returned_at: float | None = None  # monotonic


@dataclass(frozen=True, slots=True)
class StatusInput:
    """All that the next standing of a device follows from."""

    before: DeviceStatus | None
    reading: Reading | None
    holders: frozenset[str]
    mark: AdminMark | None
    now: DeviceNow
    cleanup: CleanupRules = field(default_factory=CleanupRules)
    watched: bool = True  # False: nobody looks at this kind of device

    @property
    def fresh_reading(self) -> Reading | None:
        """The last look, unless it is too old to be true."""
        old = self.reading is None or self.now.monotonic - self.reading.at > self.cleanup.max_reading_age_s
        return None if old else self.reading


def next_status(case: StatusInput) -> DeviceStatus:
    """Return where a device stands now."""
    before, now = case.before, case.now
    gone = before.holders - case.holders if before else frozenset[str]()
    left = ((before.uncleaned_jobs if before else frozenset[str]()) | gone) - case.holders
    returned = now.monotonic if gone else before.returned_at if before and left else None
    baseline = before.baseline_bytes if before else None
    unclean = _unclean(case, left, returned, baseline) if left else None
    if left and unclean is None:
        left, returned = frozenset(), None
    state, reason = _verdict(case, left, returned, unclean, baseline)
    since = case.mark.since if case.mark else before.since if before and before.state is state else now.at
    if state is DeviceState.FREE:
        baseline = _lower(baseline, case.fresh_reading)
    return DeviceStatus(state, since, reason, case.holders, left, returned, baseline)


def _verdict(
    case: StatusInput, left: frozenset[str], returned: float | None, unclean: str | None, baseline: int | None
) -> tuple[DeviceState, str]:
    """Return state and reason; what stands against lending comes before who has it."""
    if case.mark is not None:
        return case.mark.state, case.mark.reason
    broken = driver_fault(case.fresh_reading)
    if broken:
        return DeviceState.QUARANTINED, broken
    if unclean is not None and returned is not None:
        waited_s, after = case.now.monotonic - returned, f"after {_jobs(left)}: {unclean}"
        if waited_s > case.cleanup.clean_within_s:
            return DeviceState.QUARANTINED, f"not clean {case.cleanup.clean_within_s:g} s {after}"
        if not case.holders:
            return DeviceState.DIRTY, after
    if case.holders:
        return DeviceState.ALLOCATED, _jobs(case.holders)
    return _unheld(case, baseline)


def _unheld(case: StatusInput, baseline: int | None) -> tuple[DeviceState, str]:
    """Return the state of a device that nobody has and that nothing was said about."""
    look = case.fresh_reading
    if not case.watched:
        return DeviceState.FREE, ""
    if look is None:
        return DeviceState.DIRTY, _unseen(case)
    foreign = [each for each in look.processes or () if each.foreign]
    if foreign:
        return DeviceState.FOREIGN, format_processes(foreign)
    unclean = _occupied(look, baseline, case.cleanup)
    return (DeviceState.DIRTY, unclean) if unclean else (DeviceState.FREE, "")


def driver_fault(look: Reading | None) -> str | None:
    """Return what its driver says that keeps a device from being used at all."""
    if look is None:
        return None
    if look.lost:
        return "it no longer answers"
    return f"its driver asks for {look.recovery}" if look.recovery not in {None, "none"} else None


def foreign_processes(standing: DeviceStatus, look: Reading | None) -> tuple[ProcessOnDevice, ...]:
    """Return the processes on a lent device that are known not to be its holders'."""
    if not standing.holders or look is None:
        return ()
    fine = standing.holders | standing.uncleaned_jobs
    return tuple(each for each in look.processes or () if each.foreign or (each.job and each.job not in fine))


def format_processes(occupants: Iterable[ProcessOnDevice]) -> str:
    """Return some processes in words: two by name, and how many more."""
    first, *others = list(occupants)
    shown = [str(first), *(str(each) for each in others[:1])]
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    return f"{', '.join(shown)}{more}"


def _unclean(
    case: StatusInput, left: frozenset[str], returned: float | None, baseline: int | None
) -> str | None:
    """Return why a device that was given back is not proven clean; None: it is."""
    look = case.fresh_reading
    if not case.watched:
        return None
    if look is None:
        return _unseen(case)
    if returned is not None and look.at <= returned:
        return "not looked at since"
    if case.holders:  # others share it, so its memory proves nothing
        theirs = [each for each in look.processes or () if each.job in left]
        return f"still used by {format_processes(theirs)}" if theirs else None
    return _occupied(look, baseline, case.cleanup)


def _occupied(look: Reading, baseline: int | None, care: CleanupRules) -> str | None:
    """Return what keeps a device that nobody should be using from being lent; None: nothing."""
    if look.unusable:
        return look.unusable
    if look.processes:
        return f"used by {format_processes(look.processes)}"
    normal = _normal(look, baseline, care)
    if look.used_bytes is None or normal is None or look.used_bytes <= normal:
        return None
    fact = f"{look.used_bytes / GIB:.3g} GiB in use by no process that can be seen"
    return fact if baseline is None else f"{fact}, where {baseline / GIB:.3g} GiB is normal"


def _normal(look: Reading, baseline: int | None, care: CleanupRules) -> int | None:
    """Return how many bytes may be in use with nobody on a device."""
    if baseline is not None:
        return baseline + care.spare_bytes
    if look.total_bytes is None:
        return None
    return max(SUSPICIOUS_BYTES, int(SUSPICIOUS_SHARE * look.total_bytes))


def _lower(baseline: int | None, look: Reading | None) -> int | None:
    """Return the least that was ever in use with nobody on the device."""
    used = look.used_bytes if look else None
    return min((each for each in (baseline, used) if each is not None), default=None)


def _unseen(case: StatusInput) -> str:
    if case.reading is None:
        return "not looked at yet"
    return f"its driver has not answered for {case.now.monotonic - case.reading.at:.0f} s"


def _jobs(jobs: frozenset[str]) -> str:
    return ", ".join(f"job {job}" for job in sorted(jobs, key=lambda job: (len(job), job)))


def clear_status(before: DeviceStatus, look: Reading | None, monotonic: float) -> DeviceStatus:
    """Return a standing after a person has looked: what is in use now, by nobody, is normal from now on.

    One that no look of ours has seen since it was given back waits for that look anew.
    """
    if before.returned_at is not None and (look is None or look.at <= before.returned_at):
        return replace(before, returned_at=monotonic)
    idle = look is not None and not look.processes
    baseline = look.used_bytes if look and idle else before.baseline_bytes
    return replace(before, uncleaned_jobs=frozenset(), returned_at=None, baseline_bytes=baseline)


def remember_status(standing: DeviceStatus, monotonic: float) -> Remembered:
    """Return what to keep of a standing; most devices are clean at the next look, and cost no writing."""
    slow = standing.returned_at is not None and monotonic - standing.returned_at >= SLOW_CLEANUP_S
    return (
        Remembered(standing.baseline_bytes, standing.uncleaned_jobs, standing.returned_at)
        if slow
        else Remembered(standing.baseline_bytes)
    )


def restore_status(kept: Remembered, now: DeviceNow, care: CleanupRules) -> DeviceStatus:
    """Return where a device stood for a daemon that begins.

    While there was none, nobody looked: however long that was, there is time for a look.
    """
    if kept.returned_at is None:
        return DeviceStatus(DeviceState.DIRTY, now.at, baseline_bytes=kept.baseline_bytes)
    latest = now.monotonic - max(care.clean_within_s - care.max_reading_age_s, 0.0)
    returned = max(kept.returned_at, latest)
    since = now.at - timedelta(seconds=now.monotonic - kept.returned_at)
    return DeviceStatus(
        DeviceState.DIRTY, since, "", frozenset(), kept.uncleaned_jobs, returned, kept.baseline_bytes
    )


# --- Names for people -------------------------------------------------------------------------------------


def assign_labels(known: dict[str, str], found: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return a name for every UUID: one that was given stays, and no two devices have the same.

    ``found`` is what the drivers count; they count anew when a card is gone.
    """
    named = dict(known)
    for uuid, label in found:
        if uuid not in named:
            taken = set(named.values())
            named[uuid] = next(each for each in _candidates(label) if each not in taken)
    return named


def _candidates(label: str) -> Iterator[str]:
    """Yield a name, then others like it."""
    yield label
    stem = label.rstrip("0123456789")
    number = 0
    while True:
        yield f"{stem}{number}"
        number += 1
