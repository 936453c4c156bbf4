"""A machine whose engine and store outlive the daemon, and where nothing happens unless a test says so."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from runner.adapters.sqlite.accounting import SqliteAccounting
from runner.adapters.sqlite.store import SqliteStore
from runner.control.context import Capacity, SiteConfig
from runner.control.context import Context as Parts
from runner.control.controller import Controller
from runner.core.job.model import Job
from runner.core.job.revision_text import RevisionText
from runner.core.job.states import Preparing
from runner.core.policy.model import Policy
from runner.core.ports.devices import Device
from runner.core.ports.executor import Key
from runner.core.ports.store import JobRow
from runner.core.ports.users import Owner
from tests.fakes.daemon.attempts import FakeAttempts
from tests.fakes.daemon.clock import FakeClock
from tests.fakes.engine.executor import FakeBatchExecutor, FakeExecutor, World
from tests.fakes.engine.keyed_executor import AtOnce, ManualLanes
from tests.fakes.gpu.vitals import FakeInventory

ANN = Owner(1001, 1001, "ann")
GPUS = (Device("GPU-a", "nvidia", "H100"), Device("GPU-b", "nvidia", "H100"))


@dataclass
class Host:
    """A machine: a store and an engine that outlive the daemon, and a daemon that can be killed."""

    path: Path
    context: World = field(default_factory=World)
    clock: FakeClock = field(default_factory=FakeClock)
    site: SiteConfig = field(default_factory=SiteConfig)
    inventory: FakeInventory = field(default_factory=lambda: FakeInventory(devices=list(GPUS)))

    silence_limits_s: Mapping[str, float | None] = field(default_factory=dict)
    queues: bool = False  # the engine has a queue of its own

    def __post_init__(self) -> None:
        self.boot()

    def boot(self) -> None:
        """Start a daemon over what is there; whatever the one before had not done is lost."""
        self.store = SqliteStore(self.path / "store.db")
        if not hasattr(self, "attempt_service"):
            self.attempt_service = FakeAttempts(self.store.instance)
        make = FakeBatchExecutor if self.queues else FakeExecutor
        self.executor = make(self.store.instance, self.context)
        self.work_queue, self.build_queue = ManualLanes(), ManualLanes()
        parts = Parts(
            store=self.store,
            executor=self.executor,
            attempt_service=self.attempt_service,
            clock=self.clock,
            capacity=Capacity(4.0, 16 * 1024**3, self.inventory.devices, self.queues),
            work_queue=self.work_queue,
            build_queue=self.build_queue,
            verification_queue=self.work_queue,
            site=self.site,
            past=SqliteAccounting(self.store),
            inventory=self.inventory,
            boot="boot-1",
            silence_limits_s=self.silence_limits_s,
        )
        self.daemon = Controller(parts)
        self.daemon.watchdog.work = AtOnce()
        self.daemon.adopt()

    def submit(
        self, name: str = "job", policy: Policy | None = None, time_limit: timedelta | None = None
    ) -> str:
        job = Job(self.store.next_id(), Preparing(self.clock.now()), time_limit=time_limit)
        if policy is not None:
            self.attempt_service.policies[job.id] = policy
        self.daemon.submit(
            (JobRow(job, name, ANN, self.clock.now(), 50, RevisionText.of("{}")),), ("submitted",)
        )
        return job.id

    def row(self, job_id: str) -> JobRow:
        row = self.store.get(job_id)
        assert row is not None
        return row

    def state(self, job_id: str) -> str:
        return self.row(job_id).job.state.kind

    def key(self, job_id: str, attempt: int = 1) -> Key:
        return Key(self.store.instance, job_id, attempt)

    def settle(self, rounds: int = 12) -> None:
        """Let everything happen that needs no time to pass."""
        for _ in range(rounds):
            while self.build_queue.step() or self.work_queue.step():
                self.daemon.run_once(0)
            self.daemon.observer.observe()
            self.daemon.run_once(0)

    def wait(self, seconds: float) -> None:
        self.clock.forward(seconds)
        self.daemon.run_once(0)
        self.settle()


@contextmanager
def fresh_host(*, queues: bool = False) -> Iterator[Host]:
    memory = Path("/dev/shm")  # hundreds of stores: an fsync each would be most of the time
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as path:
        yield Host(Path(path), queues=queues)
