"""The composition root: settings -> adapters -> daemon -> socket.

The only module that knows all the others.  It takes the lock of the state directory first:
two daemons on one state would be two schedulers lending the same devices.
"""

import asyncio
import gc
import io
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import IO, TYPE_CHECKING, Final

import structlog
import uvicorn

from images.settings import ImageSettings
from images.store import ImageStore
from runner.adapters import notify
from runner.adapters.docker.hardening import HardeningSettings
from runner.adapters.docker.images import DockerImages
from runner.adapters.gpu import amd, nvidia
from runner.adapters.gpu.health import DeviceHealthMonitor
from runner.adapters.gpu.processes import DeviceProcesses
from runner.adapters.gpu.xid import KernelLog
from runner.adapters.host.clock import SystemClock, boot_id
from runner.adapters.host.mounts import PinnedMounts
from runner.adapters.host.run_directory import HostRunDirectory, highest
from runner.adapters.host.users import HostUsers
from runner.adapters.process.executor import ProcessExecutor, ProcessSettings
from runner.adapters.sqlite.accounting import SqliteAccounting
from runner.adapters.sqlite.devices import SqliteDeviceMarks
from runner.adapters.sqlite.notifications import SqliteNotificationFeed
from runner.adapters.sqlite.schedules import SqliteSchedules
from runner.adapters.sqlite.store import SqliteStore
from runner.base import logging as logs
from runner.base.broadcast import ChangeBroadcast
from runner.base.errors import Refused, Unavailable
from runner.base.keyed_executor import KeyedExecutor
from runner.base.locks import open_lock, try_lock
from runner.client.autostart import LEAVE_LIMIT_S, SYSTEM_SOCKET
from runner.client.autostart import state_dir as default_state_dir
from runner.control.context import Capacity, Context, SiteConfig
from runner.control.controller import Controller
from runner.control.inventory import Inventory
from runner.control.inventory_types import InventoryRules, PresentDevices
from runner.core.devices.state import CleanupRules
from runner.core.policy.economics import estimate_mtbf_s
from runner.core.ports.clock import Clock
from runner.core.ports.executor import Executor
from runner.files.settings.model import Settings, load_settings
from runner.server.api import devices, rollouts, schedules, status
from runner.server.api.application import application
from runner.server.api.peer import PeerProtocol
from runner.server.api.why import reason
from runner.services.attempts.prepare import AttemptConfig
from runner.services.attempts.service import AttemptService
from runner.services.jobs import JobService
from runner.services.notifications import notifier

if TYPE_CHECKING:
    from runner.core.ports.devices import DeviceHealth, DeviceProbe

Pause = Callable[[float], object]

log = structlog.get_logger()
_NEVER: Final = Event()

MAX_SOCKET_PATH: Final = 107
BUILD_LANES: Final = 8  # most of those who are in one wait for the same build
LENDABLE_MEMORY: Final = 0.9  # the rest is the host's own
SWITCH_S: Final = 0.0002
"""For how long a thread may keep the others waiting; with CPython's 5 ms an answer waits for a whole plan."""

GRACE_S: Final = 2.0  # for answers that are on their way when the daemon leaves
GLANCE_S: Final = 0.2  # clients try the lock to see whether it is taken, and have it for a moment
LOCK_POLL_S: Final = 0.05

DRIVERS_S: Final = 10.0  # how long a start waits for the first look; devices may also come later


class NoSignalHandlers(io.TextIOWrapper):
    """A stream that loses lines when its disk is full: no daemon should stop for want of a log."""

    def write(self, text: str, /) -> int:
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()


class Server(uvicorn.Server):
    """A server that says when it leaves, so that nobody keeps it waiting.

    Whoever has no answer in time is cut off, as by a daemon that died: clients ask again.  The
    server itself would answer that it has failed, which is the end of a command.
    """

    def __init__(
        self, config: uvicorn.Config, leaving: Callable[[], None], asked: Callable[[], bool] = lambda: False
    ) -> None:
        super().__init__(config)
        self._leaving = leaving
        self._asked = asked

    async def main_loop(self) -> None:
        """Serve, unless somebody has asked to leave before the server could hear it."""
        if not self._asked():
            await super().main_loop()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._leaving()
        asyncio.get_running_loop().call_later(GRACE_S, self._hang_up)
        await super().shutdown(sockets)

    def _hang_up(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def serve(socket_path: str | None, state_dir: str | None, settings: str | None) -> int:
    """Serve until asked to leave; return the exit code.

    Raises:
        Refused: another daemon has this state directory, or its store is newer.
        UsageError: the settings are wrong.
        Unavailable: the state directory or the socket cannot be made.
    """
    sys.stderr = NoSignalHandlers(sys.stderr.buffer, errors="backslashreplace", line_buffering=True)
    logs.configure(terminal=sys.stderr.isatty())
    directory = Path(state_dir or default_state_dir(os.environ, os.geteuid())).absolute()
    known = load_settings(Path(settings) if settings else None)
    sys.setswitchinterval(SWITCH_S)
    with _locked(directory) as lock:
        service = build(directory, known)  # before the socket: a store that is refused takes no calls
        path = Path(socket_path or directory / "runner.sock")
        _serve(service, path, leaving=lambda: _sign(lock, "leaving"))
    return 0


def build(directory: Path, settings: Settings) -> JobService:
    """Return the service of one state directory, not started yet."""
    store = SqliteStore(directory / "store.db")
    if store.skip(used := highest(directory / "jobs")):
        log.warning("store.older_than_jobs", next_job=used + 1)
    if not store.reserve():
        log.warning("store.no_reserve")
    executor = _executor(directory, settings, store)
    store.remember_executor(executor.kind)
    clock, broadcast, users = SystemClock(), ChangeBroadcast(), HostUsers()
    inventory = _inventory(settings, store, executor, clock)
    shop = AttemptConfig(
        instance=store.instance,
        jobs_dir=directory / "jobs",
        in_container=executor.kind == "docker",
        images=DockerImages(ImageStore(image_settings(directory, settings))),
        allowed_images=settings.allowed_images,
        network=settings.network,
        log_quota_bytes=settings.log_quota_bytes,
        clock=clock,
        users=users,
        open_directory=HostRunDirectory,
        mean_between_s=lambda: estimate_mtbf_s(*store.interruptions()),
        pins=PinnedMounts(directory / "pins", users) if _may_pin(settings, executor) else None,
    )
    attempt_service = AttemptService(shop)
    attempt_service.sweep()
    context = Context(
        store=store,
        executor=executor,
        attempt_service=attempt_service,
        clock=clock,
        capacity=_capacity(settings, inventory),
        work_queue=KeyedExecutor(settings.launches_at_once),
        build_queue=KeyedExecutor(BUILD_LANES),
        observe_every_s=settings.observe_every_s,
        boot=boot_id(),
        watch_every_s=settings.watch_every_s,
        silence_floor_s=settings.silence_floor_s,
        site=_site(settings),
        past=SqliteAccounting(store),
        inventory=inventory,
    )
    daemon = Controller(context, changed=broadcast.beat)
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
        settings=settings,
        clock=clock,
        broadcast=broadcast,
        state_dir=directory,
        started_at=clock.now(),
    )


def _site(settings: Settings) -> SiteConfig:
    queue = settings.queue
    for problem in settings.strangers():
        log.warning("settings.unknown_name", problem=problem)
    return SiteConfig(queue.rules(), queue.windows(), queue.utc_offset_s, os.uname().nodename)


def image_settings(directory: Path, settings: Settings) -> ImageSettings:
    """Return what the image store is told."""
    return ImageSettings(
        cache_dir=directory / "images",
        engine_url=settings.engine,
        base=settings.base,
        pull=settings.pull,
        builder=settings.builder,
        ca_file=settings.ca_file,
    )


def _may_pin(settings: Settings, executor: Executor) -> bool:
    return settings.pin_mounts and executor.kind == "docker" and os.geteuid() == 0


def _executor(directory: Path, settings: Settings, store: SqliteStore) -> Executor:
    """Return where attempts run; an engine that is down now still has the attempts it was given."""
    processes = ProcessExecutor(ProcessSettings(store.instance, directory / "processes"))
    wanted: str = settings.executor
    if wanted == "auto" and store.unfinished() and store.executor is not None:
        wanted = store.executor
    if wanted == processes.kind:
        return processes
    docker = _docker(directory, settings, store)
    if wanted != "auto":
        return docker
    try:
        docker.observe()
    except Unavailable as error:
        log.warning("executor.fallback", chosen=processes.kind, problem=str(error))
        return processes
    return docker


def _docker(directory: Path, settings: Settings, store: SqliteStore) -> Executor:
    from runner.adapters.docker.executor import DockerExecutor, DockerExecutorSettings, write_hosts_file  # noqa: PLC0415  loads the SDK

    hardened = replace(_hardened(settings, store.instance), hosts_file=write_hosts_file(directory))
    return DockerExecutor(DockerExecutorSettings(hardened, settings.engine))


def _hardened(settings: Settings, instance: str) -> HardeningSettings:
    return HardeningSettings(
        instance=instance,
        runtime=settings.runtime,
        gpu_injection=settings.gpu_injection,
        seccomp=settings.seccomp_text(),
        memlock_unlimited=settings.memlock_unlimited,
        open_files=settings.open_files,
        boot_id=boot_id(),
    )


def _capacity(settings: Settings, inventory: Inventory) -> Capacity:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    memory = settings.memory_bytes or int(pages * LENDABLE_MEMORY)
    cpus = settings.cpus or float(len(os.sched_getaffinity(0)))
    return Capacity(cpus, memory, PresentDevices(inventory.present))


def _inventory(settings: Settings, store: SqliteStore, executor: Executor, clock: Clock) -> Inventory:
    """Return the devices of this machine, looked at from now on; a driver that hangs does not keep us."""
    counts: dict[str, DeviceProbe] = {"nvidia": nvidia.NvidiaProbe(), "amd": amd.AmdProbe()}
    probes: dict[str, DeviceHealth] = {"nvidia": nvidia.NvidiaHealth(), "amd": amd.AmdHealth()}
    watch = DeviceHealthMonitor((), probes, clock, KernelLog(), counts=counts)
    watch.start()
    if not watch.await_first(DRIVERS_S):
        log.warning("devices.drivers_silent", waited_s=DRIVERS_S)
    rules = InventoryRules(
        CleanupRules(settings.clean_within_s), settings.shared_devices, settings.host_programs
    )
    inventory = Inventory(
        watch, DeviceProcesses(executor.observe), SqliteDeviceMarks(store, boot_id()), clock, rules
    )
    watch.looked = inventory.thread.wake
    inventory.take_in()
    inventory.thread.start()
    return inventory


@contextmanager
def _locked(directory: Path, pause: Pause = _NEVER.wait) -> Iterator[IO[bytes]]:
    """Hold the state directory: the lock goes with the process, whatever ends it."""
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        file = os.fdopen(open_lock(directory / "lock"), "r+b")
    except OSError as error:
        raise Unavailable(f"{directory}: {error.strerror}; choose another with RUNNER_STATE_DIR") from error
    with file:
        _take(file, directory, pause)
        _sign(file)
        yield file


def _take(file: IO[bytes], directory: Path, pause: Pause) -> None:
    """Take the lock; a daemon that leaves is waited for, and one that stays has the state.

    Raises:
        Refused: another daemon has it.
    """
    waited_s = 0.0
    while not try_lock(file.fileno(), directory / "lock"):
        pid, *leaves = os.pread(file.fileno(), 64, 0).decode(errors="replace").split() or ["unknown"]
        if waited_s >= (LEAVE_LIMIT_S if leaves else GLANCE_S):
            facts = f"the daemon that leaves (pid {pid}) still has this state; see its log, or kill it"
            stays = f"another daemon (pid {pid}) has this state; runner stop ends it"
            raise Refused(f"{directory}: {facts if leaves else stays}")
        pause(LOCK_POLL_S)
        waited_s += LOCK_POLL_S


def _sign(file: IO[bytes], word: str = "") -> None:
    """Write down whose the lock is, and a word about it."""
    with suppress(OSError):  # on a full disk others must do without; over an old pid there is room
        os.pwrite(file.fileno(), f"{f'{os.getpid()} {word}':<20}".encode(), 0)


@contextmanager
def _listening(path: Path, settings: Settings) -> Iterator[socket.socket]:
    """Listen on a socket for whom it may concern; a stale one gives way, for we hold the lock."""
    everybody = os.geteuid() == 0 if settings.system_wide is None else settings.system_wide
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        _bind(listener, path)
        path.chmod(0o666 if everybody else 0o600)
        listener.listen(1024)  # a crowd that waits for a daemon to start is let in
    except OSError as error:
        listener.close()
        raise Unavailable(f"{path}: cannot listen: {error.strerror or error}") from error
    with listener:
        try:
            yield listener
        finally:
            if str(path) != SYSTEM_SOCKET:  # that one says that there is a daemon of all users
                path.unlink(missing_ok=True)


def _bind(listener: socket.socket, path: Path) -> None:
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH:
        listener.bind(str(path))
        return
    descriptor = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        listener.bind(f"/proc/self/fd/{descriptor}/{path.name}")
    finally:
        os.close(descriptor)


def _serve(service: JobService, path: Path, leaving: Callable[[], None]) -> None:
    """Serve at a path until asked to leave; whatever else must be had is had before anybody is answered."""

    def leave() -> None:
        leaving()  # first: whoever finds nobody listening looks for it
        service.broadcast.leave()

    app = application(service, leave=lambda: os.kill(os.getpid(), signal.SIGTERM))
    config = uvicorn.Config(
        app,
        http=PeerProtocol,
        loop="uvloop",
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=round(GRACE_S) + 1,
    )
    asked: list[int] = []  # while it starts; the server raises what it has heard once more when it has left
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: asked.append(number))
    verifier = rollouts.attach(app, service)
    trigger = schedules.attach(app)
    notifications = notifier(service, notify.sender_for)
    status_threads = status.attach(
        app, service, lambda: devices.by_uuid(service), lambda row: reason(service.daemon, row)["starts_at"]
    )
    with _listening(path, service.settings) as listener:
        service.daemon.start()
        verifier.rollouts.canaries.sweep()
        verifier.start()
        trigger.start()
        notifications.start()
        status_threads.start()
        server = Server(config, leave, lambda: bool(asked))
        gc.freeze()  # what the daemon is made of stays, and need not be looked through again and again
        gc.enable()
        try:
            server.run(sockets=[listener])
        finally:
            notifications.stop()
            trigger.stop()
            verifier.stop()
            status_threads.stop()
            service.daemon.stop()
    log.info("daemon.stopped")
