"""Requests, times and devices as text, for pending reasons and refusals."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from runner.base.readable import readable_count, readable_size
from runner.core.scheduler.placement import RequestClass
from runner.core.scheduler.snapshot import (
    DeviceKind,
    DeviceState,
    EstimateSource,
    ResourceRequest,
    SchedulableDevice,
    Snapshot,
)

SHOWN = 3
"""Most devices out of service that a reason names."""

NAMED = 3
"""Most jobs that a reason names, if there are more."""

FIRST_S, LAST_S = (datetime(*day, tzinfo=UTC).timestamp() for day in ((1000, 1, 1), (9999, 12, 31)))
"""The first and the last time that are formatted; the year has four digits."""

BRANDS = {"nvidia": "NVIDIA", "amd": "AMD"}
"""Display names of vendors."""


def format_time(at_s: float, snapshot: Snapshot) -> str:
    """Return a time of day, with the date unless it is today.

    A time outside of the calendar is given as the first or the last time: formatting does not fail.
    """
    at, now = (_to_the_minute(each + snapshot.utc_offset_s) for each in (at_s, snapshot.now_s))
    return at[11:] if at[:10] == now[:10] else at


def _to_the_minute(at_s: float) -> str:
    """Return a time within the calendar as ``2030-01-31 18:00``."""
    at = datetime.fromtimestamp(min(max(at_s, FIRST_S), LAST_S) // 1, UTC)
    return at.isoformat(" ", "minutes")[:16]


ESTIMATED_BY: Final[Mapping[EstimateSource, str]] = {
    EstimateSource.TIME_LIMIT: "by its time limit",
    EstimateSource.PROGRESS: "by its steps so far",
    EstimateSource.MATRIX: "by earlier jobs of its matrix",
    EstimateSource.SCHEDULE: "by earlier jobs of its schedule",
    EstimateSource.NAME: "by earlier jobs of its name",
}
"""Sources of an expected end, in words."""


def format_zone(snapshot: Snapshot) -> str:
    """Return the offset of the site's clock from UTC: ``UTC+1``, ``UTC-03:30``."""
    hours, minutes = divmod(round(abs(snapshot.utc_offset_s) / 60), 60)
    sign = "-" if snapshot.utc_offset_s < 0 else "+"
    ahead = f"{hours:02d}:{minutes:02d}" if minutes else f"{hours}"
    return f"UTC{sign}{ahead}" if hours or minutes else "UTC"


def format_job_ids(ids: Sequence[str]) -> str:
    """Return job ids as text, shortened if there are many: ``jobs 2, 3, 4 and 96 others``."""
    if len(ids) == 1:
        return f"job {ids[0]}"
    if len(ids) <= NAMED + 1:  # "and 1 others" would be no shorter than its id
        return f"jobs {', '.join(ids[:-1])} and {ids[-1]}"
    return f"jobs {', '.join(ids[:NAMED])} and {len(ids) - NAMED} others"


def format_cpus(count: float) -> str:
    """Return a number of CPUs as text: ``1 cpu``, ``1.5 cpus``."""
    return f"{count:g} cpu{'' if count == 1 else 's'}"


def describe_request(request: ResourceRequest) -> str:
    """Return a request as text: ``2 linked GPUs with >= 40 GiB``, or CPUs and memory if it has no GPUs."""
    if not request.gpus:
        return f"{format_cpus(request.cpus)} and {readable_size(request.memory_bytes)} of memory"
    nouns = {DeviceKind.WHOLE: "GPU", DeviceKind.SLICE: "GPU slice", DeviceKind.SHARED: "shared GPU"}
    linked = "linked " if request.linked and request.gpus > 1 else ""
    brand = "" if request.models or not request.vendor else f"{BRANDS.get(request.vendor, request.vendor)} "
    noun = f"{linked}{brand}{nouns[request.kind]}"
    return f"{readable_count(request.gpus, noun)}{''.join(_conditions(request))}"


def _conditions(request: ResourceRequest) -> Iterator[str]:
    if request.models:
        yield f" ({' or '.join(request.models)})"
    if request.device_bytes:
        yield f" with {readable_size(request.device_bytes)} left" if request.kind is DeviceKind.SHARED else (
            f" with >= {readable_size(request.device_bytes)}")  # fmt: skip
    if request.capability > (0, 0):
        yield " of capability >= {}.{}".format(*request.capability)


def describe_out_of_service(devices: Iterable[SchedulableDevice]) -> Iterator[str]:
    """Yield the reasons why devices are out of service: the first few by name, the others as a count."""
    closed = [device for device in devices if device.state not in {DeviceState.FREE, DeviceState.ALLOCATED}]
    for device in closed[:SHOWN]:
        if device.state is DeviceState.FOREIGN:
            yield f"{device.name} used by {device.reason or 'a foreign process'}"
        else:
            yield f"{device.name} {device.state}{f' ({device.reason})' if device.reason else ''}"
    if len(closed) > SHOWN:
        yield f"{len(closed) - SHOWN} more out of service"


def describe_shortage(
    request_class: RequestClass, cpus: int, memory_bytes: int, holders: Sequence[str]
) -> Iterator[str]:
    """Yield the CPUs or memory that are short, given the most that one host has free, and who holds them."""
    held = f" (held by {format_job_ids(holders)})" if holders else ""
    if request_class.millicpus > cpus:
        yield f"{format_cpus(request_class.request.cpus)} wanted and {cpus / 1000:g} free{held}"
        held = ""
    if request_class.request.memory_bytes > memory_bytes:
        wanted = readable_size(request_class.request.memory_bytes)
        yield f"{wanted} of memory wanted and {readable_size(memory_bytes)} free{held}"
