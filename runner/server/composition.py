"""The composition root of the daemon: store, adapters, control loop and services of one state directory."""

import os
import sys
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from runner.adapters.gpu import amd, nvidia
from runner.adapters.gpu.processes import DeviceProcesses
from runner.adapters.gpu.xid import KernelLog
from runner.adapters.host.clock import SystemClock, boot_id
from runner.adapters.host.code_snapshot.snapshots import CodeLimits, HostCodeSnapshots
from runner.adapters.host.run_directory import numbered, owners
from runner.adapters.slurm.check import SlurmCheck
from runner.adapters.slurm.commands import SlurmCommands
from runner.adapters.sqlite.accounting import SqliteAccounting
from runner.adapters.sqlite.code_use import needed_snapshots
from runner.adapters.sqlite.devices import SqliteDeviceMarks
from runner.adapters.sqlite.notifications import SqliteNotificationFeed
from runner.adapters.sqlite.schedules import SqliteSchedules
from runner.adapters.sqlite.store import SqliteStore, refuse_lost
from runner.agent.attempts.prepare import NO_IMAGE, AttemptConfig
from runner.agent.attempts.service import AttemptService
from runner.agent.devices.disk_rates import DiskRateSampler
from runner.agent.devices.health import DeviceHealthMonitor
from runner.agent.devices.inventory import Inventory
from runner.agent.devices.inventory_types import InventoryRules, PresentDevices
from runner.agent.host_processes import HostProcesses
from runner.agent.package_locks import PackageLocks
from runner.agent.ports import BatchCheck
from runner.base import privileges
from runner.base.broadcast import ChangeBroadcast
from runner.base.fair_executor import FairExecutor
from runner.base.keyed_executor import KeyedExecutor
from runner.base.reach import closed_installation
from runner.control.context import NO_LIMIT_BYTES, NO_LIMIT_CPUS, Capacity, Context, SiteConfig
from runner.control.controller import Controller
from runner.core.devices.state import CleanupRules
from runner.core.policy.economics import estimate_mtbf_s
from runner.core.ports.clock import Clock
from runner.core.ports.executor import Executor
from runner.files.settings.live import LiveSettings
from runner.files.settings.model import Settings
from runner.server.adapters import Adapters
from runner.server.executor_choice import EngineEvidence, choose_executor
from runner.server.executors import slurm_rules
from runner.server.network import watch_network
from runner.server.packages import needed_images
from runner.services.jobs import JobService

if TYPE_CHECKING:
    from runner.core.ports.devices import DeviceHealth, DeviceProbe

log = structlog.get_logger()

BUILD_THREADS: Final = 8
"""Most of them wait for the same build."""

MEMORY_SHARE: Final = 0.9
"""Of the host's memory that jobs may have; the rest is the host's own."""

CHECK_S: Final = 12.0
"""Longest wait of a submission for Slurm: it says within ten seconds that its controller is down."""

MOST_NAMED: Final = 100
"""Run directories without a record that one line of the log names."""

DRIVERS_S: Final = 10.0
"""Longest wait of a start for the first look at the devices; they may also come later."""


def open_store(directory: Path) -> SqliteStore:
    """Return the store of a state directory, checked and with its reserve.

    Raises:
        Refused: it is newer, damaged, missing beside run directories, or its log belongs to another store.
    """
    used = max(map(int, numbered(directory / "jobs")), default=0)
    refuse_lost(directory / "store.db", used)
    store = SqliteStore(directory / "store.db")
    if store.skip(used):
        log.warning("store.older_than_jobs", next_job=used + 1)
    if not store.reserve():
        log.warning("store.no_reserve")
    store.begin_session()
    return store


def build(
    directory: Path,
    settings: Settings,
    store: SqliteStore,
    adapters: Adapters | None = None,
    kernel_log: KernelLog | None = None,
) -> JobService:
    """Return the service of one state directory, not started yet.

    Raises:
        UsageError: jobs are to run in an engine in which they cannot.
    """
    adapters = adapters or Adapters(directory, settings, store.instance)
    executor, engine_problem = _executor(settings, store, adapters)
    store.remember_executor(executor.kind)
    users, clock, accounting = adapters.users(), SystemClock(), SqliteAccounting(store)
    accounting.sum_up(clock.now())  # of a store of an earlier version everything
    live, broadcast = LiveSettings(settings), ChangeBroadcast()
    cards = nvidia.NvidiaProbe()
    inventory = _inventory(settings, store, executor, clock, _watch(cards, clock, kernel_log or KernelLog()))
    limits = CodeLimits(settings.code_bytes, settings.code_files, settings.code_bytes_per_user)
    code = HostCodeSnapshots(directory / "code", users, limits, (directory,))
    code.in_use = partial(_snapshots_in_use, directory, store)
    images, network = adapters.images(), adapters.network(executor)
    packages = adapters.packages(images, executor, users)
    verifier, verification_queue = adapters.verifier(users), FairExecutor("verification")
    attempt_service = AttemptService(
        AttemptConfig(
            instance=store.instance,
            jobs_dir=directory / "jobs",
            in_container=executor.in_container,
            queues=executor.queues,
            images=images,
            packages=packages,
            needed_images=partial(needed_images, store),
            image_reference=live.image_reference,
            network=network,
            log_quota_bytes=settings.log_quota_bytes,
            clock=clock,
            users=users,
            open_directory=adapters.open_run_directory(verifier),
            stop_verifying=verifier.close,
            verification_queue=verification_queue,
            mean_between_s=lambda: estimate_mtbf_s(*store.interruptions()),
            code=code,
            pins=adapters.pins(users) if _pins_mounts(settings, executor) else None,
        )
    )
    attempt_service.sweep()
    watch_network(settings, network)
    context = Context(
        store=store,
        executor=executor,
        attempt_service=attempt_service,
        clock=clock,
        capacity=_capacity(settings, inventory, executor, cards),
        work_queue=KeyedExecutor(settings.launches_at_once),
        build_queue=KeyedExecutor(BUILD_THREADS),
        verification_queue=verification_queue,
        observe_every_s=settings.observe_every_s,
        boot=boot_id(),
        watch_every_s=settings.watch_every_s,
        silence_floor_s=settings.silence_floor_s,
        silence_limits_s=settings.silence_limits_s.model_dump(),
        site=_site(settings),
        past=accounting,
        inventory=inventory,
        disk=DiskRateSampler(adapters.disk(executor), executor.observe),
    )
    return JobService(
        daemon=_controller(context, inventory, broadcast),
        store=store,
        schedules=SqliteSchedules(store),
        usage_report=accounting,
        notification_feed=SqliteNotificationFeed(store),
        users=users,
        attempt_service=attempt_service,
        live=live,
        clock=clock,
        broadcast=broadcast,
        state_dir=directory,
        started_at=clock.now(),
        code=code,
        host_processes=_host_processes(executor, engine_problem),
        batch_check=_batch_check(settings, executor),
        unrecorded=_unrecorded(directory, store),
        package_locks=PackageLocks(
            packages, FairExecutor("packages", threads=8), directory / "images" / "packages"
        ),
        images=images,
    )


def _controller(context: Context, inventory: Inventory, broadcast: ChangeBroadcast) -> Controller:
    controller = Controller(context, changed=broadcast.announce)
    controller.iteration_hooks.append(
        lambda now: inventory.tick(
            now, [controller.tracked_jobs[i].row for i in controller.scheduler.jobs.running]
        )
    )
    inventory.changed = controller.wake
    return controller


def _unrecorded(directory: Path, store: SqliteStore) -> Mapping[str, int | None]:
    """Return the jobs that have a run directory and no row, with the uids of their owners."""
    there = owners(directory / "jobs")
    known = store.known(there)
    found = {job: uid for job, uid in there.items() if job not in known}
    if found:
        log.warning("jobs.not_in_store", count=len(found), jobs=",".join(list(found)[:MOST_NAMED]))
    return found


def _snapshots_in_use(directory: Path, store: SqliteStore, *, finished: bool) -> frozenset[str]:
    """Return the snapshots of unfinished jobs; with ``finished`` of those, too, that have a run directory."""
    there = set(os.listdir(directory / "jobs")) if finished and (directory / "jobs").exists() else set()  # noqa: PTH208
    return needed_snapshots(store, there.__contains__)


def _pins_mounts(settings: Settings, executor: Executor) -> bool:
    return settings.pin_mounts and executor.kind == "docker" and privileges.acts_for_root()


def _host_processes(executor: Executor, engine_problem: str | None) -> HostProcesses | None:
    if executor.in_container:
        return None
    closed = closed_installation() if privileges.acts_for_root() else None
    if closed is not None:
        log.error("packages.refused", interpreter=sys.executable, closed=str(closed), advice="runner doctor")
    has_module = lambda name: find_spec(name) is not None  # noqa: E731  (of this process)
    return HostProcesses(sys.executable, has_module, engine_problem, None if closed is None else str(closed))


def _batch_check(settings: Settings, executor: Executor) -> BatchCheck | None:
    if not executor.queues:
        return None
    commands, is_any = SlurmCommands(settings.slurm.conf, CHECK_S), settings.slurm.partitions is None
    return SlurmCheck(commands, slurm_rules(settings), is_any)


def _site(settings: Settings) -> SiteConfig:
    queue = settings.queue
    for problem in settings.strangers():
        log.warning("settings.unknown_name", problem=problem)
    return SiteConfig(
        queue.rules(),
        queue.windows(),
        queue.utc_offset_s,
        os.uname().nodename,
        learns_levels=queue.switching.levels is None,
    )


def _executor(settings: Settings, store: SqliteStore, adapters: Adapters) -> tuple[Executor, str | None]:
    """Return the executor, and the reason why it is not containers unless the settings say so.

    An engine that is down now still has the attempts it was given.
    """
    evidence = EngineEvidence(
        unfinished=store.executor if store.unfinished() else None,
        used=store.has_run_in(other_than=NO_IMAGE),
        named=bool(settings.engine or os.environ.get("DOCKER_HOST")),
        refusal=adapters.engine_refusal,
    )
    choice = choose_executor(settings.executor, evidence, lambda: adapters.executor("docker").observe())
    if choice.engine_problem:
        log.warning("executor.fallback", chosen=choice.kind, problem=choice.engine_problem)
    return adapters.executor(choice.kind), choice.engine_problem


def _capacity(
    settings: Settings, inventory: Inventory, executor: Executor, cards: nvidia.NvidiaProbe
) -> Capacity:
    if executor.queues:  # the engine has resources of its own, and decides who gets them
        cpus, memory = settings.cpus or NO_LIMIT_CPUS, settings.memory_bytes or NO_LIMIT_BYTES
        return Capacity(cpus, memory, chooses_devices=True)
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    memory = settings.memory_bytes or int(pages * MEMORY_SHARE)
    cpus = settings.cpus or float(len(os.sched_getaffinity(0)))
    devices = PresentDevices(inventory.present)
    return Capacity(cpus, memory, devices, nvidia_problem=lambda: cards.problem)


def _watch(cards: nvidia.NvidiaProbe, clock: Clock, kernel_log: KernelLog) -> DeviceHealthMonitor:
    """Return the monitor that watches the devices from now on; a driver that hangs does not keep us."""
    counts: dict[str, DeviceProbe] = {"nvidia": cards, "amd": amd.AmdProbe()}
    probes: dict[str, DeviceHealth] = {"nvidia": nvidia.NvidiaHealth(), "amd": amd.AmdHealth()}
    watch = DeviceHealthMonitor((), probes, clock, kernel_log.xids, counts=counts)
    watch.start()
    if not watch.await_first(DRIVERS_S):
        log.warning("devices.drivers_silent", waited_s=DRIVERS_S)
    return watch


def _inventory(
    settings: Settings, store: SqliteStore, executor: Executor, clock: Clock, watch: DeviceHealthMonitor
) -> Inventory:
    """Return the devices of this machine."""
    rules = InventoryRules(
        CleanupRules(settings.clean_within_s), settings.shared_devices, settings.host_programs
    )
    inventory = Inventory(
        watch, DeviceProcesses(executor.observe), SqliteDeviceMarks(store, boot_id()), clock, rules
    )
    watch.after_poll = inventory.thread.wake
    inventory.update()
    inventory.thread.start()
    return inventory
