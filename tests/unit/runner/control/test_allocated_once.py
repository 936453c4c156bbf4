"""Random hosts and random orders of events: a device is lent once, and only when it is known to be clean."""

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runner.adapters.sqlite.store import SqliteStore
from runner.base.errors import Refused
from runner.core.ports.devices import Device
from runner.core.scheduler.snapshot import DeviceState
from tests.fakes.host.disk import examples
from tests.unit.runner.agent.devices.test_inventory import GIB, Site, running, submitted

TROUBLES = ("back", "back", "back", "intruder", "lost", "silent", "drained")
"""What happens to a device; mostly nothing, or nothing else would ever happen."""

NEEDLESS = [HealthCheck.too_slow]


@dataclass
class Truth:
    """Real state of a device, whether anybody knows it or not."""

    pids: set[int] = field(default_factory=set)
    lost: bool = False
    silent: bool = False
    leaked: bool = False  # memory that no process owns


class Host(RuleBasedStateMachine):
    """A host whose scheduler lends whatever is free, without a thought."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory()
        self.jobs: dict[str, frozenset[str]] = {}  # what each running job holds
        self.truths: dict[str, Truth] = {}
        self.seen: dict[str, Truth] = {}  # at the last look that was answered
        self.pid = 100

    def teardown(self) -> None:
        self.directory.cleanup()

    @initialize(count=st.integers(1, 4))
    def install(self, count: int) -> None:
        cards = tuple(Device(f"GPU-{i}", "nvidia", "H100", 80 * GIB, label=f"GPU-{i}") for i in range(count))
        self.truths = {card.uuid: Truth() for card in cards}
        self.site = Site(SqliteStore(Path(self.directory.name) / "store.db"), devices=cards)
        self.look(1.0)

    def tick(self) -> None:
        self.site.tick(*(running(job, *sorted(devices)) for job, devices in self.jobs.items()))

    def some(self, number: int) -> str:
        return sorted(self.truths)[number % len(self.truths)]

    @rule(seconds=st.floats(0.1, 5))
    def look(self, seconds: float) -> None:
        for uuid, truth in self.truths.items():
            used = GIB // 2 + 4 * GIB * truth.leaked
            self.site.use(uuid, *sorted(truth.pids), used=used + GIB * len(truth.pids))
            health = self.site.watch.healths[uuid]
            told = None if truth.silent else truth.lost
            self.site.use(uuid, *sorted(truth.pids), used=health.used_bytes or 0, lost=told)
            if not truth.silent:
                self.seen[uuid] = Truth(set(truth.pids), truth.lost, leaked=truth.leaked)
        self.site.look(seconds)
        self.tick()

    @rule(seconds=st.floats(0.1, 70))
    def wait(self, seconds: float) -> None:
        self.site.clock.forward(seconds)
        self.tick()

    @rule(most=st.integers(1, 3))
    def start(self, most: int) -> None:
        held = {uuid: job for job, devices in self.jobs.items() for uuid in devices}
        pictured = self.site.inventory.schedulable(held)
        free = [each.uuid for each in pictured if each.state is DeviceState.FREE][:most]
        if not free:
            return
        assert not held.keys() & set(free), "lent twice"
        job = submitted(self.site)
        self.jobs[job] = frozenset(free)
        for uuid in free:
            self.pid += 1
            self.truths[uuid].pids.add(self.pid)
            self.site.whose.jobs[self.pid] = job
        self.tick()

    @precondition(lambda self: self.jobs)
    @rule(number=st.integers(0, 9), leaves=st.booleans(), leaks=st.booleans())
    def end(self, number: int, leaves: bool, leaks: bool) -> None:  # noqa: FBT001 - drawn by the machine
        job = sorted(self.jobs)[number % len(self.jobs)]
        for uuid in self.jobs.pop(job):
            truth = self.truths[uuid]
            if not leaves:
                truth.pids -= {pid for pid in truth.pids if self.site.whose.jobs.get(pid) == job}
            truth.leaked = truth.leaked or leaks
            self.seen[uuid] = Truth({-1})  # nothing that was seen before counts any more
        self.tick()

    @rule(number=st.integers(0, 9))
    def clean_up(self, number: int) -> None:
        truth, uuid = self.truths[self.some(number)], self.some(number)
        mine = {job for job, devices in self.jobs.items() if uuid in devices}
        truth.pids = {pid for pid in truth.pids if self.site.whose.jobs.get(pid) in mine}
        truth.leaked = False

    @rule(number=st.integers(0, 9), kind=st.sampled_from(TROUBLES))
    def trouble(self, number: int, kind: str) -> None:
        uuid = self.some(number)
        truth = self.truths[uuid]
        if kind == "intruder":
            self.pid += 1
            truth.pids.add(self.pid)
        elif kind == "drained":
            self.site.inventory.drain(uuid, "x", "ann")
        else:
            truth.lost, truth.silent = kind == "lost", kind == "silent"

    @rule(number=st.integers(0, 9))
    def resume(self, number: int) -> None:
        uuid = self.some(number)
        truth = self.truths[uuid]
        truth.pids = {pid for pid in truth.pids if self.site.whose.jobs.get(pid) in self.jobs}
        truth.leaked = False  # a person has looked
        try:
            self.site.inventory.resume(uuid, "ann")
        except Refused:
            return
        self.seen[uuid] = Truth()  # by that person, also where the driver does not answer
        self.look(0.1)

    @rule()
    def restart(self) -> None:
        """kill -9: what was not written is lost, and the jobs go on."""
        self.site.restart()
        self.tick()

    @invariant()
    def what_is_free_is_nobodys_and_was_last_seen_clean(self) -> None:
        if not self.truths:
            return
        held = {uuid for devices in self.jobs.values() for uuid in devices}
        states = {each.device.uuid: each.standing for each in self.site.inventory.views()}
        assert set(states) == set(self.truths)
        for uuid, standing in states.items():
            if standing.state is DeviceState.FREE:
                seen = self.seen[uuid]
                assert uuid not in held
                assert seen == Truth(), "free, and was last seen otherwise"
            else:
                assert standing.reason, "a state without a reason"


TestHost = Host.TestCase
TestHost.settings = settings(
    max_examples=examples(40), stateful_step_count=30, suppress_health_check=NEEDLESS
)
