"""Results of the threads that look: facts, or nothing, and never a wait."""

from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from threading import Event as Flag

import pytest

from runner.adapters.gpu.xid import KernelLog
from runner.agent.devices.health import WINDOW_S, DeviceHealthMonitor, merge_devices
from runner.core.devices.reading import Health
from runner.core.devices.state import driver_fault
from runner.core.policy.catalog import facts_at, validate_facts
from runner.core.policy.facts import DecisionPoint
from runner.core.ports.devices import Device
from tests.fakes.daemon.clock import FakeClock
from tests.fakes.gpu.vitals import FakeHealth
from tests.fakes.patience import patience

BOTH = ("GPU-a", "GPU-b")
DEVICES = tuple(Device(uuid, "nvidia", "H100") for uuid in BOTH)
FINE = Health(lost=False, recovery="none", util=50.0, memory=0.5, bus="0000:17:00")
OTHER = Health(lost=False, recovery="none", util=50.0, memory=0.5, bus="0000:b3:00")


@dataclass
class Site:
    """A watch over two devices that looks when a test says so."""

    log: Path
    probe: FakeHealth = field(default_factory=lambda: FakeHealth({"GPU-a": FINE, "GPU-b": OTHER}))
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.log.write_text("")
        self.watch = DeviceHealthMonitor(
            DEVICES, {"nvidia": self.probe}, self.clock, KernelLog(self.log).xids
        )
        self.clock.forward(1000)
        self.began = self.clock.now()

    def poll(self, times: int = 1, every_s: float = 2.0) -> None:
        for _ in range(times):
            self.clock.forward(every_s)
            self.watch.poll("nvidia")

    def say(self, text: str, bus: str = "0000:17:00", ago_s: float = 0.0) -> None:
        micros = int((self.clock.monotonic() - ago_s) * 1e6)
        with self.log.open("a") as file:
            file.write(f"4,1,{micros},-;NVRM: Xid (PCI:{bus}): {text}\n")

    def facts(self) -> dict[str, object]:
        facts = dict(self.watch.facts(BOTH, self.began))
        validate_facts(
            {name: facts[name] for name in facts if name in facts_at(DecisionPoint.WATCH)},
            DecisionPoint.WATCH,
        )
        return facts


def faults(watch: DeviceHealthMonitor) -> dict[str, str]:
    """Return the faults that the last readings tell, by device."""
    return {uuid: fault for uuid, each in watch.last().items() if (fault := driver_fault(each))}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "kmsg")


def test_before_the_first_look_nothing_is_known(site: Site) -> None:
    assert (site.facts(), faults(site.watch)) == ({}, {})


def test_healthy_devices_are_known_to_be_healthy(site: Site) -> None:
    site.poll()
    facts = site.facts()
    assert (facts["device.lost"], facts["device.recovery"], facts["device.xid"]) == (False, "none", ())


def test_the_least_busy_the_busiest_and_the_fullest_device_count(site: Site) -> None:
    site.probe.healths["GPU-b"] = Health(lost=False, util=10.0, memory=0.9)
    site.poll()
    facts = site.facts()
    assert (facts["device.util"], facts["device.busiest"], facts["device.memory"]) == (10.0, 50.0, 0.9)


def test_utilisation_is_a_mean_over_the_time_that_was_looked_at(site: Site) -> None:
    site.poll(100)
    for uuid in BOTH:
        site.probe.healths[uuid] = Health(lost=False, util=0.0)
    site.poll(100)
    facts = site.facts()
    assert (facts["device.util"], facts["device.window_s"]) == (25.0, 398.0)


def test_what_was_long_ago_is_forgotten_and_the_window_stays_full(site: Site) -> None:
    site.poll(800)
    window = site.facts()["device.window_s"]
    assert isinstance(window, float)
    assert WINDOW_S - 2 <= window <= WINDOW_S + 2


def test_what_other_attempts_did_to_a_device_is_not_counted(site: Site) -> None:
    site.poll(100)
    site.began = site.clock.now()
    for uuid in BOTH:
        site.probe.healths[uuid] = Health(lost=False, util=0.0)
    site.poll(10)
    assert site.facts()["device.util"] == 0.0


def test_a_device_that_does_not_say_how_busy_it_is_makes_that_unknown(site: Site) -> None:
    site.probe.healths["GPU-b"] = Health(lost=False)
    site.poll()
    assert not {"device.util", "device.busiest", "device.window_s", "device.memory"} & site.facts().keys()


def test_one_lost_device_is_enough_and_is_not_lent(site: Site) -> None:
    site.probe.healths["GPU-b"] = Health(lost=True)
    site.poll()
    assert site.facts()["device.lost"] is True
    assert faults(site.watch) == {"GPU-b": "it no longer answers"}


def test_a_device_that_must_be_reset_is_not_lent_either(site: Site) -> None:
    site.probe.healths["GPU-a"] = Health(lost=False, recovery="gpu_reset")
    site.poll()
    assert site.facts()["device.recovery"] == "gpu_reset"
    assert faults(site.watch) == {"GPU-a": "its driver asks for gpu_reset"}


def test_the_action_that_means_most_is_the_one_that_is_needed(site: Site) -> None:
    site.probe.healths["GPU-a"] = Health(lost=False, recovery="drain_p2p")
    site.probe.healths["GPU-b"] = Health(lost=False, recovery="node_reboot")
    site.poll()
    assert site.facts()["device.recovery"] == "node_reboot"


def test_a_device_about_which_nobody_knows_is_lent_and_makes_the_facts_unknown(site: Site) -> None:
    site.probe.healths["GPU-b"] = Health()
    site.poll()
    assert not {"device.lost", "device.recovery"} & site.facts().keys()
    assert faults(site.watch) == {}


def test_what_is_too_old_is_unknown(site: Site) -> None:
    site.probe.healths["GPU-b"] = Health(lost=True)
    site.poll()
    site.clock.forward(60)
    assert "device.lost" not in site.facts()


def test_a_job_without_devices_has_no_facts_about_them(site: Site) -> None:
    site.poll()
    assert site.watch.facts((), None) == {}


# --- Xids


def test_xids_of_the_attempt_and_of_its_devices_are_counted_once_each(site: Site) -> None:
    site.say("31, pid=1, name=python", ago_s=5)  # before it began
    site.clock.forward(10)
    for text in ("13, Graphics Exception", "13, Graphics Exception", "94, Contained ECC"):
        site.say(text)
    site.say("43, Ch 8", bus="0000:aa:00")
    site.poll()
    assert site.facts()["device.xid"] == (13, 94)


def test_without_a_beginning_all_xids_count(site: Site) -> None:
    site.say("31, pid=1", ago_s=500)
    site.poll()
    assert site.watch.facts(BOTH, None)["device.xid"] == (31,)


def test_a_device_that_fell_off_the_bus_is_lost_although_nobody_could_ask_it(site: Site) -> None:
    site.poll()
    site.say("79, pid=1, GPU has fallen off the bus.", bus="0000:b3:00")
    site.probe.healths["GPU-b"] = Health()
    site.poll()
    assert site.facts()["device.lost"] is True


def test_the_log_says_what_must_be_done_where_the_driver_does_not(site: Site) -> None:
    site.probe.healths["GPU-a"] = Health(lost=False, bus="0000:17:00")
    site.poll()
    site.say("154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
    site.poll()
    assert site.facts()["device.recovery"] == "gpu_reset"


def test_a_log_that_cannot_be_read_is_not_a_log_without_xids(site: Site, tmp_path: Path) -> None:
    site.watch.kernel_xids = KernelLog(tmp_path / "absent").xids
    site.poll()
    assert "device.xid" not in site.facts()


# --- Threads


def _eventually(site: Site) -> bool:
    pause = Flag()
    return any(faults(site.watch) or pause.wait(0.01) for _ in range(100 * patience()))


def test_a_mistake_of_a_probe_costs_its_look_and_not_the_next(site: Site) -> None:
    site.watch.every_s = 0.01
    site.probe.mistake = ValueError("what no driver should say")
    site.probe.healths["GPU-a"] = Health(lost=True)
    site.watch.start()
    while site.probe.looks < 2:
        Flag().wait(0.01)
    assert faults(site.watch) == {}
    site.probe.mistake = None
    assert _eventually(site)
    site.watch.stop()


def test_a_driver_that_never_answers_holds_nobody_else_up(site: Site) -> None:
    site.probe.hangs = Flag()
    site.watch.start()
    while not site.probe.looks:
        Flag().wait(0.01)
    assert (site.facts(), faults(site.watch)) == ({}, {})
    site.watch.stop()
    site.probe.hangs.set()


def test_machines_without_devices_are_not_looked_at(site: Site) -> None:
    alone = DeviceHealthMonitor((), {"nvidia": site.probe}, site.clock, KernelLog(site.log).xids)
    alone.start()
    alone.stop()
    assert site.probe.looks == 0


def test_half_an_hour_of_looks_stays_small(site: Site) -> None:
    site.poll(900)
    assert len(site.watch._histories["GPU-a"].samples) <= WINDOW_S / 2 + 2
    assert site.clock.now() - site.began == timedelta(seconds=1800)


def test_devices_of_a_vendor_without_such_a_log_have_no_xids(site: Site) -> None:
    amd = Device("GPU-c", "amd", "MI300X")
    probe = FakeHealth({"GPU-c": FINE})
    watch = DeviceHealthMonitor((amd,), {"amd": probe}, site.clock, KernelLog(site.log).xids)
    site.clock.forward(1)
    watch.poll("amd")
    facts = watch.facts(("GPU-c",), None)
    assert facts["device.lost"] is False
    assert "device.xid" not in facts


def test_the_drivers_own_events_stand_in_for_a_log_that_may_not_be_read(site: Site, tmp_path: Path) -> None:
    site.watch.kernel_xids = KernelLog(tmp_path / "absent").xids
    listening = Health(lost=False, bus="0000:17:00", xids=())
    site.probe.healths = {"GPU-a": listening}
    site.poll(2)
    since = site.clock.now()
    site.probe.healths["GPU-a"] = Health(lost=False, bus="0000:17:00", xids=(94, 13))
    site.poll()
    site.probe.healths["GPU-a"] = listening
    site.poll()
    assert site.watch.facts(("GPU-a",), since)["device.xid"] == (94, 13)
    assert "device.xid" not in site.watch.facts(("GPU-a",), site.began)  # nobody listened from the beginning


def test_events_that_are_heard_no_more_are_unknown(site: Site, tmp_path: Path) -> None:
    site.watch.kernel_xids = KernelLog(tmp_path / "absent").xids
    site.probe.healths = {"GPU-a": Health(lost=False, bus="0000:17:00", xids=())}
    site.poll()
    since = site.clock.now()
    site.probe.healths = {"GPU-a": Health(lost=False, bus="0000:17:00")}
    site.poll()
    assert "device.xid" not in site.watch.facts(("GPU-a",), since)


# --- what comes and what goes


@dataclass
class Counted:
    """Satisfies ``runner.core.ports.devices.DeviceProbe``."""

    found: tuple[Device, ...] = DEVICES
    counts: int = 0

    def devices(self) -> tuple[Device, ...]:
        self.counts += 1
        return self.found


SLICES = tuple(Device(f"MIG-{i}", "nvidia", "H100", kind="slice", parent="GPU-b") for i in range(2))


def counting(site: Site, probe: Counted) -> DeviceHealthMonitor:
    watch = DeviceHealthMonitor(
        (), {"nvidia": site.probe}, site.clock, KernelLog(site.log).xids, counts={"nvidia": probe}
    )
    watch.poll("nvidia")
    return watch


def test_devices_are_counted_at_the_first_look_and_every_half_minute(site: Site) -> None:
    probe = Counted()
    watch = counting(site, probe)
    assert (watch.devices, probe.counts) == (DEVICES, 1)
    for _ in range(16):
        site.clock.forward(2)
        watch.poll("nvidia")
    assert probe.counts == 2


def test_a_device_that_is_not_counted_any_more_is_missed_and_not_forgotten(site: Site) -> None:
    probe = Counted()
    watch = counting(site, probe)
    probe.found = DEVICES[:1]
    site.probe.healths["GPU-b"] = Health(lost=True)
    watch.poll("nvidia")
    assert (watch.devices, probe.counts) == (DEVICES, 2)
    assert faults(watch) == {"GPU-b": "it no longer answers"}
    watch.poll("nvidia")
    assert probe.counts == 2  # not again for the same one


def test_cards_stay_joined_to_one_that_is_missed() -> None:
    """The driver names an island after its first card, and knows of none where a single one is left."""
    pairs = tuple(Device(f"GPU-{i}", "nvidia", "A100", link_group=f"nvlink-{i // 2 * 2}") for i in range(4))
    alone = replace(pairs[1], link_group=None)
    assert merge_devices(pairs, (alone, *pairs[2:])) == (*pairs[1:], pairs[0])
    triple = tuple(replace(each, link_group="nvlink-0") for each in pairs[:3])
    renamed = tuple(replace(each, link_group="nvlink-1") for each in triple[1:])
    assert merge_devices(triple, renamed) == (*triple[1:], triple[0])
    assert merge_devices((*triple[1:], triple[0]), pairs) == pairs


def test_a_gpu_that_was_divided_gives_way_to_its_slices_and_back_without_being_lost(site: Site) -> None:
    probe = Counted()
    watch = counting(site, probe)
    probe.found, site.probe.healths["GPU-b"] = (DEVICES[0], *SLICES), Health(lost=True)
    watch.poll("nvidia")
    assert ([device.uuid for device in watch.devices], faults(watch)) == (["GPU-a", "MIG-0", "MIG-1"], {})
    site.probe.healths |= {each.uuid: Health(lost=True) for each in SLICES}
    site.probe.healths["GPU-b"] = OTHER
    probe.found = DEVICES
    watch.poll("nvidia")
    assert (watch.devices, faults(watch)) == (DEVICES, {})


def test_slices_whose_gpu_has_gone_too_are_missed(site: Site) -> None:
    probe = Counted((DEVICES[0], *SLICES))
    watch = counting(site, probe)
    site.clock.forward(60)
    probe.found = DEVICES[:1]
    watch.poll("nvidia")
    assert [device.uuid for device in watch.devices] == ["GPU-a", "MIG-0", "MIG-1"]


def test_a_machine_whose_driver_comes_late_has_its_devices_then(site: Site) -> None:
    probe, seen = Counted(()), []
    watch = counting(site, probe)
    watch.after_poll = lambda: seen.append(len(watch.devices))
    assert (watch.devices, site.probe.looks) == ((), 0)
    probe.found = DEVICES
    site.clock.forward(60)
    watch.poll("nvidia")
    assert (seen, dict(watch.last())["GPU-a"].health) == ([2], FINE)


def test_a_start_waits_for_the_first_look_and_not_for_a_driver_that_hangs(site: Site) -> None:
    site.probe.hangs = Flag()
    hangs = DeviceHealthMonitor(
        (), {"nvidia": site.probe}, site.clock, KernelLog(site.log).xids, counts={"nvidia": Counted()}
    )
    hangs.start()
    try:
        assert not hangs.await_first(0.05)
        assert hangs.last() == {}
        site.probe.hangs.set()
        assert hangs.await_first(10)
    finally:
        hangs.stop()


def test_a_hint_makes_the_next_look_come_at_once(site: Site) -> None:
    looked = Flag()
    watch = DeviceHealthMonitor(
        DEVICES,
        {"nvidia": site.probe},
        site.clock,
        KernelLog(site.log).xids,
        every_s=3600,
        after_poll=looked.set,
    )
    watch.start()
    try:
        assert looked.wait(patience())
        looked.clear()
        watch.hint()
        assert looked.wait(patience())
    finally:
        watch.stop()
