"""How the devices have been lately: looked at on threads that nobody waits for.

A driver that has lost a device may answer late, or never again, and takes the thread with it that
has asked.  So each vendor has a thread of its own; whoever wants to know reads what it has left
behind.  What is too old is unknown, and the unknown neither kills nor withholds anything.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from threading import Event as Flag
from typing import Final

import structlog

from runner.adapters.gpu.xid import LOST, RECOVERY, KernelLog, Xid
from runner.base.threads import PeriodicThread
from runner.core.ports.clock import Clock
from runner.core.ports.devices import Device, DeviceHealth, DeviceProbe, Health

WINDOW_S: Final = 600.0
"""How far back utilisation is remembered: rules ask about minutes."""

STALE_LOOKS: Final = 5
"""Looks that may fail to come before what is known is too old to be true."""

COUNT_EVERY_S: Final = 30.0
"""How often devices are counted again, besides whenever one has gone."""

MOST_XIDS: Final = 100
"""A device that reports more is not better known for it."""

ORDER: Final = ("node_reboot", "drain_and_reset", "gpu_reset", "drain_p2p", "none")
"""Recovery actions, from the one that means most."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at one device, and when (monotonic seconds)."""

    at: float
    health: Health


@dataclass(frozen=True, slots=True)
class _Past:
    """What is remembered of one device."""

    samples: tuple[Sample, ...] = ()
    bus: str | None = None  # also when the device no longer says so
    reported: tuple[Xid, ...] = ()  # by the driver's own events
    heard_since: float | None = None  # when somebody began to listen to those

    @property
    def last(self) -> Health:
        return self.samples[-1].health

    def after(self, sample: Sample) -> "_Past":
        kept = (*self.samples, sample)
        while len(kept) > 1 and kept[1].at <= sample.at - WINDOW_S:
            kept = kept[1:]
        bus, codes = sample.health.bus or self.bus, sample.health.xids
        fresh = tuple(Xid(sample.at, bus or "", code) for code in codes or ())
        since = None if codes is None else self.heard_since or sample.at
        return _Past(kept, bus, (*self.reported, *fresh)[-MOST_XIDS:], since)


@dataclass(slots=True)
class DeviceHealthMonitor:
    """Satisfies ``runner.core.ports.devices.Vitals``."""

    devices: tuple[Device, ...]  # as far as they are known at first
    probes: Mapping[str, DeviceHealth]  # by vendor
    clock: Clock
    kernel_log: KernelLog
    every_s: float = 2.0
    counts: Mapping[str, DeviceProbe] = field(default_factory=dict)  # by vendor; none: nothing comes or goes
    looked: Callable[[], None] = lambda: None  # called after each look, on the thread that looked
    _past: dict[str, _Past] = field(default_factory=dict)
    _xids: tuple[Xid, ...] | None = None
    _threads: dict[str, PeriodicThread] = field(default_factory=dict)  # by vendor
    _found: dict[str, tuple[Device, ...]] = field(default_factory=dict)
    _counted: dict[str, float] = field(default_factory=dict)
    _first: dict[str, Flag] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for vendor in sorted({device.vendor for device in self.devices} | self.counts.keys()):
            self._threads[vendor] = PeriodicThread(
                f"devices-{vendor}",
                partial(self._period_s, vendor),
                partial(self.look, vendor),
                begin_at_once=True,
            )
            self._first[vendor] = Flag()
            self._found[vendor] = tuple(d for d in self.devices if d.vendor == vendor)

    # --- looking, on threads of their own

    def start(self) -> None:
        """Begin to look; a machine that can have no devices is not looked at."""
        for vendor in sorted(self._found.keys() & self.probes.keys()):
            self._threads[vendor].start()

    def stop(self) -> None:
        """Look no more; a thread that the driver holds is left to it."""
        for thread in self._threads.values():
            thread.stop()

    def hint(self) -> None:
        """Let the next look come at once."""
        for thread in self._threads.values():
            thread.wake()

    def await_first(self, patience_s: float) -> bool:
        """Return whether every driver has been looked at once within a while; one may never answer."""
        until = self.clock.monotonic() + patience_s
        return all(flag.wait(max(until - self.clock.monotonic(), 0.0)) for flag in self._first.values())

    def _period_s(self, vendor: str) -> float:
        return self.every_s if self._found[vendor] else COUNT_EVERY_S

    def look(self, vendor: str) -> None:
        """Look at the devices of one vendor once, and remember it."""
        now = self.clock.monotonic()
        if vendor in self.counts and now - self._counted.get(vendor, now - COUNT_EVERY_S) >= COUNT_EVERY_S:
            self._count(vendor)
        if self._found[vendor]:
            self._examine(vendor)
        self._first[vendor].set()
        self.looked()

    def _examine(self, vendor: str) -> None:
        if vendor == "nvidia":
            self._xids = self.kernel_log.xids()
        began = self.clock.monotonic()  # what happens during a look may have escaped it
        found, before = self.probes[vendor].look(self._found[vendor]), self.unfit()
        if vendor in self.counts and any(each.lost and uuid not in before for uuid, each in found.items()):
            self._count(vendor)  # before anybody hears of it: a slice that was taken apart is not lost
        for device in self._found[vendor]:
            health = found.get(device.uuid)
            if health is not None:
                self._past[device.uuid] = self._past.get(device.uuid, _Past()).after(Sample(began, health))
        for uuid, why in self.unfit().items():
            if uuid not in before:
                log.warning("devices.unfit", device=uuid, why=why)

    def _count(self, vendor: str) -> None:
        """Notice what has come, what has gone, and what is divided otherwise than before."""
        known = self._found[vendor]
        self._found[vendor] = merged(known, self.counts[vendor].devices())
        self._counted[vendor] = self.clock.monotonic()
        self.devices = tuple(
            device for each in sorted(self._found, reverse=True) for device in self._found[each]
        )
        there, were = ({device.uuid for device in each} for each in (self._found[vendor], known))
        if there != were:
            log.info("devices.changed", came=sorted(there - were), went=sorted(were - there))

    # --- what others want to know

    def facts(self, devices: tuple[str, ...], since: datetime | None) -> Mapping[str, object]:
        """Return the ``device.*`` facts of some devices since a moment; what is not known is left out."""
        if not devices:
            return {}
        began = self._monotonic(since)
        pasts = [self._lately(uuid, began) for uuid in devices]
        codes = [self._codes(uuid, began) for uuid in devices]
        known = {
            "device.lost": _lost(zip(pasts, codes, strict=True)),
            "device.recovery": _recovery(zip(pasts, codes, strict=True)),
            "device.xid": _all_codes(codes),
            **_load(pasts),
        }
        return {name: value for name, value in known.items() if value is not None}

    def last(self) -> Mapping[str, Sample]:
        """Return the last look at each device, however old; also those that have gone since."""
        return {uuid: past.samples[-1] for uuid, past in self._past.copy().items()}

    def unfit(self) -> Mapping[str, str]:
        """Return the devices that must not be lent, each with the reason.

        Only what the driver says now counts: an old Xid says nothing about a device that was reset since.
        """
        return dict(self._unfit())

    def _unfit(self) -> Iterator[tuple[str, str]]:
        for device in self.devices:
            past = self._lately(device.uuid, 0.0)
            if past and past.last.lost:
                yield device.uuid, "it no longer answers"
            elif past and past.last.recovery not in {None, "none"}:
                yield device.uuid, f"its driver asks for {past.last.recovery}"

    def _lately(self, uuid: str, began: float) -> _Past | None:
        """Return what is remembered since a moment; None if the last look is too old to be true."""
        past = self._past.get(uuid)
        oldest = self.clock.monotonic() - STALE_LOOKS * self.every_s
        if past is None or past.samples[-1].at < oldest:
            return None
        kept = tuple(sample for sample in past.samples if sample.at > began)
        return replace(past, samples=kept or past.samples[-1:])

    def _codes(self, uuid: str, began: float) -> tuple[Xid, ...] | None:
        """Return the Xids of a device since a moment; None where nobody was listening."""
        past = self._past.get(uuid)
        if past is None or past.bus is None:
            return None
        if self._xids is not None:
            return tuple(xid for xid in self._xids if xid.bus == past.bus and xid.at >= began)
        if past.heard_since is None or past.heard_since > began:
            return None
        return tuple(xid for xid in past.reported if xid.at >= began)

    def _monotonic(self, since: datetime | None) -> float:
        if since is None:
            return 0.0
        return self.clock.monotonic() - (self.clock.now() - since).total_seconds()


def merged(known: tuple[Device, ...], found: tuple[Device, ...]) -> tuple[Device, ...]:
    """Return the devices there are after another count.

    One that is not counted any more is kept, for it has gone and must be missed, unless the GPU is there
    and is divided otherwise: then it does not exist any more.  Those that were joined to one that is missed
    still are: who waits for them waits for it to be mended, and is not told that there are none.
    """
    there = {device.uuid for device in found}
    whole = {device.parent or device.uuid for device in found}
    missed = [d for d in known if d.uuid not in there and (d.parent or d.uuid) not in whole]
    broken = {d.link_group for d in missed} - {None}
    joined = {d.uuid: d.link_group for d in known if d.link_group in broken}
    return (*(replace(d, link_group=joined.get(d.uuid, d.link_group)) for d in found), *missed)


_Known = tuple[_Past | None, tuple[Xid, ...] | None]


def _lost(known: Iterable[_Known]) -> bool | None:
    """Return whether one of them is lost; None if none is known to be, and not all are known."""
    each = [
        True if any(xid.code == LOST for xid in codes or ()) else past.last.lost if past else None
        for past, codes in known
    ]
    return True if True in each else None if None in each else False


def _recovery(known: Iterable[_Known]) -> str | None:
    """Return the most that any of them needs."""
    each = [_needed(past, codes) for past, codes in known]
    worst = next((word for word in ORDER if word in each), None)
    return None if worst == "none" and None in each else worst


def _needed(past: _Past | None, codes: tuple[Xid, ...] | None) -> str | None:
    if past and past.last.recovery is not None:
        return past.last.recovery
    said = [xid.recovery for xid in codes or () if xid.code == RECOVERY]
    return said[-1] if said else None


def _all_codes(codes: list[tuple[Xid, ...] | None]) -> tuple[int, ...] | None:
    known = [each for each in codes if each is not None]
    if len(known) < len(codes):
        return None
    return tuple(dict.fromkeys(xid.code for each in known for xid in each))


def _load(pasts: list[_Past | None]) -> dict[str, object]:
    """Return how busy the least busy one is, for how long that was looked at, and the fullest one."""
    known = [past for past in pasts if past]
    if len(known) < len(pasts):
        return {}
    load: dict[str, object] = {}
    memory = [past.last.memory for past in known if past.last.memory is not None]
    if len(memory) == len(known):
        load["device.memory"] = max(memory)
    busy = [[s for s in past.samples if s.health.util is not None] for past in known]
    if all(busy):
        load["device.util"] = min(sum(s.health.util or 0.0 for s in each) / len(each) for each in busy)
        load["device.window_s"] = min(each[-1].at - each[0].at for each in busy)
    return load
