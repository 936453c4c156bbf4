"""Device selection: which of the free devices of a host a job gets.

Best fit, in this order: few link groups; devices with little memory and an old compute capability
before better ones; link groups that are broken already before whole ones; the link group with the
fewest devices left over.  So whole link groups stay free for the jobs that need them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from runner.core.scheduler.calendar import DeviceSlot, HostCalendar
from runner.core.scheduler.snapshot import ResourceRequest

Score = tuple[int, int, tuple[int, int], bool, int, int]
"""Link groups used, memory, capability, breaks a whole link group, devices left over, number of the host."""

MIXED_MODELS = 1000
"""Added to the link groups used where the devices are of several models: the last choice."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Devices of one host; a lower score is better."""

    score: Score
    host: HostCalendar
    devices: tuple[str, ...]


def select_devices(
    request: ResourceRequest, host: HostCalendar, free: Sequence[DeviceSlot]
) -> Selection | None:
    """Return the best selection among the free devices of a host; None if they do not suffice."""
    if not request.gpus:
        uses_gpu_host = 1 if host.slots else 0
        return Selection((uses_gpu_host, 0, (0, 0), False, 0, host.number), host, ())
    if len(free) < request.gpus:
        return None
    link_groups = _link_groups(free)
    large_enough = [group for group in link_groups if len(group) >= request.gpus]
    if large_enough:
        selections = [_from_one_group(request.gpus, host, group) for group in large_enough]
        return min(selections, key=lambda selection: selection.score)
    return None if request.linked else _from_several_groups(request.gpus, host, link_groups)


def _link_groups(free: Iterable[DeviceSlot]) -> list[list[DeviceSlot]]:
    """Return devices by link group; a device without links is a group of its own."""
    link_groups: dict[tuple[str, str, str], list[DeviceSlot]] = {}
    for slot in free:
        device = slot.device
        key = (device.vendor, device.model, device.link_group or f"alone {device.uuid}")
        link_groups.setdefault(key, []).append(slot)
    return list(link_groups.values())


def _from_one_group(count: int, host: HostCalendar, link_group: list[DeviceSlot]) -> Selection:
    device = link_group[0].device
    whole = device.link_group is not None and len(link_group) == host.link_groups[device.link_group] > 1
    left_over = len(link_group) - count
    breaks_whole = whole and left_over > 0
    score = (1, device.memory_bytes, device.capability, breaks_whole, left_over, host.number)
    return Selection(score, host, _close_together(link_group, count))


def _from_several_groups(
    count: int, host: HostCalendar, link_groups: list[list[DeviceSlot]]
) -> Selection | None:
    """Return devices of one vendor and as few link groups as possible, of one model if that suffices."""
    candidates: dict[tuple[str, str | None], None] = {}  # vendor and model; None: any model
    for group in link_groups:
        candidates[group[0].device.vendor, group[0].device.model] = None
        candidates[group[0].device.vendor, None] = None
    selections = [
        _from_largest_groups(count, host, _of_kind(link_groups, vendor, model))
        for vendor, model in candidates
    ]
    found = [selection for selection in selections if selection is not None]
    return min(found, key=lambda selection: selection.score) if found else None


def _of_kind(link_groups: list[list[DeviceSlot]], vendor: str, model: str | None) -> list[list[DeviceSlot]]:
    return [
        group
        for group in link_groups
        if group[0].device.vendor == vendor and model in {None, group[0].device.model}
    ]


def _from_largest_groups(
    count: int, host: HostCalendar, link_groups: list[list[DeviceSlot]]
) -> Selection | None:
    taken: list[DeviceSlot] = []
    groups_used = 0
    for link_group in sorted(link_groups, key=len, reverse=True):
        if len(taken) == count:
            break
        taken += link_group[: count - len(taken)]
        groups_used += 1
    if len(taken) < count:
        return None
    mixed = len({slot.device.model for slot in taken}) > 1
    memory_bytes = max(slot.device.memory_bytes for slot in taken)
    score = (
        groups_used + MIXED_MODELS * mixed,
        memory_bytes,
        taken[0].device.capability,
        False,
        0,
        host.number,
    )
    return Selection(score, host, tuple(slot.device.uuid for slot in sorted(taken, key=_number)))


def _close_together(link_group: list[DeviceSlot], count: int) -> tuple[str, ...]:
    """Return devices of a link group, all on one NUMA node if one node has enough."""
    if len(link_group) == count:
        return tuple(slot.device.uuid for slot in link_group)
    ordered = sorted(link_group, key=lambda slot: (slot.device.numa, slot.number))
    nodes = [list(node) for _, node in groupby(ordered, key=lambda slot: slot.device.numa)]
    # The smallest node that has enough comes first; where none has enough, the largest.
    nodes.sort(key=lambda node: (len(node) < count, len(node) if len(node) >= count else -len(node)))
    nearest = [slot for node in nodes for slot in node][:count]
    return tuple(slot.device.uuid for slot in sorted(nearest, key=_number))


def _number(slot: DeviceSlot) -> int:
    return slot.number
