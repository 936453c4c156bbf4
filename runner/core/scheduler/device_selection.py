"""Which of the free devices a job gets: linked ones, the least that suffice, and no island broken in vain.

Best fit, in this order: few islands; devices with little memory and an old capability before
better ones; islands that are broken already before whole ones; the island on which the least is
left over.  So whole islands stay whole for those who need them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from runner.core.scheduler.calendar import DeviceSlot, HostCalendar
from runner.core.scheduler.snapshot import ResourceRequest

Score = tuple[int, int, tuple[int, int], bool, int, int]
"""Islands used, memory, capability, a whole island is broken, devices left over, place of the host."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Devices of one host, and how good that is: lower scores are better."""

    score: Score
    host: HostCalendar
    devices: tuple[str, ...]


def select_devices(
    needs: ResourceRequest, host: HostCalendar, free: Sequence[DeviceSlot]
) -> Selection | None:
    """Return the best choice among the free devices of a host; None if they do not suffice."""
    if not needs.gpus:
        return Selection((len(host.slots) and 1, 0, (0, 0), False, 0, host.number), host, ())
    if len(free) < needs.gpus:
        return None
    link_groups = _islands(free)
    scored = [
        _on_one(needs.gpus, host, link_group) for link_group in link_groups if len(link_group) >= needs.gpus
    ]
    if scored:
        return min(scored, key=lambda choice: choice.score)
    return None if needs.linked else _on_several(needs.gpus, host, link_groups)


def _islands(free: Iterable[DeviceSlot]) -> list[list[DeviceSlot]]:
    """Return devices by island; one without links is an island of its own."""
    link_groups: dict[tuple[str, str, str], list[DeviceSlot]] = {}
    for slot in free:
        device = slot.device
        key = (device.vendor, device.model, device.link_group or f"alone {device.uuid}")
        link_groups.setdefault(key, []).append(slot)
    return list(link_groups.values())


def _on_one(count: int, host: HostCalendar, link_group: list[DeviceSlot]) -> Selection:
    device = link_group[0].device
    whole = device.link_group is not None and len(link_group) == host.link_groups[device.link_group] > 1
    left = len(link_group) - count
    score = (1, device.memory_bytes, device.capability, whole and left > 0, left, host.number)
    return Selection(score, host, _near(link_group, count))


def _on_several(count: int, host: HostCalendar, link_groups: list[list[DeviceSlot]]) -> Selection | None:
    """Return devices of one vendor and as few islands as can be, of one model if that suffices."""
    kinds = dict.fromkeys(
        (each[0].device.vendor, model) for each in link_groups for model in (each[0].device.model, None)
    )
    ways = [_gather(count, host, _of(link_groups, vendor, model)) for vendor, model in kinds]
    found = [way for way in ways if way is not None]
    return min(found, key=lambda choice: choice.score) if found else None


def _of(link_groups: list[list[DeviceSlot]], vendor: str, model: str | None) -> list[list[DeviceSlot]]:
    return [each for each in link_groups
            if each[0].device.vendor == vendor and model in {None, each[0].device.model}]  # fmt: skip


def _gather(count: int, host: HostCalendar, link_groups: list[list[DeviceSlot]]) -> Selection | None:
    taken: list[DeviceSlot] = []
    used = 0
    for link_group in sorted(link_groups, key=len, reverse=True):
        if len(taken) == count:
            break
        taken += link_group[: count - len(taken)]
        used += 1
    if len(taken) < count:
        return None
    mixed = len({slot.device.model for slot in taken}) > 1
    most = max(slot.device.memory_bytes for slot in taken)
    score = (used + 1000 * mixed, most, taken[0].device.capability, False, 0, host.number)
    return Selection(score, host, tuple(slot.device.uuid for slot in sorted(taken, key=_number)))


def _near(link_group: list[DeviceSlot], count: int) -> tuple[str, ...]:
    """Return devices of an island, on one NUMA node if there are enough on one."""
    if len(link_group) == count:
        return tuple(slot.device.uuid for slot in link_group)
    ordered = sorted(link_group, key=lambda slot: (slot.device.numa, slot.number))
    nodes = [list(node) for _, node in groupby(ordered, key=lambda slot: slot.device.numa)]
    nodes.sort(key=lambda node: (len(node) < count, len(node) if len(node) >= count else -len(node)))
    near = [slot for node in nodes for slot in node][:count]
    return tuple(slot.device.uuid for slot in sorted(near, key=_number))


def _number(slot: DeviceSlot) -> int:
    return slot.number
