"""Placement: where and when a request fits, now and in the future.

Ten thousand pending jobs have a few dozen different requests.  Jobs with equal requests form a
request class, and what is found out for one job holds for all of them.  In the course of one plan
nothing becomes free, so a class that fits nowhere now is exhausted for the rest of the plan.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from runner.core.scheduler.calendar import (
    Calendar,
    DeviceSlot,
    HostCalendar,
    Limit,
    device_units,
    millicpus,
)
from runner.core.scheduler.device_selection import Selection, select_devices
from runner.core.scheduler.snapshot import DeviceKind, PendingJob, ResourceRequest, SchedulableDevice
from runner.core.scheduler.timeline import Span


@dataclass(slots=True)
class RequestClass:
    """Equal requests, with what this plan has found out about them."""

    request: ResourceRequest
    millicpus: int
    device_units: int
    slots: dict[int, list[DeviceSlot]]  # that it can use, by host
    exhausted: bool = False  # fits nowhere now, however short
    never_placeable: bool | None = None  # and at no later time that is known; None: not computed yet
    too_long_s: float | None = None  # the shortest duration that is known not to fit now
    possible: bool | None = None  # would fit an empty host; None: not computed yet

    def free_now(self, host: HostCalendar) -> list[DeviceSlot]:
        """Return the devices of a host that can be used and are free now, for a moment at least."""
        return [slot for slot in self.slots[host.number] if slot.timeline.free[0] >= self.device_units]


@dataclass(frozen=True, slots=True)
class Placement:
    """A time and the devices at which a job can start."""

    at_s: float
    selection: Selection


@dataclass(slots=True)
class Placements:
    """Searches for placements in a calendar."""

    calendar: Calendar
    _matching: dict[object, dict[int, list[DeviceSlot]]] = field(default_factory=dict)
    _by_request: dict[ResourceRequest, RequestClass] = field(default_factory=dict)
    _by_identity: dict[int, RequestClass] = field(default_factory=dict)

    def request_class(self, request: ResourceRequest) -> RequestClass:
        """Return the class of a request; equal requests have the same class."""
        known = self._by_identity.get(id(request))  # comparing values takes longer than the rest of a plan
        if known is not None:
            return known
        known = self._by_request.get(request)
        if known is None:
            placed = self._placed_here(request)
            known = RequestClass(placed, millicpus(placed), device_units(placed), self._slots(placed))
            self._by_request[request] = known
        self._by_identity[id(request)] = known
        return known

    def _placed_here(self, request: ResourceRequest) -> ResourceRequest:
        """Return the part of a request to place: no devices where the engine chooses them itself."""
        if any(host.host.chooses_devices for host in self.calendar.hosts):
            return replace(request, gpus=0)
        return request

    def _slots(self, request: ResourceRequest) -> dict[int, list[DeviceSlot]]:
        """Return the devices that match a request, by host."""
        key = (
            bool(request.gpus),
            request.vendor,
            request.models,
            request.capability,
            request.kind,
            request.avoid,
            request.device_bytes,
        )
        if key not in self._matching:
            hosts = self.calendar.hosts
            self._matching[key] = {host.number: _usable(request, host.slots) for host in hosts}
        return self._matching[key]

    def find_now(self, request_class: RequestClass, duration_s: float) -> Selection | None:
        """Return the best devices on which a job of this duration can start now; None: there are none."""
        best, now_s = None, self.calendar.snapshot.now_s
        for host in self.calendar.hosts:
            free = request_class.free_now(host)
            if len(free) < request_class.request.gpus:
                continue
            selection = fit_host(request_class, host, free, now_s, now_s + duration_s)
            if selection is not None and (best is None or selection.score < best.score):
                best = selection
        return best

    def find_earliest(
        self, request_class: RequestClass, span: Span, limits: Sequence[Limit] = ()
    ) -> Placement | None:
        """Return the earliest placement for a span under some limits; None if none is foreseeable."""
        best: Placement | None = None
        for host in self.calendar.hosts:
            latest_s = best.at_s if best else inf
            found = self._find_earliest_on(host, request_class, span, limits, latest_s)
            if found is None:
                continue
            if best is None or (found.at_s, found.selection.score) < (best.at_s, best.selection.score):
                best = found
        return best

    def _find_earliest_on(
        self,
        host: HostCalendar,
        request_class: RequestClass,
        span: Span,
        limits: Sequence[Limit],
        latest_s: float,
    ) -> Placement | None:
        """Return the earliest placement on one host; None if it is later than ``latest_s``.

        ``_lower_bound`` names a time before which no placement is possible.  The search repeats it from
        that time on until it stays where it is.
        """
        slots, at_s = request_class.slots[host.number], self.calendar.snapshot.now_s
        while True:
            bound_s = _lower_bound(host, request_class, slots, at_s, span, limits)
            if bound_s == inf or bound_s > latest_s:
                return None
            if bound_s == at_s:
                selection = fit_host(request_class, host, slots, at_s, span.end_s(at_s))
                return Placement(at_s, selection) if selection else None
            at_s = bound_s

    def can_start(self, job: PendingJob) -> bool:
        """Return True if a job fits at some time that is known, and no limit is below its request."""
        request_class = self.request_class(job.request)
        if request_class.never_placeable is None:
            request_class.never_placeable = self.find_earliest(request_class, Span(0.0)) is None
        if request_class.never_placeable:
            return False
        return all(limit.maximum >= limit.amount for limit in self.calendar.limits(job))

    def enough_together(self, request_class: RequestClass) -> bool:
        """Return True if enough devices are free on one host, linked where the request says so."""
        return any(
            select_devices(request_class.request, host, request_class.free_now(host))
            for host in self.calendar.hosts
        )

    def usable_slots(self, request_class: RequestClass) -> Iterator[DeviceSlot]:
        """Yield the devices that match a request, whatever their state is."""
        return (slot for slots in request_class.slots.values() for slot in slots)

    def could_ever_run(self, request_class: RequestClass) -> bool:
        """Return True if a request fits on some host that is empty and entirely in service."""
        if request_class.possible is None:
            slots = request_class.slots
            request_class.possible = any(
                _fits_empty_host(request_class, host, slots[host.number]) for host in self.calendar.hosts
            )
        return request_class.possible


def fit_host(
    request_class: RequestClass,
    host: HostCalendar,
    slots: Iterable[DeviceSlot],
    begins_s: float,
    ends_s: float,
) -> Selection | None:
    """Return the best devices of one host for a time; None if too little stays free for all of it."""
    if host.millicpus.min_free(begins_s, ends_s) < request_class.millicpus:
        return None
    if host.memory.min_free(begins_s, ends_s) < request_class.request.memory_bytes:
        return None
    free = [slot for slot in slots if slot.timeline.min_free(begins_s, ends_s) >= request_class.device_units]
    return select_devices(request_class.request, host, free)


def _lower_bound(  # noqa: PLR0913, PLR0917
    host: HostCalendar,
    request_class: RequestClass,
    slots: Sequence[DeviceSlot],
    at_s: float,
    span: Span,
    limits: Sequence[Limit],
) -> float:
    """Return a time from ``at_s`` on before which no job of this class can start on a host."""
    bounds = [limit.timeline.earliest(at_s, span, limit.amount) for limit in limits]
    bounds.append(host.millicpus.earliest(at_s, span, request_class.millicpus))
    bounds.append(host.memory.earliest(at_s, span, request_class.request.memory_bytes))
    if request_class.request.gpus:
        free_from = [
            (slot.timeline.earliest(at_s, span, request_class.device_units), slot.device) for slot in slots
        ]
        bounds.append(_enough_free_at(free_from, request_class.request))
    return max(bounds)


def _enough_free_at(free_from: list[tuple[float, SchedulableDevice]], request: ResourceRequest) -> float:
    """Return when enough devices of one vendor, or of one link group where it must be, are free."""
    groups: dict[object, list[float]] = {}
    for at_s, device in free_from:
        link_group = (device.vendor, device.model, device.link_group or device.uuid)
        groups.setdefault(link_group if request.linked else device.vendor, []).append(at_s)
    ready = [sorted(group)[request.gpus - 1] for group in groups.values() if len(group) >= request.gpus]
    return min(ready, default=inf)


def _fits_empty_host(request_class: RequestClass, host: HostCalendar, slots: Sequence[DeviceSlot]) -> bool:
    if round(host.host.cpus * 1000) < request_class.millicpus:
        return False
    if host.host.memory_bytes < request_class.request.memory_bytes:
        return False
    return select_devices(request_class.request, host, slots) is not None


def _usable(request: ResourceRequest, slots: Iterable[DeviceSlot]) -> list[DeviceSlot]:
    return [slot for slot in slots if matches_request(request, slot.device)] if request.gpus else []


def matches_request(request: ResourceRequest, device: SchedulableDevice) -> bool:
    """Return True if a device is of the kind that a request asks for, free or not."""
    size = device.shareable_bytes if device.kind is DeviceKind.SHARED else device.memory_bytes
    model = device.model.casefold()
    return (
        device.kind is request.kind
        and request.vendor in {None, device.vendor}
        and (not request.models or any(wanted.casefold() in model for wanted in request.models))
        and size >= request.device_bytes
        and device.capability >= request.capability
        and device.uuid not in request.avoid
    )
