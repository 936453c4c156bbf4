"""The devices of this machine as the scheduler and people see them: live, and never waited for.

Drivers are asked on threads of their own (``adapters.device_health``), and whose processes are is
found out on another one here, for that may ask the engine.  The loop reads what those have left
behind, and is woken when something has changed.  What must outlive the daemon is written by the
loop alone, in ``tick``.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from threading import Lock
from typing import Final

import structlog

from runner.base.errors import Refused, Unavailable, UsageError
from runner.base.threads import PeriodicThread
from runner.control.context import Instant
from runner.control.inventory_types import (
    AdminMarks,
    DeviceView,
    HealthMonitor,
    InventoryRules,
    LoadSample,
    ProcessOwners,
    count_states,
    device_views,
    holders_of,
)
from runner.core.devices import state as core
from runner.core.devices.state import (
    AdminMark,
    DeviceNow,
    DeviceStatus,
    ProcessOnDevice,
    Reading,
    Remembered,
    StatusInput,
    next_status,
)
from runner.core.ports.clock import Clock
from runner.core.ports.devices import Device, Health
from runner.core.ports.store import JobRow
from runner.core.scheduler import snapshot
from runner.core.scheduler.snapshot import DeviceState

ALARM: Final = "alarm"
"""What the store calls a line about an intruder."""

DAEMON: Final = "runner"
"""Who says what the daemon says about a device by itself."""

TURN_S: Final = 0.2
"""For how long a picture holds if nobody has looked and nothing was lent or given back."""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Inventory:
    """Satisfies ``runner.core.ports.devices.Vitals``, and makes the scheduler's picture of the devices."""

    watch: HealthMonitor
    whose: ProcessOwners
    words: AdminMarks
    clock: Clock
    rules: InventoryRules = field(default_factory=InventoryRules)
    watched: bool = True  # False: nobody looks, and every device is as good as clean
    changed: Callable[[], None] = lambda: None  # called from another thread: let the loop look again
    _lock: Lock = field(default_factory=Lock)
    _said: dict[str, AdminMark] = field(default_factory=dict)
    _unsaid: dict[str, AdminMark] = field(
        default_factory=dict
    )  # said by the daemon, and not in the store yet
    _kept: dict[str, Remembered] = field(default_factory=dict)  # what of the standings is in the store
    _alarms: list[tuple[str, str]] = field(default_factory=list)  # job and text, not in the store yet
    _alarmed: set[tuple[str, str, int]] = field(default_factory=set)  # job, device, pid
    _lent: dict[str, frozenset[str]] = field(default_factory=dict)
    _ticked: dict[str, frozenset[str]] = field(default_factory=dict)  # the same, from the jobs themselves
    _looks: dict[str, Reading] = field(default_factory=dict)
    _standings: dict[str, DeviceStatus] = field(default_factory=dict)
    _devices: dict[str, Device] = field(default_factory=dict)
    _labels: dict[str, str] = field(default_factory=dict)
    _intruded: dict[str, tuple[ProcessOnDevice, ...]] = field(default_factory=dict)
    _pictures: tuple[snapshot.SchedulableDevice, ...] = ()
    _stepped: float = float("-inf")
    thread: PeriodicThread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = PeriodicThread("inventory", self.rules.care.max_reading_age_s, self.take_in)
        self._said, self._kept = dict(self.words.all()), dict(self.words.kept())
        self._step()

    # --- on a thread of its own

    def take_in(self) -> None:
        """Take in the last looks, and wake the loop if something is otherwise than before."""
        samples = self.watch.last()
        whose = self._whose(sample.health for sample in samples.values())
        looks = {uuid: self._look(sample, whose) for uuid, sample in samples.items()}
        with self._lock:
            self._looks |= {uuid: look for uuid, look in looks.items() if look is not None}
            before = self._gist()
            self._step()
            news = before != self._gist() or self._alarms or self._unsaid
        if news:
            self.changed()

    def _whose(self, healths: Iterable[Health]) -> Mapping[int, ProcessOnDevice]:
        """Return whose all processes are; asked for together, for what is not asked for is forgotten."""
        processes = [process for health in healths for process in health.processes or ()]
        return self.whose.of(processes) if processes else {}

    def _look(self, sample: LoadSample, whose: Mapping[int, ProcessOnDevice]) -> Reading | None:
        """Return what a look found, with whose the processes are; None if the driver said nothing at all."""
        health = sample.health
        if health.lost is None:
            return None
        occupants, used = self._occupants(health, whose), health.used_bytes
        if occupants is not None and used is not None:
            known = {each.pid: each.used_bytes or 0 for each in health.processes or ()}
            used = max(used - sum(known.values()) + sum(known[each.pid] for each in occupants), 0)
        return Reading(
            at=sample.at,
            lost=health.lost,
            unusable=health.unusable,
            recovery=health.recovery,
            used_bytes=used,
            processes=occupants,
        )

    def _occupants(
        self, health: Health, whose: Mapping[int, ProcessOnDevice]
    ) -> tuple[ProcessOnDevice, ...] | None:
        if health.processes is None:
            return None
        found = ((replace(whose[p.pid], used_bytes=p.used_bytes), p.draws) for p in health.processes)
        hosts = self.rules.host_programs
        return tuple(each for each, draws in found if each.job or not (draws or each.program in hosts))

    def _gist(self) -> dict[str, tuple[DeviceState, str]]:
        return {uuid: (each.state, each.reason) for uuid, each in self._standings.items()}

    # --- with the lock

    def _step(self) -> None:
        """Bring every device up to this moment."""
        present = {device.uuid: device for device in self.watch.devices}
        missed = {uuid: d for uuid, d in self._devices.items() if uuid not in present and uuid in self._lent}
        self._labels = core.assign_labels(self._labels, count_states(present.values()))
        self._devices = {
            uuid: self.rules.lent_as(replace(device, label=self._labels[uuid]))
            for uuid, device in (present | missed).items()
        }
        now = DeviceNow(self.clock.now(), self.clock.monotonic())
        self._standings = {uuid: self._stand(uuid, now, missed=uuid in missed) for uuid in self._devices}
        self._intruded = {
            uuid: core.foreign_processes(standing, self._fresh(uuid, now.monotonic))
            for uuid, standing in self._standings.items()
        }
        self._raise_alarms()
        self._pictures = tuple(device_views(d, self._standings[uuid]) for uuid, d in self._devices.items())
        self._stepped = now.monotonic

    def _fresh(self, uuid: str, monotonic: float) -> Reading | None:
        look = self._looks.get(uuid)
        return look if look and monotonic - look.at <= self.rules.care.max_reading_age_s else None

    def _stand(self, uuid: str, now: DeviceNow, *, missed: bool) -> DeviceStatus:
        device, look = self._devices[uuid], self._looks.get(uuid)
        if missed:
            look = Reading(now.monotonic, lost=True)
        elif look is not None:
            used = None if device.unified else look.used_bytes  # the host's own memory proves nothing
            look = replace(look, used_bytes=used, total_bytes=device.memory_bytes)
        holders = self._lent.get(uuid, frozenset())
        word = self._said.get(uuid)
        care, before = self.rules.care, self._standings.get(uuid)
        if before is None and uuid in self._kept:
            before = core.restore_status(self._kept[uuid], now, care)
        standing = next_status(StatusInput(before, look, holders, word, now, care, self.watched))
        if standing.state is DeviceState.QUARANTINED and word is None:
            self._said[uuid] = self._unsaid[uuid] = AdminMark(
                standing.state, standing.reason, DAEMON, standing.since
            )
            log.warning("devices.quarantined", device=uuid, why=standing.reason)
        return standing

    def _raise_alarms(self) -> None:
        """Say once of every process that is on a device and not its holder's."""
        current = set()
        for uuid, found in self._intruded.items():
            for job in self._standings[uuid].holders if found else ():
                for each in found:
                    current.add((job, uuid, each.pid))
                    if (job, uuid, each.pid) not in self._alarmed:
                        text = f"{self._labels[uuid]} is also used by {each}"
                        self._alarms.append((job, text))
                        log.warning("devices.intruder", device=uuid, job_id=job, pid=each.pid)
        self._alarmed = current

    # --- with the turn

    def schedulable(self, lent: Mapping[str, str]) -> tuple[snapshot.SchedulableDevice, ...]:
        """Return the devices as the scheduler sees them, given who holds what.

        ``lent`` is job ids by UUID; of a shared device one may do, for ``tick`` knows the others.
        """
        held = {uuid: frozenset(jobs.split(",")) for uuid, jobs in lent.items()}
        with self._lock:
            shared = {uuid for uuid in held if uuid in self._devices and self._devices[uuid].kind == "shared"}
            held |= {uuid: held[uuid] | self._ticked.get(uuid, frozenset()) for uuid in shared}
            given_back = any(self._lent[uuid] - held.get(uuid, frozenset()) for uuid in self._lent)
            if held != self._lent or self.clock.monotonic() - self._stepped > TURN_S:
                self._lent = held
                self._step()
            pictures = self._pictures
        if given_back:
            self.watch.hint()  # so that it is clean again, or not, at once
        return pictures

    def tick(self, now: Instant, rows: Iterable[JobRow]) -> None:
        """Take in who holds what, write down what must outlive the daemon, and what jobs must hear of.

        What cannot be written, because the disk is full, is written the next time.
        """
        lent = holders_of(rows) if self._devices else {}  # no host without devices pays for its queue
        self._ticked = {uuid: frozenset(jobs.split(",")) for uuid, jobs in lent.items()}
        self.schedulable(lent)
        try:
            for uuid, word in list(self._unsaid.items()):
                self.words.say(uuid, word)
                with self._lock:
                    self._unsaid.pop(uuid, None)
            self._keep(now.monotonic)
            while self._alarms:
                self._note(now.at)
        except Unavailable as error:
            log.warning("inventory.cannot_record", problem=str(error))

    def _keep(self, monotonic: float) -> None:
        """Write down what has been found out about devices and is not in the store yet."""
        with self._lock:
            all_ = {uuid: core.remember_status(each, monotonic) for uuid, each in self._standings.items()}
        news = {uuid: each for uuid, each in all_.items() if each != self._kept.get(uuid, Remembered())}
        if news:
            self.words.keep(news)
            with self._lock:
                self._kept |= news

    def _note(self, at: datetime) -> None:
        """Write the oldest alarm down; one that cannot be written for any other reason than room is lost."""
        with self._lock:
            job, text = self._alarms.pop(0)
        try:
            self.words.note(job, at, ALARM, text)
        except Unavailable:
            with self._lock:
                self._alarms.insert(0, (job, text))
            raise

    def drain(self, reference: str, reason: str, by: str) -> DeviceView:
        """Lend a device no more; who has it keeps it.

        Raises:
            UsageError: there is none of that name.
        """
        uuid = self.find(reference)
        word = AdminMark(DeviceState.DRAINED, reason, by, self.clock.now())
        self.words.say(uuid, word)
        return self._after(uuid, word)

    def resume(self, reference: str, by: str) -> DeviceView:
        """Take back what was said about a device: a person has looked, and what is on it now is normal.

        Raises:
            UsageError: there is none of that name.
            Refused: it is in service.
        """
        uuid = self.find(reference)
        state = self._standings[uuid].state
        if uuid not in self._said and state is not DeviceState.DIRTY:
            raise Refused(f"{reference}: is {state}; there is nothing to resume it from")
        self.words.take_back(uuid)
        log.info("devices.resumed", device=uuid, by=by)
        return self._after(uuid, None)

    def _after(self, uuid: str, word: AdminMark | None) -> DeviceView:
        """Return a device after something was said about it or taken back."""
        with self._lock:
            self._unsaid.pop(uuid, None)
            if word is not None:
                self._said[uuid] = word
            else:
                self._said.pop(uuid, None)
                standing, look = self._standings[uuid], self._looks.get(uuid)
                self._standings[uuid] = core.clear_status(standing, look, self.clock.monotonic())
            self._step()
        return next(each for each in self.shown() if each.device.uuid == uuid)

    # --- from any thread

    def find(self, reference: str) -> str:
        """Return the UUID of a device by its UUID, the unambiguous beginning of one, or its name.

        Raises:
            UsageError: there is none, or there are several.
        """
        devices = self._devices
        named = [uuid for uuid, device in devices.items() if reference in {uuid, device.label}]
        begun = named or [uuid for uuid in devices if reference and uuid.startswith(reference)]
        if len(begun) == 1:
            return begun[0]
        there = ", ".join(device.label for device in devices.values()) or "none"
        fact = "names several devices" if begun else "there is no such device"
        raise UsageError(f"{reference}: {fact}; there are {there}; see runner gpus")

    def present(self) -> tuple[Device, ...]:
        """Return the devices there are now."""
        return tuple(self._devices.values())

    def shown(self) -> tuple[DeviceView, ...]:
        """Return all that is known of every device."""
        samples = self.watch.last()
        with self._lock:
            return tuple(
                DeviceView(
                    device,
                    self._standings[uuid],
                    samples[uuid].health if uuid in samples else Health(),
                    look.processes if (look := self._looks.get(uuid)) else None,
                )
                for uuid, device in self._devices.items()
            )

    def facts(self, devices: tuple[str, ...], since: datetime | None) -> Mapping[str, object]:
        """Return the ``device.*`` facts of some devices since a moment; what is not known is left out."""
        known = dict(self.watch.facts(devices, since))
        with self._lock:
            looks = [self._fresh(uuid, self.clock.monotonic()) for uuid in devices]
            others = any(self._intruded.get(uuid) for uuid in devices)
        if others or (devices and all(look and look.owners_known for look in looks)):
            known["device.intruder"] = others
        return known

    def unfit(self) -> Mapping[str, str]:
        """Return the devices that must not be lent, each with the reason."""
        fine = {DeviceState.FREE, DeviceState.ALLOCATED}
        with self._lock:
            return {
                uuid: each.reason or str(each.state)
                for uuid, each in self._standings.items()
                if each.state not in fine
            }
