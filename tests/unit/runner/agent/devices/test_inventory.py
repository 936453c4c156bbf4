"""The live inventory over a watch, processes and a store that a test plays."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event as Flag

import pytest

from runner.adapters.sqlite.devices import SqliteDeviceMarks
from runner.adapters.sqlite.store import SqliteStore
from runner.agent.devices.health import DeviceHealthMonitor
from runner.agent.devices.inventory import Inventory
from runner.agent.devices.inventory_types import InventoryRules, PresentDevices, holders_of
from runner.base.errors import Refused, Unavailable, UsageError
from runner.base.instant import Instant
from runner.core.devices.reading import Health, ProcessOnDevice, Sample
from runner.core.job.attempt import Allocation, Attempt
from runner.core.job.model import Job
from runner.core.job.revision_text import RevisionText
from runner.core.job.states import Preparing, Running
from runner.core.ports.devices import Device
from runner.core.ports.store import JobRow
from runner.core.ports.users import Owner
from runner.core.scheduler.snapshot import DeviceKind, DeviceState
from tests.fakes.daemon.clock import FakeClock
from tests.fakes.patience import patience

GIB = 1024**3
IDLE = Health(lost=False, recovery="none", used_bytes=GIB // 2, processes=())
CARDS = (
    Device("GPU-aa", "nvidia", "H100", 80 * GIB, label="GPU-0", capability=(9, 0), link_group="x", numa=1),
    Device("GPU-ab", "nvidia", "H100", 80 * GIB, label="GPU-1"),
)
ANN = Owner(1001, 1001, "ann")


@dataclass
class Watch(DeviceHealthMonitor):
    """A monitor that looks when a test says so, without drivers."""

    healths: dict[str, Health] = field(default_factory=dict)
    samples: dict[str, Sample] = field(default_factory=dict)
    hints: int = 0

    def look(self) -> None:
        for device in self.devices:
            self.samples[device.uuid] = Sample(self.clock.monotonic(), self.healths.get(device.uuid, IDLE))

    def last(self) -> Mapping[str, Sample]:
        return self.samples

    def hint(self) -> None:
        self.hints += 1

    def facts(self, devices: tuple[str, ...], since: datetime | None) -> Mapping[str, object]:
        del devices, since
        return {"device.lost": False}


@dataclass
class Whose:
    """Satisfies ``inventory_types.Whose``: a process is a job's if a test says so, else foreign."""

    jobs: dict[int, str] = field(default_factory=dict)
    unknown: set[int] = field(default_factory=set)
    programs: dict[int, str] = field(default_factory=dict)
    asked: list[list[int]] = field(default_factory=list)

    def of(self, processes: Iterable[ProcessOnDevice]) -> Mapping[int, ProcessOnDevice]:
        processes = list(processes)
        self.asked.append([each.pid for each in processes])
        return {each.pid: self._of(each.pid) for each in processes}

    def _of(self, pid: int) -> ProcessOnDevice:
        job = self.jobs.get(pid)
        foreign = job is None and pid not in self.unknown
        return ProcessOnDevice(pid, job, foreign, 1007, "", self.programs.get(pid, "python"))


@dataclass
class Site:
    """An inventory that looks when a test says so."""

    store: SqliteStore
    rules: InventoryRules = field(default_factory=InventoryRules)
    clock: FakeClock = field(default_factory=FakeClock)
    whose: Whose = field(default_factory=Whose)
    woken: int = 0
    devices: tuple[Device, ...] = CARDS
    boot: str = "first"

    def __post_init__(self) -> None:
        self.clock.forward(100)
        self.watch = Watch(self.devices, {}, self.clock, tuple)
        self.restart()

    def restart(self) -> None:
        words = SqliteDeviceMarks(self.store, self.boot)
        self.inventory = Inventory(self.watch, self.whose, words, self.clock, self.rules, changed=self.wake)

    def wake(self) -> None:
        self.woken += 1

    def look(self, seconds: float = 2.0) -> None:
        self.clock.forward(seconds)
        self.watch.look()
        self.inventory.update()

    def use(self, uuid: str, *pids: int, used: int = GIB // 2, **more: object) -> None:
        processes = tuple(ProcessOnDevice(pid, used_bytes=GIB) for pid in pids)
        health = replace(IDLE, used_bytes=used, processes=processes)
        self.watch.healths[uuid] = replace(health, **more)  # type: ignore[arg-type]

    def states(self, **lent: str) -> dict[str, str]:
        held = {f"GPU-{name}": job for name, job in lent.items()}
        return {each.name: each.state.value for each in self.inventory.schedulable(held)}

    def tick(self, *rows: JobRow) -> None:
        self.inventory.tick(Instant(self.clock.now(), self.clock.monotonic()), rows)


def running(job_id: str, *devices: str) -> JobRow:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    state = Running(now, "image", Attempt(1, 1), Allocation(devices))
    return JobRow(Job(job_id, state), "train", ANN, now, 50, RevisionText.of("{}"))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(SqliteStore(tmp_path / "store.db"))


def submitted(site: Site) -> str:
    job = Job(site.store.next_id(), Preparing(site.clock.now()))
    site.store.add_all(
        (JobRow(job, "train", ANN, site.clock.now(), 50, RevisionText.of("{}")),), ("submitted",)
    )
    return job.id


def test_devices_are_free_once_they_have_been_looked_at(site: Site) -> None:
    assert site.states() == {"GPU-0": "dirty", "GPU-1": "dirty"}
    site.look()
    assert (site.states(), site.woken) == ({"GPU-0": "free", "GPU-1": "free"}, 1)


def test_whose_processes_are_is_asked_of_all_devices_together(site: Site) -> None:
    site.use("GPU-aa", 11, 12)
    site.use("GPU-ab", 21)
    site.look()
    assert site.whose.asked == [[11, 12, 21]]


def test_nobody_is_woken_when_nothing_has_changed(site: Site) -> None:
    site.look()
    site.look()
    assert site.woken == 1


def test_the_scheduler_sees_what_it_places_by(site: Site) -> None:
    site.look()
    seen, _ = site.inventory.schedulable({})
    assert (seen.uuid, seen.name, seen.vendor, seen.model) == ("GPU-aa", "GPU-0", "nvidia", "H100")
    assert (seen.memory_bytes, seen.capability, seen.link_group, seen.numa) == (80 * GIB, (9, 0), "x", 1)
    assert (seen.kind, seen.shareable_bytes, seen.state) == (DeviceKind.WHOLE, 0, DeviceState.FREE)


@pytest.mark.parametrize("named", ["GPU-aa", "GPU-0", "H1"])
def test_a_site_says_which_devices_are_shared(site: Site, named: str) -> None:
    site = Site(site.store, InventoryRules(shared=(named,)))
    site.look()
    first, second = site.inventory.schedulable({})
    assert (first.kind, first.shareable_bytes) == (DeviceKind.SHARED, 80 * GIB - GIB // 2)
    assert second.kind is (DeviceKind.SHARED if named == "H1" else DeviceKind.WHOLE)


def test_a_device_that_comes_back_is_looked_at_at_once(site: Site) -> None:
    site.look()
    assert site.states(aa="7") == {"GPU-0": "allocated", "GPU-1": "free"}
    assert (site.watch.hints, site.states(), site.watch.hints) == (0, {"GPU-0": "dirty", "GPU-1": "free"}, 1)
    site.look(0.1)
    assert site.states() == {"GPU-0": "free", "GPU-1": "free"}


def test_one_that_is_not_clean_in_time_is_quarantined_and_stays_so_over_restarts(site: Site) -> None:
    site.look()
    site.states(aa="7")
    site.use("GPU-aa", used=30 * GIB)
    site.states()
    for _ in range(40):
        site.look()
    assert site.states()["GPU-0"] == "quarantined"
    site.tick()
    site.watch.healths.clear()
    site.restart()
    site.look()
    assert site.states()["GPU-0"] == "quarantined"
    assert site.inventory.unfit()["GPU-aa"].startswith("not clean 1m after job 7: 30 GiB in use")
    assert site.inventory.resume("GPU-0", "ann").standing.state is DeviceState.FREE
    site.restart()
    site.look()
    assert site.states()["GPU-0"] == "free"


def test_a_lost_device_is_quarantined_until_a_person_says_otherwise(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.look()
    site.use("GPU-ab", lost=True)
    site.look()
    site.watch.healths.clear()
    site.look()
    assert site.inventory.unfit() == {"GPU-ab": "it no longer answers"}
    assert capsys.readouterr().out.count("devices.quarantined") == 1
    site.inventory.resume("GPU-ab", "ann")
    assert site.inventory.unfit() == {}


def test_a_lost_device_that_is_resumed_too_early_is_quarantined_again(site: Site) -> None:
    site.use("GPU-ab", lost=True)
    site.look()
    assert site.inventory.resume("GPU-1", "ann").standing.state is DeviceState.QUARANTINED
    site.tick()
    assert [row["by"] for row in site.store.rows("device_marks")] == ["runner"]


def test_a_drained_device_keeps_its_job_and_is_not_lent_afterwards(site: Site) -> None:
    site.look()
    site.states(aa="7")
    shown = site.inventory.drain("GPU-0", "new fan", "ann")
    assert (shown.standing.state, shown.standing.holders) == (DeviceState.DRAINED, frozenset({"7"}))
    site.states()
    site.restart()
    site.look()
    [picture, _] = site.inventory.schedulable({})
    assert (picture.state, picture.reason) == (DeviceState.DRAINED, "new fan")


def test_what_was_never_taken_out_of_service_cannot_be_resumed(site: Site) -> None:
    site.look()
    with pytest.raises(Refused, match="GPU-0: is free; there is nothing to resume it from"):
        site.inventory.resume("GPU-0", "ann")


def test_memory_that_was_there_from_the_start_is_normal_once_a_person_says_so(site: Site) -> None:
    site.use("GPU-aa", used=30 * GIB)
    site.look()
    assert site.states()["GPU-0"] == "dirty"
    assert site.inventory.resume("GPU-0", "ann").standing.state is DeviceState.FREE
    site.look()
    assert site.states()["GPU-0"] == "free"


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ("GPU-7", "there is no such device; there are GPU-0, GPU-1"),
        ("GPU-a", "names several"),
        ("", "no such"),
    ],
)
def test_a_device_that_is_not_one_is_a_usage_error(site: Site, reference: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        site.inventory.drain(reference, "x", "ann")


def test_an_intruder_is_noted_once_on_the_job_and_is_a_fact(site: Site) -> None:
    job = submitted(site)
    site.look()
    row = running(job, "GPU-aa")
    site.tick(row)
    site.whose.jobs[5] = job
    site.use("GPU-aa", 5)
    site.look()
    assert site.inventory.facts(("GPU-aa",), None) == {"device.lost": False, "device.intruder": False}
    site.use("GPU-aa", 5, 4121)
    for _ in range(3):
        site.look()
        site.tick(row)
    assert site.inventory.facts(("GPU-aa",), None)["device.intruder"] is True
    assert site.store.noted(job, "alarm") == (
        "GPU-0 is also used by a foreign process (pid 4121, uid 1007, python)",
    )


def test_a_process_of_another_job_is_an_intruder_too(site: Site) -> None:
    job = submitted(site)
    site.look()
    site.tick(running(job, "GPU-aa"))
    site.whose.jobs[6] = "99"
    site.use("GPU-aa", 6)
    site.look()
    site.tick(running(job, "GPU-aa"))
    [line] = site.store.noted(job, "alarm")
    assert line == "GPU-0 is also used by job 99 (pid 6, uid 1007, python)"


def test_of_an_unreadable_process_nothing_is_said(site: Site) -> None:
    job = submitted(site)
    site.look()
    site.tick(running(job, "GPU-aa"))
    site.whose.unknown.add(9)
    site.use("GPU-aa", 9)
    site.look()
    site.tick(running(job, "GPU-aa"))
    assert site.store.noted(job, "alarm") == ()
    assert "device.intruder" not in site.inventory.facts(("GPU-aa",), None)


def test_an_old_look_says_nothing_about_intruders(site: Site) -> None:
    site.look()
    site.clock.forward(60)
    assert "device.intruder" not in site.inventory.facts(("GPU-aa",), None)
    assert "device.intruder" not in site.inventory.facts((), None)


def test_programs_of_the_host_may_be_there_and_their_memory_is_not_counted(site: Site) -> None:
    site = Site(site.store, InventoryRules(host_programs=("Xorg",)))
    site.whose.programs[3] = "Xorg"
    site.use("GPU-aa", 3, used=GIB // 2 + GIB)
    site.look()
    site.use("GPU-aa", used=GIB // 2)
    site.look()
    assert site.states()["GPU-0"] == "free"
    [shown, _] = site.inventory.views()
    assert (shown.standing.baseline_bytes, shown.occupants) == (GIB // 2, ())


def test_windows_of_a_desktop_may_be_there_too_unless_they_are_a_jobs(site: Site) -> None:
    window = ProcessOnDevice(7, used_bytes=GIB, draws=True)
    site.watch.healths["GPU-aa"] = replace(IDLE, used_bytes=GIB // 2 + GIB, processes=(window,))
    site.look()
    assert site.states()["GPU-0"] == "free"
    assert site.inventory.views()[0].standing.baseline_bytes == GIB // 2
    site.whose.jobs[7] = "3"
    site.look()
    assert site.states()["GPU-0"] == "dirty"


def test_where_the_driver_lists_no_processes_their_number_is_unknown(site: Site) -> None:
    site.use("GPU-aa", processes=None)
    site.look()
    assert site.states()["GPU-0"] == "free"
    [shown, _] = site.inventory.views()
    assert shown.occupants is None


def test_a_device_that_says_nothing_at_all_was_not_looked_at(site: Site) -> None:
    site.watch.healths["GPU-aa"] = Health()
    site.look()
    assert site.inventory.unfit() == {"GPU-aa": "not looked at yet"}


def test_the_memory_of_an_apu_is_the_hosts_and_proves_nothing(site: Site) -> None:
    site = Site(site.store, devices=(Device("PCI-1", "amd", "gfx1151", 96 * GIB, unified=True),))
    site.use("PCI-1", used=50 * GIB)
    site.look()
    assert site.states() == {"GPU-0": "free"}


def test_two_vendors_count_each_for_itself(site: Site) -> None:
    site = Site(site.store, devices=(*CARDS, Device("GPU-x", "amd", "MI300X", label="GPU-0")))
    assert [device.label for device in site.inventory.present()] == ["GPU-0", "GPU-1", "AMD-0"]


def test_devices_come_and_go_while_the_daemon_runs(site: Site) -> None:
    site.look()
    present = PresentDevices(site.inventory.present)
    assert (len(present), present[0].uuid, [d.uuid for d in present[1:]]) == (2, "GPU-aa", ["GPU-ab"])
    slices = tuple(
        Device(f"MIG-{i}", "nvidia", "H100 MIG", label=f"GPU-0:{i}", kind="slice", parent="GPU-aa")
        for i in range(2)
    )
    site.watch.devices = (*slices, CARDS[1])
    site.look()
    assert [device.label for device in present] == ["GPU-0:0", "GPU-0:1", "GPU-1"]
    assert site.states() == {"GPU-0:0": "free", "GPU-0:1": "free", "GPU-1": "free"}


def test_a_lent_device_that_does_not_exist_any_more_stays_until_its_job_has_ended(site: Site) -> None:
    site.look()
    site.states(aa="7")
    site.watch.devices = CARDS[1:]
    site.look()
    assert site.states(aa="7") == {"GPU-1": "free", "GPU-0": "quarantined"}
    site.states()
    assert site.states() == {"GPU-1": "free"}


def test_what_cannot_be_written_is_written_later(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.use("GPU-ab", lost=True)
    site.look()

    def full(uuid: str, word: object) -> None:
        del uuid, word
        raise Unavailable("disk full")

    monkeypatch.setattr(SqliteDeviceMarks, "say", lambda _, uuid, word: full(uuid, word))
    site.tick()
    assert site.store.rows("device_marks") == []
    monkeypatch.undo()
    site.tick()
    [row] = site.store.rows("device_marks")
    assert (row["uuid"], row["state"], row["reason"]) == ("GPU-ab", "quarantined", "it no longer answers")


def test_an_alarm_that_finds_the_disk_full_is_raised_later(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submitted(site)
    site.look()
    site.tick(running(job, "GPU-aa"))
    site.use("GPU-aa", 4121)
    site.look()

    def full(*_: object) -> None:
        raise Unavailable("disk full")

    monkeypatch.setattr(SqliteDeviceMarks, "note", full)
    site.tick(running(job, "GPU-aa"))
    monkeypatch.undo()
    assert site.store.noted(job, "alarm") == ()
    site.tick(running(job, "GPU-aa"))
    assert len(site.store.noted(job, "alarm")) == 1


def test_who_holds_what_is_read_from_the_jobs() -> None:
    rows = [running("1", "a", "b"), running("2", "b")]
    queued = replace(rows[0], job=Job("3", Preparing(rows[0].submitted_at)))
    assert holders_of([*rows, queued]) == {"a": "1", "b": "1,2"}


def test_the_thread_takes_looks_in_when_it_is_woken(site: Site) -> None:
    woken = Flag()
    site.inventory.changed = woken.set
    site.watch.look()
    site.inventory.thread.start()
    site.inventory.thread.wake()
    assert woken.wait(patience())
    site.inventory.thread.stop()


def test_a_word_keeps_its_time(site: Site) -> None:
    site.look()
    site.inventory.drain("GPU-0", "x", "ann")
    before = site.clock.now()
    site.clock.forward(3600)
    site.restart()
    site.look()
    [shown, _] = site.inventory.views()
    assert shown.standing.since == before
    assert site.clock.now() - before > timedelta(hours=1)


def test_a_shared_device_has_all_its_jobs_also_when_the_scheduler_names_one(site: Site) -> None:
    site = Site(site.store, InventoryRules(shared=("GPU-0",)))
    job = submitted(site)
    site.look()
    site.tick(running(job, "GPU-aa"), running("99", "GPU-aa"))
    site.whose.jobs |= {5: job, 6: "99"}
    site.use("GPU-aa", 5, 6, used=30 * GIB)
    site.look()
    site.states(aa="99")
    site.look()
    site.tick(running(job, "GPU-aa"), running("99", "GPU-aa"))
    assert site.store.noted(job, "alarm") == ()
    assert site.inventory.views()[0].standing.holders == {job, "99"}
    site.tick(running("99", "GPU-aa"))
    assert site.states(aa="99")["GPU-0"] == "allocated"
    assert site.inventory.views()[0].standing.uncleaned_jobs == {job}


def test_whose_the_processes_are_is_asked_for_all_devices_at_once(site: Site) -> None:
    """Knowledge of a process is forgotten when nobody asks about it: its job may have ended since."""
    asked: list[set[int]] = []

    class Asked(Whose):
        def of(self, processes: Iterable[ProcessOnDevice]) -> Mapping[int, ProcessOnDevice]:
            known = list(processes)
            asked.append({each.pid for each in known})
            return super().of(known)

    site.whose = Asked()
    site.restart()
    site.use("GPU-aa", 11)
    site.use("GPU-ab", 12, 13)
    site.look()
    assert asked == [{11, 12, 13}]


def told(site: Site, fault: str | None, *uuids: str) -> None:
    site.inventory.record_launch(uuids, fault, Instant(site.clock.now(), site.clock.monotonic()))


def test_a_device_that_could_not_be_given_to_a_container_is_quarantined_and_looked_at_again(
    site: Site,
) -> None:
    site.look()
    [uuid, other] = [each.uuid for each in CARDS][:2]
    told(site, "nvml error: driver/library version mismatch", uuid)
    site.look()
    by_uuid = {each.device.uuid: each.standing for each in site.inventory.views()}
    assert by_uuid[uuid].state is DeviceState.QUARANTINED
    assert by_uuid[uuid].reason == "nvml error: driver/library version mismatch (tried again after 30s)"
    assert by_uuid[other].state is DeviceState.FREE
    site.look(31)
    assert {each.device.uuid: each.standing.state for each in site.inventory.views()}[
        uuid
    ] is DeviceState.FREE
    told(site, "still", uuid)
    site.look(31)
    assert site.inventory.unfit()[uuid] == "still (tried again after 1m)"
    told(site, None, uuid)
    assert site.inventory.unfit() == {}


def test_an_operator_takes_such_a_device_back_at_once_and_a_restart_forgets_it(site: Site) -> None:
    site.look()
    [uuid, *_] = [each.uuid for each in CARDS]
    told(site, "no driver", uuid)
    assert site.inventory.resume(uuid, "ann").standing.state is DeviceState.FREE
    told(site, "no driver", uuid)
    site.restart()
    site.look()
    assert uuid not in site.inventory.unfit()
