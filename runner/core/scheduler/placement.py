"""Where a job could live at all, and where it could now: what jobs of equal needs share.

Ten thousand waiting jobs have a few dozen kinds of needs.  What was found out for one of them
holds for the others: a shape that found no place is dead for the rest of the plan, because in
the course of a plan nothing becomes free.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from runner.core.scheduler.calendar import Calendar, DeviceSlot, HostCalendar, Limit, device_units, millicpus
from runner.core.scheduler.device_selection import Selection, select_devices
from runner.core.scheduler.snapshot import DeviceKind, ResourceRequest, SchedulableDevice
from runner.core.scheduler.timeline import Span


@dataclass(slots=True)
class DevicePool:
    """The devices that some shapes can use, by host, and which of them are free now."""

    slots: dict[int, list[DeviceSlot]]
    open: dict[int, list[DeviceSlot]] = field(default_factory=dict)
    changes_seen: int = 0  # of the book's changes


@dataclass(slots=True)
class RequestClass:
    """Equal needs, with what has been found out about them in this plan."""

    request: ResourceRequest
    millicpus: int
    device_units: int
    pool: DevicePool
    exhausted: bool = False  # finds no place, however short
    never_placeable: bool = False  # and nobody knows when it will
    too_long_s: float | None = None  # the shortest duration that found no place, for ever included
    possible: bool | None = None  # None: not looked at
    selections: dict[int, tuple[int, Selection | None]] = field(default_factory=dict)  # by host, of a version


@dataclass(frozen=True, slots=True)
class Placement:
    """Where and when a job could start."""

    at_s: float
    selection: Selection


@dataclass(slots=True)
class Placements:
    """Finds places in a book."""

    calendar: Calendar
    _pools: dict[object, DevicePool] = field(default_factory=dict)
    _by_request: dict[ResourceRequest, RequestClass] = field(default_factory=dict)
    _by_identity: dict[int, RequestClass] = field(default_factory=dict)

    def request_class(self, needs: ResourceRequest) -> RequestClass:
        """Return the shape of some needs; equal ones have the same."""
        known = self._by_identity.get(id(needs))  # comparing values costs more than all the rest
        if known is None:
            known = self._by_request.get(needs)
            if known is None:
                known = self._by_request[needs] = RequestClass(
                    needs, millicpus(needs), device_units(needs), self._pool(needs)
                )
            self._by_identity[id(needs)] = known
        return known

    def _pool(self, needs: ResourceRequest) -> DevicePool:
        key = (bool(needs.gpus), needs.vendor, needs.models, needs.capability, needs.kind, needs.avoid,
               needs.device_bytes)  # fmt: skip
        if key not in self._pools:
            slots = {book.number: _suitable(needs, book.slots) for book in self.calendar.hosts}
            pool = self._pools[key] = DevicePool(slots)
            self._refresh(pool, self.calendar.hosts, needs)
            pool.changes_seen = len(self.calendar.changed)
        return self._pools[key]

    def _refresh(self, pool: DevicePool, hosts: Iterable[HostCalendar], needs: ResourceRequest) -> None:
        amount = device_units(needs)
        for book in hosts:
            pool.open.pop(book.number, None)
            free = [slot for slot in pool.slots[book.number] if slot.timeline.free[0] >= amount]
            if free or not needs.gpus:
                pool.open[book.number] = free

    def find_now(self, shape: RequestClass, lasts_s: float) -> Selection | None:
        """Return the best place where a job can start now and stay so long."""
        pool, changed = shape.pool, self.calendar.changed
        if pool.changes_seen < len(changed):
            self._refresh(pool, changed[pool.changes_seen :], shape.request)
            pool.changes_seen = len(changed)
        best: Selection | None = None
        for number, free in pool.open.items():
            if len(free) >= shape.request.gpus:
                choice = self._find_now_on(shape, self.calendar.hosts[number], free, lasts_s)
                if choice is not None and (best is None or choice.score < best.score):
                    best = choice
        return best

    def _find_now_on(
        self, shape: RequestClass, host: HostCalendar, free: list[DeviceSlot], lasts_s: float
    ) -> Selection | None:
        if not host.only_frees_up:
            now_s = self.calendar.snapshot.now_s
            return fit_host(shape, host, free, now_s, now_s + lasts_s)
        known = shape.selections.get(host.number)
        if known is None or known[0] != host.version:
            now_s = self.calendar.snapshot.now_s
            choice = fit_host(shape, host, free, now_s, now_s)
            known = shape.selections[host.number] = (host.version, choice)
        return known[1]

    def find_earliest(self, shape: RequestClass, stay: Span, caps: Sequence[Limit] = ()) -> Placement | None:
        """Return the first place that will be there, as far as is known; None if there will be none."""
        best: Placement | None = None
        for host in self.calendar.hosts:
            latest_s = best.at_s if best else inf
            place = self._find_earliest_on(host, shape, stay, caps, latest_s)
            if place and (
                not best or (place.at_s, place.selection.score) < (best.at_s, best.selection.score)
            ):
                best = place
        return best

    def _find_earliest_on(
        self, host: HostCalendar, shape: RequestClass, stay: Span, caps: Sequence[Limit], latest_s: float
    ) -> Placement | None:
        """Return the least fixed point of ``opening``: nothing before it is possible, and it is.

        None where it is later than another host's.
        """
        slots, at_s = shape.pool.slots[host.number], self.calendar.snapshot.now_s
        while True:
            later_s = _opening(host, shape, slots, at_s, stay, caps)
            if later_s == inf or later_s > latest_s:
                return None
            if later_s == at_s:
                choice = fit_host(shape, host, slots, at_s, stay.end_s(at_s))
                return Placement(at_s, choice) if choice else None
            at_s = later_s

    def enough_together(self, shape: RequestClass) -> bool:
        """Return whether enough devices are free on one host, and linked if they must be."""
        return any(
            select_devices(shape.request, self.calendar.hosts[i], free) for i, free in shape.pool.open.items()
        )

    def usable_slots(self, shape: RequestClass) -> Iterator[DeviceSlot]:
        """Yield the devices that a shape could use, whatever they do now."""
        return (slot for slots in shape.pool.slots.values() for slot in slots)

    def could_ever_run(self, shape: RequestClass) -> bool:
        """Return whether a job could ever start if all else was gone and everything in service."""
        if shape.possible is None:
            slots = shape.pool.slots
            shape.possible = any(_could(shape, host, slots[host.number]) for host in self.calendar.hosts)
        return shape.possible


def fit_host(
    shape: RequestClass, host: HostCalendar, slots: Iterable[DeviceSlot], begins_s: float, ends_s: float
) -> Selection | None:
    """Return the choice on one host for a time; None if too little stays free all along."""
    if host.millicpus.min_free(begins_s, ends_s) < shape.millicpus:
        return None
    if host.memory.min_free(begins_s, ends_s) < shape.request.memory_bytes:
        return None
    free = [slot for slot in slots if slot.timeline.min_free(begins_s, ends_s) >= shape.device_units]
    return select_devices(shape.request, host, free)


def _opening(  # noqa: PLR0913, PLR0917
    host: HostCalendar,
    shape: RequestClass,
    slots: Sequence[DeviceSlot],
    at_s: float,
    stay: Span,
    caps: Sequence[Limit],
) -> float:
    """Return a time before which no job of this shape can start, at ``at_s`` or later."""
    openings = [cap.timeline.earliest(at_s, stay, cap.amount) for cap in caps]
    openings += [
        host.millicpus.earliest(at_s, stay, shape.millicpus),
        host.memory.earliest(at_s, stay, shape.request.memory_bytes),
    ]
    if shape.request.gpus:
        timed = [(slot.timeline.earliest(at_s, stay, shape.device_units), slot.device) for slot in slots]
        openings.append(_enough(timed, shape.request))
    return max(openings)


def _enough(timed: list[tuple[float, SchedulableDevice]], needs: ResourceRequest) -> float:
    """Return when so many devices are free: of one vendor at least, of one island if it must be."""
    groups: dict[object, list[float]] = {}
    for at_s, device in timed:
        key = (
            (device.vendor, device.model, device.link_group or device.uuid) if needs.linked else device.vendor
        )
        groups.setdefault(key, []).append(at_s)
    ready = [sorted(group)[needs.gpus - 1] for group in groups.values() if len(group) >= needs.gpus]
    return min(ready, default=inf)


def _could(shape: RequestClass, host: HostCalendar, slots: Sequence[DeviceSlot]) -> bool:
    enough = (
        round(host.host.cpus * 1000) >= shape.millicpus
        and host.host.memory_bytes >= shape.request.memory_bytes
    )
    return enough and select_devices(shape.request, host, slots) is not None


def _suitable(needs: ResourceRequest, slots: Iterable[DeviceSlot]) -> list[DeviceSlot]:
    return [slot for slot in slots if matches_request(needs, slot.device)] if needs.gpus else []


def matches_request(needs: ResourceRequest, device: SchedulableDevice) -> bool:
    """Return whether a device is of the right kind; whether it is free is another question."""
    size = device.shareable_bytes if device.kind is DeviceKind.SHARED else device.memory_bytes
    return (
        device.kind is needs.kind
        and needs.vendor in {None, device.vendor}
        and (not needs.models or any(model.casefold() in device.model.casefold() for model in needs.models))
        and size >= needs.device_bytes
        and device.capability >= needs.capability
        and device.uuid not in needs.avoid
    )
