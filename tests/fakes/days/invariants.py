"""Invariants of a machine whatever happens on it, asked after every event.

Pure questions about values of the daemon; a broken rule is an ``AssertionError`` with what broke it.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from runner.core.ports.devices import Device
from runner.core.scheduler.backfill import Plan, StartJob, plan
from runner.core.scheduler.calendar import Calendar, Limit
from runner.core.scheduler.config import Quota, Quotas
from runner.core.scheduler.fairshare import FairShare
from runner.core.scheduler.pending import PendingReasons
from runner.core.scheduler.placement import Placements
from runner.core.scheduler.priority import EligibleJobs
from runner.core.scheduler.snapshot import DeviceKind, DeviceState, PendingJob, RunningJob, Snapshot
from runner.core.scheduler.timeline import Span

EARLY_S = 1.0
"""Two plans of the same promise may differ by the time between them."""


@dataclass(frozen=True)
class Holding:
    """Resources that a job holds, and the account that pays for them."""

    job_id: str
    owner: str
    group: str
    devices: tuple[str, ...]
    device_bytes: int = 0
    sweep: tuple[str, int | None] | None = None


def lent_once(holdings: Iterable[Holding], devices: Iterable[Device]) -> None:
    """Nobody holds what somebody else does; of a shared device all parts together fit."""
    shared = {each.uuid: each.memory_bytes or 0 for each in devices if each.kind == "shared"}
    by_device: dict[str, list[Holding]] = {}
    for holding in holdings:
        for uuid in holding.devices:
            by_device.setdefault(uuid, []).append(holding)
    for uuid, holders in by_device.items():
        if uuid in shared:
            parts = sum(each.device_bytes for each in holders)
            assert parts <= shared[uuid], f"{uuid}: {parts} bytes lent of {shared[uuid]}"
        else:
            assert len(holders) == 1, f"{uuid}: lent to jobs {[each.job_id for each in holders]}"


def within_quotas(holdings: Sequence[Holding], quotas: Quotas) -> None:
    """Nobody, no group and no sweep has more than it may."""
    for owner in {each.owner for each in holdings}:
        _within(f"user {owner}", [each for each in holdings if each.owner == owner], quotas.for_user(owner))
    for group in {each.group for each in holdings}:
        _within(f"group {group}", [each for each in holdings if each.group == group], quotas.for_group(group))
    for (sweep, most), count in Counter(each.sweep for each in holdings if each.sweep).items():
        assert most is None or count <= most, f"sweep {sweep}: {count} jobs, and {most} may run together"


def _within(whose: str, held: list[Holding], quota: Quota) -> None:
    devices = sum(len(each.devices) for each in held)
    assert quota.jobs is None or len(held) <= quota.jobs, f"{whose}: {len(held)} jobs of {quota.jobs}"
    assert quota.devices is None or devices <= quota.devices, f"{whose}: {devices} devices of {quota.devices}"


def only_what_is_free_is_lent(snapshot: Snapshot, made: Plan) -> None:
    """Assert that a plan starts jobs on devices that are free, clean and nobody else's."""
    devices = {each.uuid: each for host in snapshot.hosts for each in host.devices}
    taken = {uuid for job in snapshot.running for uuid in job.devices}
    for start in made.starts:
        for uuid in start.devices:
            device = devices[uuid]
            fit = (
                {DeviceState.FREE, DeviceState.ALLOCATED}
                if device.kind is DeviceKind.SHARED
                else {DeviceState.FREE}
            )
            assert device.state in fit, f"job {start.job_id} gets {uuid}, which is {device.state}"
            assert device.kind is DeviceKind.SHARED or uuid not in taken, (
                f"job {start.job_id} gets {uuid} too"
            )
            taken.add(uuid)


def maintenance_is_kept(snapshot: Snapshot, made: Plan) -> int:
    """Nothing starts that would run on in a maintenance of what it gets; return how many would, without it.

    What nobody knows the length of is taken to last as long as the site says that the unknown does.
    """
    ahead = [each for each in snapshot.maintenance if each.ends_s > snapshot.now_s]
    jobs = {job.job_id: job for job in snapshot.pending}
    for start in made.starts:
        ends_s = snapshot.now_s + _kept_s(jobs[start.job_id], snapshot)
        for window in ahead:
            taken = window.covers_host(start.host) or bool(window.devices & set(start.devices))
            assert not taken or ends_s <= window.begins_s, (
                f"job {start.job_id} starts {window.begins_s - snapshot.now_s:.0f} s before {window.reason} "
                f"and lasts {ends_s - snapshot.now_s:.0f} s"
            )
    if not any(each.begins_s <= snapshot.now_s for each in ahead):
        return 0
    started = {start.job_id for start in made.starts}
    opened = plan(replace(snapshot, maintenance=()))
    return sum(start.job_id not in started for start in opened.starts)


def every_wait_is_explained(snapshot: Snapshot, made: Plan) -> None:
    """Assert that every job that does not start has a reason."""
    started = {start.job_id for start in made.starts}
    silent = [
        job.job_id
        for job in snapshot.pending
        if job.job_id not in started and not made.pending_reasons[job.job_id].why
    ]
    assert not silent, f"jobs {silent} wait and nobody knows why"


# --- The anti-starvation bound ----------------------------------------------------------------------------


def nobody_is_passed_over(snapshot: Snapshot, made: Plan) -> int:
    """Assert that nothing that starts takes what an overdue job needs; return the number of those.

    Exactly: an overdue job that would start if only the overdue were waiting does start.  One for which
    devices are reserved then is promised no later time, whatever starts behind it.  One that waits for a
    quota, or for an older job that does, does not see it given to anybody behind it.  One for which no
    reservation is left is passed by nobody who is not overdue.  One that can never start stops nobody, and
    devices out of service are kept for nobody.
    """
    placements = Placements(Calendar(snapshot))
    late = EligibleJobs(snapshot, FairShare.of(snapshot), placements.can_start).overdue
    started = {start.job_id for start in made.starts}
    blocked = tuple(job for job in late if job.job_id not in started)
    if not blocked:
        return 0
    alone = plan(replace(snapshot, pending=tuple(late), ready=None))
    kept_back = {start.job_id for start in alone.starts} - started
    assert not kept_back, f"overdue jobs {kept_back} could start, and {started} did"
    before, behind = _begun(snapshot, made, {job.job_id for job in late})
    if not behind:
        return 0
    without = plan(replace(snapshot, pending=blocked, ready=None, running=(*snapshot.running, *before)))
    after = plan(
        replace(snapshot, pending=blocked, ready=None, running=(*snapshot.running, *before, *behind))
    )
    _promises_hold(without, after, behind)
    _quotas_are_left(_Needy.of(blocked, without), behind)
    return len(blocked)


def _promises_hold(without: Plan, after: Plan, behind: Iterable[RunningJob]) -> None:
    names = sorted(job.job_id for job in behind)
    promised = {each.job_id: each.at_s for each in after.reservations}
    for each in without.reservations:
        at_s = promised.get(each.job_id)
        assert at_s is not None, f"overdue job {each.job_id} has lost its promise to {names}"
        assert at_s <= each.at_s + EARLY_S, (
            f"overdue job {each.job_id}: {at_s - each.at_s} s later by {names}"
        )


@dataclass(frozen=True)
class _Needy:
    """Quotas that overdue jobs wait for, and jobs that wait for devices promised to others."""

    places: Placements
    closed: frozenset[str]
    unpromised: tuple[str, ...]

    @classmethod
    def of(cls, blocked: Iterable[PendingJob], made: Plan) -> "_Needy":
        waits, promised = made.pending_reasons, {each.job_id: each for each in made.reservations}
        assert isinstance(waits, PendingReasons)
        snapshot, closed = waits.snapshot, set[str]()
        book, unpromised = Calendar(snapshot), []
        for job in blocked:
            caps, known = list(book.limits(job)), promised.get(job.job_id)
            if known is not None:
                book.book(
                    job,
                    book.by_name[known.host],
                    known.devices,
                    known.at_s,
                    _kept_s(job, snapshot),
                    overdue=True,
                )
            elif not _hopeless(job, caps, waits.placements):
                full, later = (
                    _full(caps, snapshot.now_s, lasts_s) for lasts_s in (EARLY_S, _lasts_s(job, snapshot))
                )
                closed |= full
                held_up = later or closed & {each.label for each in caps}
                unpromised += [] if held_up else [job.job_id]
        return cls(waits.placements, frozenset(closed), tuple(unpromised))


def _full(caps: Iterable[Limit], now_s: float, lasts_s: float) -> set[str]:
    """Return the limits that do not leave enough for a time: what is only kept for later counts too."""
    return {each.label for each in caps if each.timeline.min_free(now_s, now_s + lasts_s) < each.amount}


def _lasts_s(job: PendingJob, snapshot: Snapshot) -> float:
    return _endless_s(snapshot) if job.duration_s is None else job.duration_s


def _endless_s(snapshot: Snapshot) -> float:
    return snapshot.unlimited.end_s(snapshot.now_s) - snapshot.now_s


def _kept_s(job: PendingJob, snapshot: Snapshot) -> float:
    return snapshot.config.default_duration_s if job.duration_s is None else job.duration_s


def _hopeless(job: PendingJob, caps: Iterable[Limit], places: Placements) -> bool:
    """Return True if a job waits for what it can never have, or for what is out of service."""
    gone = places.find_earliest(places.request_class(job.request), Span(0.0)) is None
    return gone or any(each.maximum < each.amount for each in caps)


def _quotas_are_left(needy: _Needy, behind: Iterable[RunningJob]) -> None:
    for job in behind:
        taken = {cap.label for cap in needy.places.calendar.limits(job)} & needy.closed
        assert not taken, f"job {job.job_id} takes of {taken}, for which overdue jobs wait"
        assert not needy.unpromised, (
            f"job {job.job_id} passes {needy.unpromised}, for which nothing is reserved"
        )


def _begun(
    snapshot: Snapshot, made: Plan, late: Collection[str]
) -> tuple[list[RunningJob], list[RunningJob]]:
    """Return what a plan starts, as if it ran: of the overdue, and of those behind them.

    Nobody behind them may count on an end that nobody knows.
    """
    jobs = {job.job_id: job for job in snapshot.pending}
    before = [each for each in made.starts if each.job_id in late]
    behind = [each for each in made.starts if each.job_id not in late]
    ends_s = snapshot.now_s + _endless_s(snapshot)
    return (
        [_running(jobs[each.job_id], each, snapshot, None) for each in before],
        [_running(jobs[each.job_id], each, snapshot, ends_s) for each in behind],
    )


def _running(job: PendingJob, start: StartJob, snapshot: Snapshot, unknown_s: float | None) -> RunningJob:
    return RunningJob(
        job_id=job.job_id,
        owner=job.owner,
        request=job.request,
        host=start.host,
        devices=start.devices,
        started_s=snapshot.now_s,
        ends_s=unknown_s if job.duration_s is None else snapshot.now_s + job.duration_s,
        group=job.group,
        priority_class=job.priority_class,
        array=job.array,
    )
