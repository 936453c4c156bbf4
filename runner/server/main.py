"""The composition root of the daemon: settings, adapters, control loop, services, socket.

It is the only module that knows all the others.  Read ``serve`` first: it takes the lock of the state
directory, builds the daemon, and runs it until it is asked to stop.
"""

import gc
import os
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from images.settings import ImageSettings
from images.store import ImageStore
from runner.adapters import notify
from runner.adapters.docker.hardening import HardeningSettings
from runner.adapters.docker.images import DockerImages
from runner.adapters.gpu import amd, nvidia
from runner.adapters.gpu.health import DeviceHealthMonitor
from runner.adapters.gpu.processes import DeviceProcesses
from runner.adapters.gpu.xid import KernelLog
from runner.adapters.helper.checks import Walls
from runner.adapters.helper.connection import HelperConnection
from runner.adapters.helper.messages import ExecutorKind, ReloadSettings
from runner.adapters.helper.remote import (
    RemoteExecutor,
    RemoteFiles,
    RemoteImages,
    RemoteNetwork,
    RemotePackages,
    RemotePins,
    RemoteRunDirectories,
    RemoteRunDirectory,
)
from runner.adapters.helper.remote_exec import RemoteExec
from runner.adapters.helper.service import Helper
from runner.adapters.host.checkpoints import CheckpointVerifier
from runner.adapters.host.clock import SystemClock, boot_id
from runner.adapters.host.code_snapshot.snapshots import CodeLimits, HostCodeSnapshots
from runner.adapters.host.mounts import PinnedMounts
from runner.adapters.host.run_directories import HostRunDirectories
from runner.adapters.host.run_directory import HostRunDirectory, owners
from runner.adapters.host.users import HostUsers
from runner.adapters.process.exec import ProcessExec
from runner.adapters.process.executor import ProcessExecutor, ProcessSettings
from runner.adapters.sqlite.accounting import SqliteAccounting
from runner.adapters.sqlite.code_use import needed_snapshots
from runner.adapters.sqlite.devices import SqliteDeviceMarks
from runner.adapters.sqlite.notifications import SqliteNotificationFeed
from runner.adapters.sqlite.schedules import SqliteSchedules
from runner.adapters.sqlite.store import SqliteStore, refuse_lost
from runner.base import logging as logs
from runner.base import privileges
from runner.base.broadcast import ChangeBroadcast
from runner.base.fair_executor import FairExecutor
from runner.base.keyed_executor import KeyedExecutor
from runner.base.threads import PeriodicThread
from runner.client.autostart import state_dir as default_state_dir
from runner.control.context import Capacity, Context, SiteConfig
from runner.control.controller import Controller
from runner.control.inventory import Inventory
from runner.control.inventory_types import InventoryRules, PresentDevices
from runner.core.devices.state import CleanupRules
from runner.core.policy.economics import estimate_mtbf_s
from runner.core.ports.clock import Clock
from runner.core.ports.exec import ExecPort
from runner.core.ports.executor import Executor
from runner.core.ports.images import Images
from runner.core.ports.packages import Packages
from runner.core.ports.users import MountPins, UnknownUids, User
from runner.files.settings.live import LiveSettings, OfferedImages
from runner.files.settings.model import Settings, load_settings
from runner.server.api import devices, rollouts, schedules, sessions, status
from runner.server.api import retention as retention_api
from runner.server.api import settings as settings_api
from runner.server.api.application import application
from runner.server.api.why import reason
from runner.server.executor_choice import EngineEvidence, choose_executor
from runner.server.listen import BACKLOG, ask_to_stop, bound, catch_stop_signals, keep_from_hangup, server_of
from runner.server.network import make_network, watch_network
from runner.server.packages import make_packages, needed_images
from runner.server.reload import SettingsReload, reload_helper
from runner.server.split import daemon_user, split
from runner.server.state_lock import StateLock, hold_state
from runner.services.attempts.prepare import NO_IMAGE, AttemptConfig
from runner.services.attempts.service import AttemptService
from runner.services.disk_quota import DiskQuotas
from runner.services.host_processes import HostProcesses
from runner.services.jobs import JobService
from runner.services.notifications import make_notifications
from runner.services.package_locks import PackageLocks
from runner.services.retention import RetentionService, RunDirectories

if TYPE_CHECKING:
    from runner.core.ports.devices import DeviceHealth, DeviceProbe

log = structlog.get_logger()

BUILD_THREADS: Final = 8
"""Most of them wait for the same build."""

MEMORY_SHARE: Final = 0.9
"""Of the host's memory that jobs may have; the rest is the host's own."""

MOST_NAMED: Final = 100
"""Run directories without a record that one line of the log names."""

SWITCH_S: Final = 0.0002
"""How long a thread may keep the others waiting; with CPython's 5 ms an answer waits for a whole plan."""

CODE_SWEEP_S: Final = 3600.0
"""Between two looks for snapshots of code that no job needs."""

DRIVERS_S: Final = 10.0
"""Longest wait of a start for the first look at the devices; they may also come later."""


def serve(socket_path: str | None, state_dir: str | None, settings: str | None) -> int:
    """Run a daemon until it is asked to stop, and return the exit code.

    Raises:
        Refused: another daemon has this state directory, or its store is newer.
        UsageError: the settings are wrong.
        Unavailable: the state directory or the socket cannot be made.
    """
    directory = Path(state_dir or default_state_dir(os.environ, os.geteuid())).absolute()
    sys.stderr = logs.standard_error(directory / "daemon.log")
    logs.configure(terminal=sys.stderr.isatty())
    keep_from_hangup()
    known = load_settings(Path(settings) if settings else None)
    sys.setswitchinterval(SWITCH_S)
    place, file = Path(socket_path or directory / "runner.sock"), Path(settings) if settings else None
    user = daemon_user(known)
    with hold_state(directory) as lock:
        daemon = Start(directory, known, file, place, lock)
        if user is None:
            return _serve(daemon)
        kernel_log = KernelLog()
        kernel_log.open()  # which may take root's rights
        with bound(place, system_wide=_is_system_wide(known)) as made:
            part = split(directory, user, partial(_make_helper, daemon, user.pw_uid), made)
            if isinstance(part, int):
                return part
            lock.write()
            return _serve(daemon, Parts(part, kernel_log, made))


@dataclass(frozen=True, slots=True)
class Start:
    """What a daemon is started with."""

    directory: Path
    settings: Settings
    settings_file: Path | None
    socket: Path
    lock: StateLock


@dataclass(frozen=True, slots=True)
class Parts:
    """What a daemon that has given up root was given before."""

    helper: HelperConnection
    kernel_log: KernelLog
    socket: socket.socket


def _serve(start: Start, parts: Parts | None = None) -> int:
    directory, settings = start.directory, start.settings
    with closing(open_store(directory)) as store, ExitStack() as stack:
        # before the socket: a store that is refused takes no calls
        service = build(directory, settings, store, parts)
        made = (
            parts.socket
            if parts
            else stack.enter_context(bound(start.socket, system_wide=_is_system_wide(settings)))
        )
        reload = SettingsReload(service, start.settings_file)
        if parts:
            reload.after = lambda: parts.helper.ask(ReloadSettings())
        commands = (
            RemoteExec(parts.helper)
            if parts
            else _commands(directory, settings, service.daemon.context.executor.kind)
        )
        directories = RemoteRunDirectories(parts.helper, directory / "jobs") if parts else None
        ends = Ends(commands, directories or HostRunDirectories(directory / "jobs"), start.lock.mark_leaving)
        run(service, made, ends, reload)
    return 0


def _make_helper(start: Start, daemon_uid: int) -> Helper:
    """Return the helper, which acts with root's rights for the rest of the daemon."""
    directory, settings = start.directory, start.settings
    run_as = settings.root_jobs_run_as
    users = HostUsers(_unknown_uids(settings), instead_of_root=(run_as.uid, run_as.gid))
    walls = Walls(directory, daemon_uid, (run_as.uid, run_as.gid), users.account_problem)
    images = _images(directory, settings)
    return Helper(
        walls=walls,
        executor_setting=settings.executor,
        allowed_images=settings.allowed_images,
        make_executor=partial(_local_executor, directory, settings),
        images=images,
        make_packages=lambda kind: make_packages(directory, settings, images, in_container=kind == "docker"),
        image_records=image_settings(directory, settings).cache_dir,
        users=users,
        pins=PinnedMounts(directory / "pins", users),
        make_network=partial(make_network, settings),
        make_commands=partial(_commands, directory, settings),
        reload=partial(reload_helper, LiveSettings(settings), start.settings_file),
    )


def open_store(directory: Path) -> SqliteStore:
    """Return the store of a state directory, checked and with its reserve.

    Raises:
        Refused: it is newer, damaged, missing beside run directories, or its log belongs to another store.
    """
    used = max((int(name) for name in owners(directory / "jobs")), default=0)
    refuse_lost(directory / "store.db", used)
    store = SqliteStore(directory / "store.db")
    if store.skip(used):
        log.warning("store.older_than_jobs", next_job=used + 1)
    if not store.reserve():
        log.warning("store.no_reserve")
    store.begin_session()
    return store


def build(directory: Path, settings: Settings, store: SqliteStore, parts: Parts | None = None) -> JobService:
    """Return the service of one state directory, not started yet."""
    helper = parts.helper if parts else None
    executor, engine_problem = _executor(directory, settings, store, helper)
    store.remember_executor(executor.kind)
    clock, broadcast = SystemClock(), ChangeBroadcast()
    users = _users(directory, settings, helper)
    inventory = _inventory(settings, store, executor, clock, parts.kernel_log if parts else KernelLog())
    verification_queue = FairExecutor("verification")
    verifier = _verifier(directory, settings, users, helper)
    live = LiveSettings(settings)
    network = RemoteNetwork.of(helper) if helper else make_network(settings, store.instance, executor)
    images = RemoteImages(helper) if helper else _images(directory, settings)
    packages = _packages(directory, settings, images, executor, helper)
    config = AttemptConfig(
        instance=store.instance,
        jobs_dir=directory / "jobs",
        in_container=executor.kind == "docker",
        images=images,
        packages=packages,
        needed_images=partial(needed_images, store),
        allowed_images=OfferedImages(live),
        network=network,
        log_quota_bytes=settings.log_quota_bytes,
        clock=clock,
        users=users,
        open_directory=partial(RemoteRunDirectory, verifier=verifier, helper=helper)
        if helper
        else partial(HostRunDirectory, verifier=verifier),
        stop_verifying=verifier.close,
        verification_queue=verification_queue,
        mean_between_s=lambda: estimate_mtbf_s(*store.interruptions()),
        pins=_pins(directory, settings, executor, users, helper),
    )
    code = HostCodeSnapshots(directory / "code", users, _code_limits(settings), (directory,))
    code.in_use = partial(_snapshots_in_use, directory, store)
    attempt_service = AttemptService(replace(config, code=code))
    package_locks = PackageLocks(packages, FairExecutor("packages"), directory / "images" / "packages")
    attempt_service.sweep()
    watch_network(settings, network)
    context = Context(
        store=store,
        executor=executor,
        attempt_service=attempt_service,
        clock=clock,
        capacity=_capacity(settings, inventory),
        work_queue=KeyedExecutor(settings.launches_at_once),
        build_queue=KeyedExecutor(BUILD_THREADS),
        verification_queue=verification_queue,
        observe_every_s=settings.observe_every_s,
        boot=boot_id(),
        watch_every_s=settings.watch_every_s,
        silence_floor_s=settings.silence_floor_s,
        silence_limits_s=settings.silence_limits_s.model_dump(),
        site=_site(settings),
        past=SqliteAccounting(store),
        inventory=inventory,
    )
    daemon = Controller(context, changed=broadcast.announce)
    daemon.loop.iteration_hooks.append(
        lambda now: inventory.tick(now, [daemon.tracked_jobs[i].row for i in daemon.scheduler.jobs.running])
    )
    inventory.changed = daemon.wake
    return JobService(
        daemon=daemon,
        store=store,
        schedules=SqliteSchedules(store),
        usage_report=SqliteAccounting(store),
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
        unrecorded=_unrecorded(directory, store),
        package_locks=package_locks,
    )


def _unrecorded(directory: Path, store: SqliteStore) -> Mapping[str, int | None]:
    """Return the jobs that have a run directory and no row, with the uids of their owners."""
    known = store.ids()
    found = {job: uid for job, uid in owners(directory / "jobs").items() if job not in known}
    if found:
        log.warning("jobs.not_in_store", count=len(found), jobs=",".join(list(found)[:MOST_NAMED]))
    return found


def _snapshots_in_use(directory: Path, store: SqliteStore, *, finished: bool) -> frozenset[str]:
    """Return the snapshots of unfinished jobs; with ``finished`` of those, too, that have a run directory."""
    there = set(os.listdir(directory / "jobs")) if finished and (directory / "jobs").exists() else set()  # noqa: PTH208
    return needed_snapshots(store, there.__contains__)


def _sweep_code(service: JobService) -> None:
    freed = 0 if service.code is None else service.code.sweep()
    if freed:
        log.info("code.swept", freed_bytes=freed)


def _code_limits(settings: Settings) -> CodeLimits:
    return CodeLimits(settings.code_bytes, settings.code_files, settings.code_bytes_per_user)


def _users(directory: Path, settings: Settings, helper: HelperConnection | None) -> HostUsers:
    if helper is None:
        return HostUsers(_unknown_uids(settings))
    files = RemoteFiles(helper, directory / "jobs")
    return HostUsers(_unknown_uids(settings), connect=helper.open_broker, open_directory=files.open_directory)


def _verifier(
    directory: Path, settings: Settings, users: HostUsers, helper: HelperConnection | None
) -> CheckpointVerifier:
    if helper is not None:
        return CheckpointVerifier(settings.verify_within_s, files=RemoteFiles(helper, directory / "jobs"))
    return CheckpointVerifier(
        settings.verify_within_s,
        lambda owner, parent, name: users.open_beneath_as_user(
            User(owner.uid, owner.gid, (owner.gid,), owner.name), parent, name
        ),
    )


def _pins(
    directory: Path,
    settings: Settings,
    executor: Executor,
    users: HostUsers,
    helper: HelperConnection | None,
) -> MountPins | None:
    if not (settings.pin_mounts and executor.kind == "docker" and privileges.acts_for_root()):
        return None
    return RemotePins(helper) if helper else PinnedMounts(directory / "pins", users)


def _host_processes(executor: Executor, engine_problem: str | None) -> HostProcesses | None:
    if executor.kind == "docker":
        return None
    return HostProcesses(sys.executable, lambda: find_spec("torch") is not None, engine_problem)


def _is_system_wide(settings: Settings) -> bool:
    return privileges.acts_for_root() if settings.system_wide is None else settings.system_wide


def _unknown_uids(settings: Settings) -> UnknownUids:
    """Return what is done with uids that have no account; one's own daemon serves its user alone anyway."""
    return settings.unknown_uids or ("refuse" if settings.serves_all_users else "accept")


def _site(settings: Settings) -> SiteConfig:
    queue = settings.queue
    for problem in settings.strangers():
        log.warning("settings.unknown_name", problem=problem)
    return SiteConfig(queue.rules(), queue.windows(), queue.utc_offset_s, os.uname().nodename)


def _packages(
    directory: Path, settings: Settings, images: Images, executor: Executor, helper: HelperConnection | None
) -> Packages:
    if helper is not None:
        return RemotePackages(helper)
    return make_packages(directory, settings, images, in_container=executor.kind == "docker")


def _images(directory: Path, settings: Settings) -> DockerImages:
    return DockerImages(ImageStore(image_settings(directory, settings)))


def image_settings(directory: Path, settings: Settings) -> ImageSettings:
    """Return the settings of the image store."""
    return ImageSettings(
        cache_dir=directory / "images",
        engine_url=settings.engine,
        base=settings.base,
        pull=settings.pull,
        builder=settings.builder,
        ca_file=settings.ca_file,
    )


def _executor(
    directory: Path, settings: Settings, store: SqliteStore, helper: HelperConnection | None
) -> tuple[Executor, str | None]:
    """Return where attempts run, and why not in containers unless the settings say so.

    An engine that is down now still has the attempts it was given.
    """

    def make(kind: ExecutorKind) -> Executor:
        if helper is not None:
            return RemoteExecutor(helper, kind, store.instance)
        return _local_executor(directory, settings, kind, store.instance)

    evidence = EngineEvidence(
        unfinished=store.executor if store.unfinished() else None,
        used=store.has_run_in(other_than=NO_IMAGE),
        named=bool(settings.engine or os.environ.get("DOCKER_HOST")),
    )
    choice = choose_executor(settings.executor, evidence, lambda: make("docker").observe())
    if choice.kind == "docker":
        return make("docker"), None
    if choice.engine_problem:
        log.warning("executor.fallback", chosen=choice.kind, problem=choice.engine_problem)
    return make("process"), choice.engine_problem


def _local_executor(directory: Path, settings: Settings, kind: str, instance: str) -> Executor:
    if kind == "process":
        return ProcessExecutor(ProcessSettings(instance, directory / "processes"))
    from runner.adapters.docker.executor import DockerExecutor, DockerExecutorSettings, write_hosts_file  # noqa: PLC0415  loads the SDK

    hardened = replace(_hardened(settings, instance), hosts_file=write_hosts_file(directory))
    choose = settings.gpu_injection == "auto"
    return DockerExecutor(DockerExecutorSettings(hardened, settings.engine, choose_injection=choose))


def _commands(directory: Path, settings: Settings, kind: str) -> ExecPort:
    """Return what runs commands inside of attempts."""
    if kind == "process":
        return ProcessExec(directory / "processes")
    from runner.adapters.docker.exec import DockerExec  # noqa: PLC0415  loads the SDK

    return DockerExec(settings.engine)


def _hardened(settings: Settings, instance: str) -> HardeningSettings:
    return HardeningSettings(
        instance=instance,
        runtime=settings.runtime,
        gpu_injection="hook" if settings.gpu_injection == "hook" else "cdi",
        seccomp=settings.seccomp_text(),
        apparmor=settings.apparmor,
        user_namespace=settings.user_namespace,
        memlock_unlimited=settings.memlock_unlimited,
        open_files=settings.open_files,
        boot_id=boot_id(),
    )


def _capacity(settings: Settings, inventory: Inventory) -> Capacity:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    memory = settings.memory_bytes or int(pages * MEMORY_SHARE)
    cpus = settings.cpus or float(len(os.sched_getaffinity(0)))
    return Capacity(cpus, memory, PresentDevices(inventory.present))


def _inventory(
    settings: Settings, store: SqliteStore, executor: Executor, clock: Clock, kernel_log: KernelLog
) -> Inventory:
    """Return the devices of this machine, looked at from now on; a driver that hangs does not keep us."""
    counts: dict[str, DeviceProbe] = {"nvidia": nvidia.NvidiaProbe(), "amd": amd.AmdProbe()}
    probes: dict[str, DeviceHealth] = {"nvidia": nvidia.NvidiaHealth(), "amd": amd.AmdHealth()}
    watch = DeviceHealthMonitor((), probes, clock, kernel_log, counts=counts)
    watch.start()
    if not watch.await_first(DRIVERS_S):
        log.warning("devices.drivers_silent", waited_s=DRIVERS_S)
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


@dataclass(frozen=True, slots=True)
class Ends:
    """What the server is given besides the services: adapters, and what it does first when it stops."""

    commands: ExecPort
    directories: RunDirectories
    mark_leaving: Callable[[], None]


def run(service: JobService, listener: socket.socket, ends: Ends, reload: SettingsReload) -> None:
    """Serve at a socket until asked to stop; all that can fail is made before a client is answered."""

    def stopping() -> None:
        ends.mark_leaving()  # first: a client that finds no socket looks for it
        service.broadcast.leave()
        service.attempt_service.stop_verifying()

    asked_to_stop = catch_stop_signals()
    app = application(service, leave=ask_to_stop)
    sessions.attach(app, service, ends.commands)
    settings_api.attach(app, reload)
    retention = retention_api.attach(app, RetentionService(service, ends.directories))
    disk_quotas = DiskQuotas(service, ends.directories).thread()
    verifier = rollouts.attach(app, service)
    trigger = schedules.attach(app)
    notifications = make_notifications(service, notify.sender_for)
    status_threads = status.attach(
        app, service, lambda: devices.by_uuid(service), lambda row: reason(service.daemon, row)["starts_at"]
    )
    code_sweep = PeriodicThread("code-sweep", CODE_SWEEP_S, partial(_sweep_code, service))
    listener.listen(BACKLOG)
    service.daemon.start()
    verifier.rollouts.canaries.cancel_orphans()
    verifier.start()
    trigger.start()
    notifications.start()
    status_threads.start()
    code_sweep.start()
    retention.start()
    disk_quotas.start()
    server = server_of(app, stopping, asked_to_stop, reload.reload_and_log)
    gc.freeze()  # what the daemon is made of stays, and need not be searched again and again
    gc.enable()
    try:
        server.run(sockets=[listener])
    finally:
        notifications.stop()
        trigger.stop()
        verifier.stop()
        status_threads.stop()
        retention.stop()
        disk_quotas.stop()
        code_sweep.stop()
        service.daemon.stop()
    log.info("daemon.stopped")
