"""The live inventory of devices: their status for the scheduler and for people; nothing here blocks the loop.

Drivers are asked on threads of their own, in ``health``.  The owners of processes are found out on one more
thread here, because that may ask the engine.  The loop reads the latest results, and is woken when a status
has changed.  What must outlive the daemon is written by the loop alone, in ``tick``.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from threading import Lock
from typing import Final

import structlog

from runner.agent.devices.health import DeviceHealthMonitor
from runner.agent.devices.inventory_types import (
    AdminMarks,
    DeviceView,
    InventoryRules,
    ProcessOwners,
    device_labels,
    device_views,
    holders_of,
)
from runner.base.errors import Refused, Unavailable, UsageError
from runner.base.instant import Instant
from runner.base.readable import readable_duration
from runner.base.threads import PeriodicThread
from runner.core.devices import state as core
from runner.core.devices.defects import find_defects
from runner.core.devices.reading import Health, ProcessOnDevice, Sample
from runner.core.devices.state import AdminMark, DeviceStatus, Remembered, StatusInput, next_status
from runner.core.ports.clock import Clock
from runner.core.ports.devices import Device
from runner.core.ports.store import JobRow
from runner.core.scheduler import snapshot
from runner.core.scheduler.snapshot import DeviceState

ALARM: Final = "alarm"
"""The kind of event that tells of a foreign process."""

DAEMON: Final = "runner"
"""The author of the marks that the daemon sets by itself."""

MAX_AGE_S: Final = 0.2
"""Time for which the statuses hold if there is no new reading and no allocation has changed."""

FAULT_S: Final = 30.0
"""After this a device that could not be given to a container is allocated once more."""

LONGEST_FAULT_S: Final = 600.0
"""The same after many failures in a row; each doubles the time."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _LaunchFault:
    """A device that could not be given to a container."""

    mark: AdminMark
    until_s: float  # monotonic
    times: int


@dataclass(slots=True)
class Inventory:
    """The devices of this host; satisfies ``runner.agent.interface.Devices``."""

    monitor: DeviceHealthMonitor
    process_owners: ProcessOwners
    marks: AdminMarks
    clock: Clock
    rules: InventoryRules = field(default_factory=InventoryRules)
    watched: bool = True  # False: there are no readings, and every device counts as clean
    changed: Callable[[], None] = lambda: None  # called from another thread: wakes the loop
    _lock: Lock = field(default_factory=Lock)
    _device_marks: dict[str, AdminMark] = field(default_factory=dict)
    _unrecorded_marks: dict[str, AdminMark] = field(
        default_factory=dict
    )  # set by the daemon, and not in the store yet
    _faults: dict[str, _LaunchFault] = field(default_factory=dict)  # by device
    _recorded: dict[str, Remembered] = field(default_factory=dict)  # what the store remembers of the statuses
    _alarms: list[tuple[str, str]] = field(default_factory=list)  # job and text, not in the store yet
    _alarms_raised: set[tuple[str, str, int]] = field(default_factory=set)  # job, device, pid
    _holders: dict[str, frozenset[str]] = field(default_factory=dict)
    _job_holders: dict[str, frozenset[str]] = field(default_factory=dict)  # the same, by the jobs
    _samples: dict[str, Sample] = field(default_factory=dict)
    _statuses: dict[str, DeviceStatus] = field(default_factory=dict)
    _devices: dict[str, Device] = field(default_factory=dict)
    _labels: dict[str, str] = field(default_factory=dict)
    _foreign: dict[str, tuple[ProcessOnDevice, ...]] = field(default_factory=dict)
    _schedulable: tuple[snapshot.SchedulableDevice, ...] = ()
    _updated_s: float = float("-inf")
    _to_examine: bool = False  # an attempt has ended since the devices were last examined for defects
    thread: PeriodicThread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = PeriodicThread("inventory", self.rules.care.max_reading_age_s, self.update)
        self._device_marks, self._recorded = dict(self.marks.all()), dict(self.marks.kept())
        self._refresh()

    # --- on the thread of the inventory

    def update(self) -> None:
        """Update the statuses by the latest readings, and wake the loop if one has changed."""
        samples = self.monitor.last()
        process_owners = self._owners_of(sample.health for sample in samples.values())
        known = {
            uuid: Sample(each.at, self._with_owners(each.health, process_owners))
            for uuid, each in samples.items()
            if each.health.lost is not None  # else the driver gave no answer at all
        }
        with self._lock:
            self._samples |= known
            before = self._summary()
            self._refresh()
            changes = before != self._summary() or self._alarms or self._unrecorded_marks
        if changes:
            self.changed()

    def _owners_of(self, healths: Iterable[Health]) -> Mapping[int, ProcessOnDevice]:
        """Return the owners of all processes; of all at once, because the others are forgotten."""
        processes = [process for health in healths for process in health.processes or ()]
        return self.process_owners.of(processes) if processes else {}

    def _with_owners(self, health: Health, process_owners: Mapping[int, ProcessOnDevice]) -> Health:
        """Return the health with the owners of the processes, without what the host's own programs use."""
        occupants, used = self._processes_of(health, process_owners), health.used_bytes
        if occupants is not None and used is not None:
            known = {each.pid: each.used_bytes or 0 for each in health.processes or ()}
            used = max(used - sum(known.values()) + sum(known[each.pid] for each in occupants), 0)
        return replace(health, used_bytes=used, processes=occupants)

    def _processes_of(
        self, health: Health, process_owners: Mapping[int, ProcessOnDevice]
    ) -> tuple[ProcessOnDevice, ...] | None:
        if health.processes is None:
            return None
        found = (
            replace(process_owners[each.pid], used_bytes=each.used_bytes, draws=each.draws)
            for each in health.processes
        )
        hosts = self.rules.host_programs
        return tuple(each for each in found if each.job or not (each.draws or each.program in hosts))

    def _summary(self) -> dict[str, tuple[DeviceState, str]]:
        return {uuid: (each.state, each.reason) for uuid, each in self._statuses.items()}

    # --- with the lock

    def _refresh(self) -> None:
        """Work out the status of every device anew."""
        present = {device.uuid: device for device in self.monitor.devices}
        missed = {
            uuid: d for uuid, d in self._devices.items() if uuid not in present and uuid in self._holders
        }
        self._labels = core.assign_labels(self._labels, device_labels(present.values()))
        self._devices = {
            uuid: self.rules.as_allocated(replace(device, label=self._labels[uuid]))
            for uuid, device in (present | missed).items()
        }
        now = Instant(self.clock.now(), self.clock.monotonic())
        self._statuses = {uuid: self._next_status(uuid, now, missed=uuid in missed) for uuid in self._devices}
        self._foreign = {
            uuid: core.foreign_processes(standing, self._fresh_sample(uuid, now.monotonic))
            for uuid, standing in self._statuses.items()
        }
        self._raise_alarms()
        self._schedulable = tuple(device_views(d, self._statuses[uuid]) for uuid, d in self._devices.items())
        self._updated_s = now.monotonic

    def _fresh_sample(self, uuid: str, monotonic: float) -> Sample | None:
        sample = self._samples.get(uuid)
        return sample if sample and monotonic - sample.at <= self.rules.care.max_reading_age_s else None

    def _next_status(self, uuid: str, now: Instant, *, missed: bool) -> DeviceStatus:
        device, sample = self._devices[uuid], self._samples.get(uuid)
        if missed:
            sample = Sample(now.monotonic, Health(lost=True))
        elif sample is not None and device.unified:  # the host's own memory proves nothing
            sample = Sample(sample.at, replace(sample.health, used_bytes=None))
        holders = self._holders.get(uuid, frozenset())
        fault = self._faults.get(uuid)
        is_faulty = fault is not None and now.monotonic < fault.until_s
        mark = self._device_marks.get(uuid) or (fault.mark if fault is not None and is_faulty else None)
        care, before = self.rules.care, self._statuses.get(uuid)
        if before is None and uuid in self._recorded:
            before = core.restore_status(self._recorded[uuid], now, care)
        standing = next_status(
            StatusInput(before, sample, holders, mark, now, device.memory_bytes, care, self.watched)
        )
        if standing.state is DeviceState.QUARANTINED and mark is None:
            self._device_marks[uuid] = self._unrecorded_marks[uuid] = AdminMark(
                standing.state, standing.reason, DAEMON, standing.since
            )
            log.warning("devices.quarantined", device=uuid, why=standing.reason)
        return standing

    def _raise_alarms(self) -> None:
        """Raise one alarm for each process on a device that is not its holder's."""
        current = set()
        for uuid, found in self._foreign.items():
            for job in self._statuses[uuid].holders if found else ():
                for each in found:
                    current.add((job, uuid, each.pid))
                    if (job, uuid, each.pid) not in self._alarms_raised:
                        text = f"{self._labels[uuid]} is also used by {each}"
                        self._alarms.append((job, text))
                        log.warning("devices.foreign_process", device=uuid, job_id=job, pid=each.pid)
        self._alarms_raised = current

    # --- in the exclusive section

    def schedulable(self, holders_by_device: Mapping[str, str]) -> tuple[snapshot.SchedulableDevice, ...]:
        held = {uuid: frozenset(jobs.split(",")) for uuid, jobs in holders_by_device.items()}
        with self._lock:
            shared = {uuid for uuid in held if uuid in self._devices and self._devices[uuid].kind == "shared"}
            held |= {uuid: held[uuid] | self._job_holders.get(uuid, frozenset()) for uuid in shared}
            given_back = any(self._holders[uuid] - held.get(uuid, frozenset()) for uuid in self._holders)
            self._to_examine |= given_back
            if held != self._holders or self.clock.monotonic() - self._updated_s > MAX_AGE_S:
                self._holders = held
                self._refresh()
            schedulable = self._schedulable
        if given_back:
            self.monitor.hint()  # so that it is clean again, or not, at once
        return schedulable

    def tick(self, now: Instant, rows: Iterable[JobRow]) -> None:
        """Update who holds what, and write the marks, statuses and alarms that must outlive the daemon.

        What cannot be written, because the disk is full, is written at the next call.
        """
        holders_by_device = holders_of(rows) if self._devices else {}  # saves work without devices
        self._job_holders = {uuid: frozenset(jobs.split(",")) for uuid, jobs in holders_by_device.items()}
        self.schedulable(holders_by_device)
        try:
            if self._to_examine:
                self._quarantine_defective(now.at)
                self._to_examine = False
            for uuid, mark in list(self._unrecorded_marks.items()):
                self.marks.say(uuid, mark)
                with self._lock:
                    self._unrecorded_marks.pop(uuid, None)
            self._record_statuses(now.monotonic)
            while self._alarms:
                self._record_alarm(now.at)
        except Unavailable as error:
            log.warning("inventory.not_recorded", problem=str(error))

    def _quarantine_defective(self, now: datetime) -> None:
        """Quarantine devices on which jobs fail that run elsewhere."""
        for uuid, evidence in find_defects(self.marks.runs(now)).items():
            if uuid in self._devices and uuid not in self._device_marks:
                mark = AdminMark(DeviceState.QUARANTINED, evidence, DAEMON, now)
                with self._lock:
                    self._device_marks[uuid] = self._unrecorded_marks[uuid] = mark
                    self._refresh()
                log.warning("devices.quarantined", device=uuid, why=evidence)

    def _record_statuses(self, monotonic: float) -> None:
        """Write what is remembered of devices and is not in the store yet."""
        with self._lock:
            all_ = {uuid: core.remember_status(each, monotonic) for uuid, each in self._statuses.items()}
        changes = {
            uuid: each for uuid, each in all_.items() if each != self._recorded.get(uuid, Remembered())
        }
        if changes:
            self.marks.keep(changes)
            with self._lock:
                self._recorded |= changes

    def _record_alarm(self, at: datetime) -> None:
        """Write the oldest alarm; one that cannot be written for another reason than a full disk is lost."""
        with self._lock:
            job, text = self._alarms.pop(0)
        try:
            self.marks.note(job, at, ALARM, text)
        except Unavailable:
            with self._lock:
                self._alarms.insert(0, (job, text))
            raise

    def record_launch(self, devices: Iterable[str], fault: str | None, now: Instant) -> None:
        """Quarantine them for a while, ever longer: only another launch shows whether the fault is over."""
        with self._lock:
            for uuid in devices:
                before = self._faults.pop(uuid, None)
                if fault is None:
                    continue
                times = 1 if before is None else before.times + 1
                wait_s = min(FAULT_S * 2 ** (times - 1), LONGEST_FAULT_S)
                why = f"{fault} (tried again after {readable_duration(wait_s)})"
                mark = AdminMark(DeviceState.QUARANTINED, why, DAEMON, now.at)
                self._faults[uuid] = _LaunchFault(mark, now.monotonic + wait_s, times)
                log.warning("devices.not_given", device=uuid, why=fault, again_after_s=wait_s)
            self._refresh()

    def drain(self, reference: str, reason: str, by: str) -> DeviceView:
        """Allocate a device no more; the jobs that hold it keep it; may raise UsageError."""
        uuid = self.find(reference)
        mark = AdminMark(DeviceState.DRAINED, reason, by, self.clock.now())
        self.marks.say(uuid, mark)
        return self._view_after_mark(uuid, mark)

    def resume(self, reference: str, by: str) -> DeviceView:
        """Clear the mark of a device: a person has checked it, and what is on it now is normal.

        Raises:
            UsageError: there is none of that name.
            Refused: it is in service.
        """
        uuid = self.find(reference)
        state = self._statuses[uuid].state
        if uuid not in {*self._device_marks, *self._faults} and state is not DeviceState.DIRTY:
            raise Refused(f"{reference}: is {state}; there is nothing to resume it from")
        self.marks.take_back(uuid, self.clock.now())
        log.info("devices.resumed", device=uuid, by=by)
        return self._view_after_mark(uuid, None)

    def _view_after_mark(self, uuid: str, mark: AdminMark | None) -> DeviceView:
        """Return a device after its mark was set or cleared."""
        with self._lock:
            self._unrecorded_marks.pop(uuid, None)
            if mark is not None:
                self._device_marks[uuid] = mark
            else:
                self._device_marks.pop(uuid, None)
                self._faults.pop(uuid, None)
                standing, sample = self._statuses[uuid], self._samples.get(uuid)
                self._statuses[uuid] = core.clear_status(standing, sample, self.clock.monotonic())
            self._refresh()
        return next(each for each in self.views() if each.device.uuid == uuid)

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

    def views(self) -> tuple[DeviceView, ...]:
        """Return a view of every device with all that is known of it."""
        samples = self.monitor.last()
        with self._lock:
            return tuple(
                DeviceView(
                    device,
                    self._statuses[uuid],
                    samples[uuid].health if uuid in samples else Health(),
                    sample.health.processes if (sample := self._samples.get(uuid)) else None,
                )
                for uuid, device in self._devices.items()
            )

    def facts(self, devices: tuple[str, ...], since: datetime | None) -> Mapping[str, object]:
        known = dict(self.monitor.facts(devices, since))
        with self._lock:
            samples = [self._fresh_sample(uuid, self.clock.monotonic()) for uuid in devices]
            others = any(self._foreign.get(uuid) for uuid in devices)
        if others or (devices and all(sample and sample.health.owners_known for sample in samples)):
            known["device.intruder"] = others
        return known

    def energy_j(self, uuid: str) -> float | None:
        with self._lock:
            device = self._devices.get(uuid)
            sample = self._fresh_sample(uuid, self.clock.monotonic())
        return sample.health.energy_j if sample and device and device.kind == "whole" else None

    def unfit(self) -> Mapping[str, str]:
        fine = {DeviceState.FREE, DeviceState.ALLOCATED}
        with self._lock:
            return {
                uuid: each.reason or str(each.state)
                for uuid, each in self._statuses.items()
                if each.state not in fine
            }
