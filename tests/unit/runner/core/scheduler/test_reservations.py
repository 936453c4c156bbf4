"""Invariants of plans over random sites and random traces."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from runner.core.scheduler.backfill import Plan, plan
from runner.core.scheduler.calendar import Calendar, expected_end
from runner.core.scheduler.config import DAY_S, PriorityClass, Quota, Quotas, SchedulerConfig, SchedulingOrder
from runner.core.scheduler.placement import Placements, fit_host
from runner.core.scheduler.priority import overdue_jobs
from runner.core.scheduler.simulator import Arrival, Site, simulate
from runner.core.scheduler.snapshot import (
    GIB,
    DeviceKind,
    DeviceState,
    Host,
    JobArray,
    Maintenance,
    PendingJob,
    ResourceRequest,
    RunningJob,
    SchedulableDevice,
    Snapshot,
)
from runner.core.scheduler.timeline import Span
from tests.fakes.days.invariants import nobody_is_passed_over
from tests.fakes.host.disk import examples

FEW = settings(max_examples=examples(20))
OWNERS = st.sampled_from(("ada", "bob", "eve"))
GROUPS = st.sampled_from(("", "lab", "guests"))
CLASSES = st.sampled_from(("idle", "normal", "urgent"))
SWEEPS = st.sampled_from((None, None, JobArray("s", 1), JobArray("t", 2), JobArray("u")))
BOUNDED = tuple(
    PriorityClass(name, rank, preempts=rank == 2, preemptible=rank == 0, starvation_limit_s=50.0)
    for rank, name in enumerate(("idle", "normal", "urgent"))
)
SOON_OVERDUE = tuple(replace(each, starvation_limit_s=5.0) for each in BOUNDED)

NEEDS = st.one_of(
    st.builds(
        ResourceRequest,
        cpus=st.integers(1, 5).map(float),
        memory_bytes=st.integers(0, 5).map(GIB.__mul__),
        gpus=st.integers(0, 4),
        device_bytes=st.sampled_from((0, 40 * GIB)),
        linked=st.booleans(),
    ),
    st.builds(
        ResourceRequest,
        gpus=st.just(1),
        kind=st.just(DeviceKind.SHARED),
        device_bytes=st.integers(1, 40).map(GIB.__mul__),
    ),
)


@st.composite
def site_hosts(draw: st.DrawFn) -> tuple[Host, ...]:
    return tuple(_host(f"h{i}", draw) for i in range(draw(st.integers(1, 3))))


def _host(name: str, draw: st.DrawFn) -> Host:
    link_groups = draw(st.lists(st.sampled_from((None, "x", "y")), max_size=5))
    whole = [
        SchedulableDevice(
            f"{name}-{i}",
            f"GPU-{i}",
            memory_bytes=draw(st.sampled_from((20, 80))) * GIB,
            link_group=link_group,
        )
        for i, link_group in enumerate(link_groups)
    ]
    shared = [
        SchedulableDevice(
            f"{name}-s", "GPU-s", memory_bytes=80 * GIB, kind=DeviceKind.SHARED, shareable_bytes=60 * GIB
        )
    ]
    return Host(name, draw(st.integers(1, 8)), 8 * GIB, tuple(whole + shared * draw(st.booleans())))


QUOTAS = st.builds(
    Quotas,
    users=st.dictionaries(OWNERS, st.builds(Quota, st.integers(0, 3), st.integers(0, 3)), max_size=2),
    groups=st.dictionaries(st.just("lab"), st.builds(Quota, st.integers(1, 4)), max_size=1),
)
RULES = st.builds(
    SchedulerConfig,
    order=st.sampled_from(SchedulingOrder),
    classes=st.just(BOUNDED),
    backfill=st.booleans(),
    quotas=QUOTAS,
    overdue_per_owner=st.integers(1, 20),
    reservations=st.integers(0, 5),
    default_duration_s=st.sampled_from((20.0, 90.0, DAY_S)),
)
MAINTENANCE = st.lists(
    st.builds(
        lambda at_s, lasts_s, hosts, devices: Maintenance(
            at_s, at_s + lasts_s, "fans", frozenset(hosts), frozenset(devices)
        ),
        st.integers(0, 200).map(float),
        st.integers(1, 100).map(float),
        st.sets(st.sampled_from(("h0", "h1")), max_size=1),
        st.sets(st.sampled_from(("h0-0", "h0-1", "h0-s", "h1-0")), max_size=2),
    ),
    max_size=2,
).map(tuple)


@st.composite
def traces(draw: st.DrawFn, most: int = 14) -> list[Arrival]:
    return [_arrival(str(i), draw) for i in range(draw(st.integers(1, most)))]


def _arrival(job_id: str, draw: st.DrawFn) -> Arrival:
    lasts_s = float(draw(st.integers(1, 120)))
    limit_s = draw(st.sampled_from((None, lasts_s, 2 * lasts_s, lasts_s / 2)))
    return Arrival(
        job_id, draw(OWNERS), draw(NEEDS), float(draw(st.integers(0, 100))), lasts_s, limit_s, draw(GROUPS),
        draw(CLASSES), array=draw(SWEEPS), restart_s=1.0,
    )  # fmt: skip


# --- what is looked at after every plan


def held(
    snapshot: Snapshot, decided: Plan
) -> list[tuple[RunningJob | PendingJob, str, tuple[str, ...], float]]:
    """Return who holds what once a plan is carried out, and until when."""
    jobs = {job.job_id: job for job in snapshot.pending}
    had = [
        (job, job.host, job.devices, expected_end(job, snapshot.now_s, snapshot.config))
        for job in snapshot.running
    ]
    new = [(jobs[each.job_id], each.host, each.devices, snapshot.now_s + _kept(jobs[each.job_id], snapshot))
           for each in decided.starts]  # fmt: skip
    return [*had, *new]


def _lasts(job: PendingJob) -> float:
    return inf if job.duration_s is None else job.duration_s


def _kept(job: PendingJob, snapshot: Snapshot) -> float:
    """Return for how long a job is taken to have what it has been given."""
    return snapshot.config.default_duration_s if job.duration_s is None else job.duration_s


def nothing_is_lent_twice(snapshot: Snapshot, decided: Plan) -> None:
    _within_hosts(
        snapshot, [(job.request, host, devices) for job, host, devices, _ in held(snapshot, decided)]
    )


def _within_hosts(snapshot: Snapshot, holders: list[tuple[ResourceRequest, str, tuple[str, ...]]]) -> None:
    for host in snapshot.hosts:
        here = [(needs, devices) for needs, name, devices in holders if name == host.name]
        assert sum(needs.cpus for needs, _ in here) <= host.cpus
        assert sum(needs.memory_bytes for needs, _ in here) <= host.memory_bytes
        for device in host.devices:
            takers = [needs for needs, devices in here if device.uuid in devices]
            if device.kind is DeviceKind.SHARED:
                assert sum(needs.device_bytes for needs in takers) <= device.shareable_bytes
            else:
                assert len(takers) <= 1


def every_start_has_what_it_needs(snapshot: Snapshot, decided: Plan) -> None:
    jobs = {job.job_id: job for job in snapshot.pending}
    known = {device.uuid: device for host in snapshot.hosts for device in host.devices}
    on = {device.uuid: host.name for host in snapshot.hosts for device in host.devices}
    for start in decided.starts:
        needs, devices = jobs[start.job_id].request, [known[uuid] for uuid in start.devices]
        assert len(set(start.devices)) == needs.gpus
        assert all(on[uuid] == start.host for uuid in start.devices)
        assert all(
            device.kind is needs.kind and device.memory_bytes >= needs.device_bytes for device in devices
        )
        assert (
            not needs.linked or needs.gpus < 2 or len({device.link_group for device in devices} - {None}) == 1
        )


def quotas_are_kept(snapshot: Snapshot, decided: Plan) -> None:
    jobs = [job for job, *_ in held(snapshot, decided)]
    quotas = snapshot.config.quotas
    for job in jobs:
        own = [each for each in jobs if each.owner == job.owner]
        group = [each for each in jobs if each.group == job.group]
        for quota, those in ((quotas.for_user(job.owner), own), (quotas.for_group(job.group), group)):
            assert quota.jobs is None or len(those) <= quota.jobs
            assert quota.devices is None or sum(each.request.gpus for each in those) <= quota.devices
        if job.array and job.array.max_parallel:
            assert sum(each.array == job.array for each in jobs) <= job.array.max_parallel


def reservations_can_be_kept(snapshot: Snapshot, decided: Plan) -> None:
    """Look whether everything reserved is free when it is due, if all jobs last as long as they may."""
    gone = {each.job_id for each in decided.preemptions}
    waiting = {job.job_id: job for job in snapshot.pending}
    leaves_s = snapshot.now_s + snapshot.config.preemption.grace_s
    holders = [
        (job, host, devices, min(ends_s, leaves_s) if job.job_id in gone else ends_s)
        for job, host, devices, ends_s in held(snapshot, decided)
    ]
    for due in decided.reservations:
        there = [(job, host, devices) for job, host, devices, ends_s in holders if ends_s > due.at_s]
        there += [
            (waiting[each.job_id], each.host, each.devices)
            for each in decided.reservations
            if each.at_s <= due.at_s < each.at_s + _kept(waiting[each.job_id], snapshot)
        ]
        _within_hosts(snapshot, [(job.request, host, devices) for job, host, devices in there])
        own = [job for job, *_ in there if job.owner == waiting[due.job_id].owner]
        quota = snapshot.config.quotas.for_user(waiting[due.job_id].owner)
        assert quota.devices is None or sum(job.request.gpus for job in own) <= quota.devices


def maintenance_is_left_alone(snapshot: Snapshot, decided: Plan) -> None:
    jobs = {job.job_id: job for job in snapshot.pending}
    for window, start in ((w, s) for w in snapshot.maintenance for s in decided.starts):
        ours = not window.covers_host(start.host) and not window.devices & set(start.devices)
        over = window.ends_s <= snapshot.now_s
        ends_s = snapshot.now_s + _kept(jobs[start.job_id], snapshot)
        assert ours or over or ends_s <= window.begins_s


def everybody_knows_why(snapshot: Snapshot, decided: Plan) -> None:
    started = {each.job_id for each in decided.starts}
    assert set(decided.pending_reasons) == {job.job_id for job in snapshot.pending} - started
    for wait in decided.pending_reasons.values():
        assert wait.why
        assert wait.starts_s is None or wait.starts_s >= snapshot.now_s
        assert not wait.never or wait.why.startswith("never starts: ")


def late_jobs(snapshot: Snapshot) -> list[PendingJob]:
    return overdue_jobs(snapshot, list(snapshot.pending), Placements(Calendar(snapshot)).can_start)


def nothing_is_left_lying(snapshot: Snapshot, decided: Plan) -> None:
    """Look whether a job waits although it fits, is under no limit, and nothing is kept by a barrier."""
    if not snapshot.config.backfill or len(late_jobs(snapshot)) > snapshot.config.reservations:
        return
    started = {each.job_id for each in decided.starts}
    waits = decided.pending_reasons
    book: Calendar = waits.placements.calendar  # type: ignore[attr-defined]
    for job in snapshot.pending:
        if job.job_id not in started and not list(book.limits(job)):
            assert waits.placements.find_now(waits.placements.request_class(job.request), _lasts(job)) is None  # type: ignore[attr-defined]


def look(snapshot: Snapshot, decided: Plan) -> None:
    nothing_is_lent_twice(snapshot, decided)
    every_start_has_what_it_needs(snapshot, decided)
    quotas_are_kept(snapshot, decided)
    reservations_can_be_kept(snapshot, decided)
    maintenance_is_left_alone(snapshot, decided)
    everybody_knows_why(snapshot, decided)
    nothing_is_left_lying(snapshot, decided)


@FEW
@given(site_hosts(), RULES, MAINTENANCE, traces())
def test_every_plan_of_a_random_day_keeps_its_promises(
    hosts: tuple[Host, ...],
    rules: SchedulerConfig,
    maintenance: tuple[Maintenance, ...],
    trace: list[Arrival],
) -> None:
    played = simulate(Site(hosts, rules, maintenance), trace, look)
    assert len({each.arrival.job_id for each in played}) == len(played)


@FEW
@given(site_hosts(), traces(20))
def test_backfill_never_delays_the_reservation_of_the_first(
    hosts: tuple[Host, ...], trace: list[Arrival]
) -> None:
    promised: dict[str, float] = {}

    def remember(_snapshot: Snapshot, decided: Plan) -> None:
        for each in decided.reservations:
            promised.setdefault(each.job_id, each.at_s)

    bounded = [replace(job, time_limit_s=job.time_limit_s or job.duration_s, array=None) for job in trace]
    for job in simulate(Site(hosts, SchedulerConfig(order=SchedulingOrder.FIFO)), bounded, remember):
        assert job.started_s <= promised.get(job.arrival.job_id, inf)


@FEW
@given(site_hosts(), traces(20))
def test_what_an_overdue_job_needs_does_not_go_to_later_ones(
    hosts: tuple[Host, ...], trace: list[Arrival]
) -> None:
    """Once no job before it is overdue, it starts when it was promised, whatever comes later.

    One behind it may be delayed by it, when it starts elsewhere and earlier than was planned.
    """
    promised: dict[str, float] = {}

    def remember(snapshot: Snapshot, decided: Plan) -> None:
        started = {start.job_id for start in decided.starts}
        late = [job.job_id for job in late_jobs(snapshot) if job.job_id not in started]
        for each in decided.reservations[:1]:
            if each.job_id in late:
                promised.setdefault(each.job_id, each.at_s)

    classes = tuple(replace(each, preempts=False) for each in SOON_OVERDUE)
    rules = SchedulerConfig(classes=classes, overdue_per_owner=99, reservations=99)
    bounded = [replace(job, time_limit_s=job.time_limit_s or job.duration_s, array=None) for job in trace]
    for job in simulate(Site(hosts, rules), bounded, remember):
        assert job.started_s <= promised.get(job.arrival.job_id, inf)


@FEW
@given(site_hosts(), RULES, MAINTENANCE, traces())
def test_nobody_overdue_is_passed_over_in_any_plan(
    hosts: tuple[Host, ...],
    rules: SchedulerConfig,
    maintenance: tuple[Maintenance, ...],
    trace: list[Arrival],
) -> None:
    """Neither where jobs last as long as nobody knows, nor where quotas, sweeps or preemption interfere."""
    fair = replace(rules, order=SchedulingOrder.FAIR, backfill=True, reservations=max(rules.reservations, 1))

    looked_at: list[int] = []

    def judged(snapshot: Snapshot, decided: Plan) -> None:
        looked_at.append(nobody_is_passed_over(snapshot, decided))

    simulate(Site(hosts, replace(fair, classes=SOON_OVERDUE), maintenance), trace, judged)
    assert looked_at or not trace


@FEW
@given(site_hosts(), RULES, traces(), st.randoms(use_true_random=False))
def test_a_plan_does_not_depend_on_how_the_queue_is_laid_out(
    hosts: tuple[Host, ...], rules: SchedulerConfig, trace: list[Arrival], dice: object
) -> None:
    def same(snapshot: Snapshot, decided: Plan) -> None:
        queue = list(snapshot.pending)
        dice.shuffle(queue)  # type: ignore[attr-defined]
        again = plan(replace(snapshot, pending=tuple(queue)))
        assert (again.starts, again.reservations) == (decided.starts, decided.reservations)

    simulate(Site(hosts, rules), trace, same)


@FEW
@given(site_hosts(), NEEDS, st.integers(0, 60), traces())
def test_the_earliest_place_is_the_first_at_which_it_fits(
    hosts: tuple[Host, ...], needs: ResourceRequest, lasts_s: int, trace: list[Arrival]
) -> None:
    def compare(snapshot: Snapshot, _decided: Plan) -> None:
        places = Placements(Calendar(snapshot))
        shape = places.request_class(needs)
        found = places.find_earliest(shape, Span(float(lasts_s)))
        times = sorted({snapshot.now_s, *chain.from_iterable(_times(places))})
        first = next((at_s for at_s in times if _fits(places, shape.request, at_s, lasts_s)), None)
        assert (found and found.at_s) == first

    maintenance = (Maintenance(60.0, 90.0, "fans"),)
    simulate(Site(hosts, SchedulerConfig(), maintenance), trace, compare)


def _times(places: Placements) -> Iterator[list[float]]:
    for host in places.calendar.hosts:
        yield from (
            line.times for line in (host.millicpus, host.memory, *(slot.timeline for slot in host.slots))
        )


def _fits(places: Placements, needs: ResourceRequest, at_s: float, lasts_s: float) -> bool:
    shape = places.request_class(needs)
    hosts, ends_s = places.calendar.hosts, at_s + lasts_s
    return any(fit_host(shape, host, shape.slots[host.number], at_s, ends_s) for host in hosts)


@FEW
@given(site_hosts(), st.data())
def test_devices_out_of_service_are_never_lent(hosts: tuple[Host, ...], data: st.DataObject) -> None:
    states = st.sampled_from(DeviceState)
    real = tuple(
        replace(host, devices=tuple(replace(each, state=data.draw(states)) for each in host.devices))
        for host in hosts
    )
    queue = tuple(PendingJob(str(i), "ada", data.draw(NEEDS), 0.0) for i in range(5))
    decided = plan(Snapshot(1.0, real, queue))
    lent = [each for host in real for each in host.devices if each.state is DeviceState.ALLOCATED]
    free = {each.uuid for host in real for each in host.devices if each.state is DeviceState.FREE}
    free |= {each.uuid for each in lent if each.kind is DeviceKind.SHARED}
    assert {uuid for start in decided.starts for uuid in start.devices} <= free
