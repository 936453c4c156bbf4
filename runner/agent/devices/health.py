"""Polls the health of the devices, and answers questions about the last minutes without blocking.

A driver that has lost a device may answer late or never, and blocks the thread that called it.  So each
vendor has a thread of its own, and readers use what it has stored.  A reading that is too old counts as
unknown, and what is unknown neither ends a job nor withholds a device.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from threading import Event as Flag
from typing import Final

import structlog

from runner.base.threads import PeriodicThread
from runner.core.devices.reading import Health, Sample
from runner.core.devices.xid import LOST, RECOVERY, Xid
from runner.core.ports.clock import Clock
from runner.core.ports.devices import Device, DeviceHealth, DeviceProbe

WINDOW_S: Final = 600.0
"""Time for which readings are kept; policy rules use windows of minutes."""

STALE_POLLS: Final = 5
"""Polls that may be missing before the last reading is too old."""

ENUMERATE_EVERY_S: Final = 30.0
"""Time between two enumerations of devices, in addition to each time that one is lost."""

MAX_XIDS: Final = 100
"""Error codes that are kept of one device."""

ORDER: Final = ("node_reboot", "drain_and_reset", "gpu_reset", "drain_p2p", "none")
"""Recovery actions, the most severe first."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _History:
    """The readings of one device."""

    samples: tuple[Sample, ...] = ()
    bus: str | None = None  # kept after the device no longer reports it
    reported: tuple[Xid, ...] = ()  # by events of the driver
    listening_since: float | None = None  # when the driver was first asked for those

    @property
    def last(self) -> Health:
        return self.samples[-1].health

    def after(self, sample: Sample) -> "_History":
        kept = (*self.samples, sample)
        while len(kept) > 1 and kept[1].at <= sample.at - WINDOW_S:
            kept = kept[1:]
        bus, codes = sample.health.bus or self.bus, sample.health.xids
        fresh = tuple(Xid(sample.at, bus or "", code) for code in codes or ())
        since = None if codes is None else self.listening_since or sample.at
        return _History(kept, bus, (*self.reported, *fresh)[-MAX_XIDS:], since)


@dataclass(slots=True)
class DeviceHealthMonitor:
    """Polls the drivers, one thread for each vendor; the answers to readers do not block."""

    devices: tuple[Device, ...]  # at first; updated by each enumeration
    probes: Mapping[str, DeviceHealth]  # by vendor
    clock: Clock
    kernel_xids: Callable[[], tuple[Xid, ...] | None]  # of the kernel's log; None: it cannot be read
    every_s: float = 2.0
    counts: Mapping[str, DeviceProbe] = field(
        default_factory=dict
    )  # by vendor; without one, the devices stay the same
    after_poll: Callable[[], None] = lambda: None  # called after each poll, on its thread
    _histories: dict[str, _History] = field(default_factory=dict)
    _xids: tuple[Xid, ...] | None = None
    _threads: dict[str, PeriodicThread] = field(default_factory=dict)  # by vendor
    _by_vendor: dict[str, tuple[Device, ...]] = field(default_factory=dict)
    _enumerated_at: dict[str, float] = field(default_factory=dict)
    _polled: dict[str, Flag] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for vendor in sorted({device.vendor for device in self.devices} | self.counts.keys()):
            self._threads[vendor] = PeriodicThread(
                f"devices-{vendor}",
                partial(self._period_s, vendor),
                partial(self.poll, vendor),
                begin_at_once=True,
            )
            self._polled[vendor] = Flag()
            self._by_vendor[vendor] = tuple(d for d in self.devices if d.vendor == vendor)

    # --- polling, on one thread for each vendor

    def start(self) -> None:
        """Start a thread for each vendor that the host can have devices of."""
        for vendor in sorted(self._by_vendor.keys() & self.probes.keys()):
            self._threads[vendor].start()

    def stop(self) -> None:
        """Stop polling; a thread that a driver blocks is abandoned."""
        for thread in self._threads.values():
            thread.stop()

    def hint(self) -> None:
        """Poll again at once."""
        for thread in self._threads.values():
            thread.wake()

    def await_first(self, patience_s: float) -> bool:
        """Wait until every driver was polled once; return whether that was in time."""
        until = self.clock.monotonic() + patience_s
        return all(flag.wait(max(until - self.clock.monotonic(), 0.0)) for flag in self._polled.values())

    def _period_s(self, vendor: str) -> float:
        return self.every_s if self._by_vendor[vendor] else ENUMERATE_EVERY_S

    def poll(self, vendor: str) -> None:
        """Read the devices of one vendor once, and store the readings."""
        now = self.clock.monotonic()
        if (
            vendor in self.counts
            and now - self._enumerated_at.get(vendor, now - ENUMERATE_EVERY_S) >= ENUMERATE_EVERY_S
        ):
            self._enumerate(vendor)
        if self._by_vendor[vendor]:
            self._read(vendor)
        self._polled[vendor].set()
        self.after_poll()

    def _read(self, vendor: str) -> None:
        if vendor == "nvidia":
            self._xids = self.kernel_xids()
        began = self.clock.monotonic()  # what happens during a reading may be missing from it
        found = self.probes[vendor].read(self._by_vendor[vendor])
        known = {uuid for uuid, each in self.last().items() if each.health.lost}
        if vendor in self.counts and any(each.lost and uuid not in known for uuid, each in found.items()):
            self._enumerate(vendor)  # first, because a MIG instance that was destroyed is not lost
        for device in self._by_vendor[vendor]:
            health = found.get(device.uuid)
            if health is not None:
                self._histories[device.uuid] = self._histories.get(device.uuid, _History()).after(
                    Sample(began, health)
                )

    def _enumerate(self, vendor: str) -> None:
        """Enumerate the devices of a vendor, and log which have appeared and disappeared."""
        known = self._by_vendor[vendor]
        self._by_vendor[vendor] = merge_devices(known, self.counts[vendor].devices())
        self._enumerated_at[vendor] = self.clock.monotonic()
        self.devices = tuple(
            device for each in sorted(self._by_vendor, reverse=True) for device in self._by_vendor[each]
        )
        now, before = ({device.uuid for device in each} for each in (self._by_vendor[vendor], known))
        if now != before:
            log.info("devices.changed", came=sorted(now - before), went=sorted(before - now))

    # --- answers, from any thread

    def facts(self, devices: tuple[str, ...], since: datetime | None) -> Mapping[str, object]:
        """Return the ``device.*`` facts of some devices since a time, without those that are unknown."""
        if not devices:
            return {}
        began = self._monotonic(since)
        histories = [self._recent(uuid, began) for uuid in devices]
        codes = [self._codes(uuid, began) for uuid in devices]
        known = {
            "device.lost": _lost(zip(histories, codes, strict=True)),
            "device.recovery": _recovery(zip(histories, codes, strict=True)),
            "device.xid": _all_codes(codes),
            **_load(histories),
        }
        return {name: value for name, value in known.items() if value is not None}

    def last(self) -> Mapping[str, Sample]:
        """Return the last reading of each device, however old, also of devices that have disappeared."""
        return {uuid: history.samples[-1] for uuid, history in self._histories.copy().items()}

    def _recent(self, uuid: str, began: float) -> _History | None:
        """Return the readings since a time; None if the last one is too old."""
        history = self._histories.get(uuid)
        oldest = self.clock.monotonic() - STALE_POLLS * self.every_s
        if history is None or history.samples[-1].at < oldest:
            return None
        kept = tuple(sample for sample in history.samples if sample.at > began)
        return replace(history, samples=kept or history.samples[-1:])

    def _codes(self, uuid: str, began: float) -> tuple[Xid, ...] | None:
        """Return the Xids of a device since a time; None if they were not recorded."""
        history = self._histories.get(uuid)
        if history is None or history.bus is None:
            return None
        if self._xids is not None:
            return tuple(xid for xid in self._xids if xid.bus == history.bus and xid.at >= began)
        if history.listening_since is None or history.listening_since > began:
            return None
        return tuple(xid for xid in history.reported if xid.at >= began)

    def _monotonic(self, since: datetime | None) -> float:
        if since is None:
            return 0.0
        return self.clock.monotonic() - (self.clock.now() - since).total_seconds()


def merge_devices(known: tuple[Device, ...], found: tuple[Device, ...]) -> tuple[Device, ...]:
    """Return the devices after another enumeration.

    A known device that is missing is kept, so that it is reported as lost.  A MIG instance is dropped if its
    GPU is there: the GPU was partitioned anew.  Devices keep their link group while one of its members is
    missing, so a job that needs the group waits for the repair instead of being refused.
    """
    present = {device.uuid for device in found}
    gpus = {device.parent or device.uuid for device in found}
    missing = [d for d in known if d.uuid not in present and (d.parent or d.uuid) not in gpus]
    broken = {d.link_group for d in missing} - {None}
    linked = {d.uuid: d.link_group for d in known if d.link_group in broken}
    return (*(replace(d, link_group=linked.get(d.uuid, d.link_group)) for d in found), *missing)


_Known = tuple[_History | None, tuple[Xid, ...] | None]


def _lost(known: Iterable[_Known]) -> bool | None:
    """Return True if a device is lost; None if none is known to be lost, and not all are known."""
    each = [
        True if any(xid.code == LOST for xid in codes or ()) else history.last.lost if history else None
        for history, codes in known
    ]
    return True if True in each else None if None in each else False


def _recovery(known: Iterable[_Known]) -> str | None:
    """Return the most severe recovery action that a device needs."""
    each = [_recovery_of(history, codes) for history, codes in known]
    worst = next((action for action in ORDER if action in each), None)
    return None if worst == "none" and None in each else worst


def _recovery_of(history: _History | None, codes: tuple[Xid, ...] | None) -> str | None:
    if history and history.last.recovery is not None:
        return history.last.recovery
    reported = [xid.recovery for xid in codes or () if xid.code == RECOVERY]
    return reported[-1] if reported else None


def _all_codes(codes: list[tuple[Xid, ...] | None]) -> tuple[int, ...] | None:
    known = [each for each in codes if each is not None]
    if len(known) < len(codes):
        return None
    return tuple(dict.fromkeys(xid.code for each in known for xid in each))


def _load(histories: list[_History | None]) -> dict[str, object]:
    """Return the lowest and the highest utilisation, their window, and the highest memory share."""
    known = [history for history in histories if history]
    if len(known) < len(histories):
        return {}
    load: dict[str, object] = {}
    memory = [history.last.memory for history in known if history.last.memory is not None]
    if len(memory) == len(known):
        load["device.memory"] = max(memory)
    busy = [[s for s in history.samples if s.health.util is not None] for history in known]
    if all(busy):
        means = [sum(s.health.util or 0.0 for s in each) / len(each) for each in busy]
        load["device.util"], load["device.busiest"] = min(means), max(means)
        load["device.window_s"] = min(each[-1].at - each[0].at for each in busy)
    return load
