"""A daemon with a timetable and a clock that a test pushes; it can be killed anywhere and booted again."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from runner.adapters.sqlite.accounting import SqliteAccounting
from runner.adapters.sqlite.schedules import SqliteSchedules
from runner.adapters.sqlite.store import SqliteStore
from runner.agent.attempts.service import AttemptService
from runner.base.broadcast import ChangeBroadcast
from runner.control.context import Capacity
from runner.control.context import Context as Parts
from runner.control.controller import Controller
from runner.core.job.events import CancelRequested
from runner.core.ports.devices import Device
from runner.core.ports.schedules import FiringRow, ScheduleRow
from runner.core.ports.store import JobRow
from runner.files.settings.model import Settings
from runner.files.submission import Submission
from runner.services.context import Caller
from runner.services.schedules.service import ScheduleService
from runner.services.schedules.trigger import ScheduleTrigger
from tests.fakes.daemon.clock import FakeClock
from tests.fakes.daemon.services import attempt_config, job_service
from tests.fakes.engine.executor import FakeExecutor, World
from tests.fakes.engine.images import FakeImages
from tests.fakes.engine.keyed_executor import ManualLanes
from tests.fakes.gpu.vitals import FakeInventory


@dataclass
class Clockwork:
    """A state directory that outlives its daemon."""

    directory: Path
    me: Caller
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.boot()

    def boot(self) -> None:
        """Begin with what is in the store; whatever was under way is lost, as after a kill."""
        self.store = SqliteStore(self.directory / "store.db")
        config = attempt_config(self.directory / "jobs", FakeImages(), self.clock, self.store.instance)
        attempt_service = AttemptService(config)
        devices = [Device("GPU-a", "nvidia", "H100")]
        parts = Parts(
            store=self.store,
            executor=FakeExecutor(self.store.instance, World()),
            attempt_service=attempt_service,
            clock=self.clock,
            capacity=Capacity(4.0, 16 * 1024**3, devices),
            past=SqliteAccounting(self.store),
            inventory=FakeInventory(devices=devices),
            work_queue=ManualLanes(),
            build_queue=ManualLanes(),
            verification_queue=ManualLanes(),
        )
        daemon = Controller(parts)
        daemon.adopt()
        self.service = job_service(
            daemon, self.store, attempt_service, Settings(), self.clock, ChangeBroadcast(), self.directory
        )
        self.books, self.work_queue = SqliteSchedules(self.store), ManualLanes()
        self.timetable = ScheduleTrigger(self.service, self.books, self.work_queue)
        self.schedules = ScheduleService(self.service, self.books, self.timetable)

    def asked(self) -> list[str]:
        """Return a list of the statements that the store is given from now on."""
        asked: list[str] = []
        with self.store.connections.writer() as writer:
            writer.set_trace_callback(asked.append)
        with self.store.connections.reader() as reader:  # the one that the next question gets, too
            reader.set_trace_callback(asked.append)
        return asked

    # --- time

    def at(self, text: str) -> None:
        """Push the clock to a time of day (UTC) and no timetable."""
        wanted = datetime.fromisoformat(text).replace(tzinfo=UTC)
        self.clock.forward((wanted - self.clock.now()).total_seconds())

    def tick(self) -> None:
        self.timetable.tick(self.service.daemon.context.moment())

    def work(self) -> None:
        while self.work_queue.step():
            pass

    def until(self, text: str, every_s: float = 600) -> None:
        """Let time pass up to a time of day (UTC), looking and working all the while."""
        wanted = datetime.fromisoformat(text).replace(tzinfo=UTC)
        while self.clock.now() < wanted:
            self.clock.forward(min(every_s, (wanted - self.clock.now()).total_seconds()))
            self.tick()
            self.work()

    # --- schedules

    def make(self, schedule: str, name: str = "nightly", more: str = "") -> ScheduleRow:
        text = f"name: {name}\nworkload: {{kind: causal_lm, data: stdlib}}\nschedule: {{{schedule}}}\n{more}"
        made = self.schedules.make(self.me, Submission(str(self.directory / "job.yaml"), text.encode()))
        self.tick()
        return made

    def jobs(self) -> list[JobRow]:
        """Return the jobs in the store, in the order of their ids."""
        return sorted(
            self.store.recent(datetime(2000, 1, 1, tzinfo=UTC), None, 1000), key=lambda row: int(row.job.id)
        )

    def names(self) -> list[str]:
        return [row.name for row in self.jobs()]

    def came(self, number: int = 1) -> list[tuple[str, str]]:
        """Return (time, state) of each occasion, the oldest first."""
        rows = self.books.firings(number, 1000)
        return [(f"{row.at:%m-%d %H:%M}", row.state) for row in reversed(rows)]

    def last(self, number: int = 1) -> FiringRow:
        return self.books.firings(number, 1)[0]

    def end(self, job_id: str) -> None:
        """Let a job be over."""
        row = self.service.queries.current(job_id)
        self.service.daemon.apply_event(row, CancelRequested(self.clock.now(), "ann"))
