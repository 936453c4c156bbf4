"""Needs, times and devices in words: what a reason is made of."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

from runner.core.policy.wording import span as span_of
from runner.core.queue.pool import Shape
from runner.core.queue.snapshot import GIB, Device, DeviceState, Kind, Needs, Snapshot

SHOWN = 3
"""Devices out of service that a reason names one by one."""

FIRST_S, LAST_S = (datetime(*day, tzinfo=UTC).timestamp() for day in ((1000, 1, 1), (9999, 12, 31)))
"""What can be told as a date with four digits."""

BRANDS = {"nvidia": "NVIDIA", "amd": "AMD"}
"""Vendors as they write themselves."""


def clock(at_s: float, snapshot: Snapshot) -> str:
    """Return a time of day, with the date when that is another one than now.

    A time that no calendar has is told as the first or the last that it has: words must not fail.
    """
    at, now = (
        datetime.fromtimestamp(min(max(each + snapshot.utc_offset_s, FIRST_S), LAST_S), UTC)
        for each in (at_s, snapshot.now_s)
    )
    return f"{at:%H:%M}" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M}"


def span(seconds: float) -> str:
    return span_of(timedelta(seconds=seconds))


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def gib(amount: int) -> str:
    return f"{amount / GIB:.4g} GiB"


def wanted(needs: Needs) -> str:
    """Return needs in words: ``2 linked GPUs with >= 40 GiB``; of a job without GPUs, the rest."""
    if not needs.gpus:
        return f"{needs.cpus:g} cpus and {gib(needs.memory_bytes)} of memory"
    nouns = {Kind.WHOLE: "GPU", Kind.SLICE: "GPU slice", Kind.SHARED: "shared GPU"}
    linked = "linked " if needs.linked and needs.gpus > 1 else ""
    brand = "" if needs.models or not needs.vendor else f"{BRANDS.get(needs.vendor, needs.vendor)} "
    noun = f"{linked}{brand}{nouns[needs.kind]}"
    return f"{counted(needs.gpus, noun)}{''.join(_conditions(needs))}"


def _conditions(needs: Needs) -> Iterator[str]:
    if needs.models:
        yield f" ({' or '.join(needs.models)})"
    if needs.device_bytes:
        yield f" with {gib(needs.device_bytes)} left" if needs.kind is Kind.SHARED else (
            f" with >= {gib(needs.device_bytes)}")  # fmt: skip
    if needs.capability > (0, 0):
        yield " of capability >= {}.{}".format(*needs.capability)


def out_of_service(devices: Iterable[Device]) -> Iterator[str]:
    """Yield what keeps devices from being lent, a few by name and the others as a number."""
    closed = [device for device in devices if device.state not in {DeviceState.FREE, DeviceState.LENT}]
    for device in closed[:SHOWN]:
        if device.state is DeviceState.FOREIGN:
            yield f"{device.name} used by {device.reason or 'a foreign process'}"
        else:
            yield f"{device.name} {device.state}{f' ({device.reason})' if device.reason else ''}"
    if len(closed) > SHOWN:
        yield f"{len(closed) - SHOWN} more out of service"


def scarce(shape: Shape, cpus: int, memory_bytes: int) -> Iterator[str]:
    """Yield which of a host's own resources do not suffice, given the most that one host has free."""
    if shape.millicpus > cpus:
        yield f"{shape.needs.cpus:g} cpus wanted and {cpus / 1000:g} free"
    if shape.needs.memory_bytes > memory_bytes:
        yield f"{gib(shape.needs.memory_bytes)} of memory wanted and {gib(memory_bytes)} free"
