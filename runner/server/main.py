"""The process of the daemon: its lock, its socket and its end.

Read ``serve`` first: it takes the lock of the state directory, builds the daemon (``composition``), and runs
it until it is asked to stop.
"""

import gc
import os
import pwd
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import structlog

from runner.adapters import notify
from runner.adapters.gpu.xid import KernelLog
from runner.adapters.host.curve_files import CurveFiles
from runner.adapters.host.mounts import PinnedMounts
from runner.adapters.host.users import HostUsers
from runner.adapters.privileged.checks import Walls
from runner.adapters.privileged.client import PrivilegedClient
from runner.adapters.privileged.site import PrivilegedSite
from runner.base import logging as logs
from runner.base import privileges
from runner.base.heap import share_one_heap
from runner.base.threads import PeriodicThread
from runner.client.autostart import state_dir as default_state_dir
from runner.core.ports.exec import ExecPort
from runner.files.settings.live import LiveSettings
from runner.files.settings.model import Settings, load_settings
from runner.server.adapters import (
    Adapters,
    SplitAdapters,
    find_engine_refusal,
    image_settings,
    local_images,
    unknown_uids,
)
from runner.server.api import curves, devices, rollouts, schedules, sessions, status, sweeps
from runner.server.api import retention as retention_api
from runner.server.api import settings as settings_api
from runner.server.api.application import application
from runner.server.api.why import reason
from runner.server.composition import build, open_store
from runner.server.doctor import watch_machine
from runner.server.executors import local_commands, local_executor
from runner.server.leaving import StopDeadline, end_threads
from runner.server.listen import BACKLOG, ask_to_stop, bound, catch_stop_signals, keep_from_hangup, server_of
from runner.server.network import make_network
from runner.server.packages import make_packages
from runner.server.plugins import log_plugins
from runner.server.reload import SettingsReload, reload_helper
from runner.server.split import daemon_user, split
from runner.server.state_lock import StateLock, hold_state
from runner.server.state_place import check_installation, check_state_place
from runner.services.curves import CurveService
from runner.services.disk_quota import DiskQuotas
from runner.services.jobs import JobService
from runner.services.notifications import make_notifications
from runner.services.retention import RetentionService, RunDirectories
from runner.services.sweeps import SweepService

log = structlog.get_logger()

SWITCH_S: Final = 0.0002
"""Longest wait of threads for another one; with CPython's 5 ms an answer waits for a whole plan."""

CODE_SWEEP_S: Final = 3600.0
"""Between two looks for snapshots of code that no job needs."""


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
    log_plugins()
    sys.setswitchinterval(SWITCH_S)
    share_one_heap()
    place, file = Path(socket_path or directory / "runner.sock"), Path(settings) if settings else None
    user = daemon_user(known)
    check_installation(known)
    check_state_place(directory, known)
    with hold_state(directory) as lock:
        daemon = DaemonStart(directory, known, file, place, lock, find_engine_refusal(known))
        code = _serve(daemon) if user is None else _serve_in_two(daemon, user)
        end_threads(code)  # while the state is held: a launch that is under way is this daemon's
        return code


@dataclass(frozen=True, slots=True)
class DaemonStart:
    """Parameters with which a daemon starts."""

    directory: Path
    settings: Settings
    settings_file: Path | None
    socket: Path
    lock: StateLock
    engine_refusal: str | None


@dataclass(frozen=True, slots=True)
class Parts:
    """Resources that a daemon got before it gave up root."""

    helper: PrivilegedClient
    kernel_log: KernelLog
    socket: socket.socket


def _serve_in_two(start: DaemonStart, user: pwd.struct_passwd) -> int:
    """Serve without rights, or help whoever does, and return the exit code; each in a process of its own."""
    kernel_log = KernelLog()
    kernel_log.open()  # which may take root's rights
    settings = start.settings
    with bound(start.socket, system_wide=_is_system_wide(settings)) as made:
        make_site = partial(_privileged_site, start, user.pw_uid)
        part = split(start.directory, user, make_site, made, settings.stop_within_s)
        if isinstance(part, int):
            return part
        start.lock.write()
        start.lock.leave_directory()  # which is root's; the helper keeps it
        return _serve(start, Parts(part, kernel_log, made))


def _serve(start: DaemonStart, parts: Parts | None = None) -> int:
    directory, settings = start.directory, start.settings
    with closing(open_store(directory)) as store, ExitStack() as stack:
        # before the socket: a store that is refused takes no calls
        kernel_log = parts.kernel_log if parts else None
        adapters = (
            SplitAdapters(directory, settings, store.instance, start.engine_refusal, helper=parts.helper)
            if parts
            else Adapters(directory, settings, store.instance, start.engine_refusal)
        )
        service = build(directory, settings, store, adapters, kernel_log)
        if not parts:
            watch_machine(directory, settings).start()
        listener = (
            parts.socket
            if parts
            else stack.enter_context(bound(start.socket, system_wide=_is_system_wide(settings)))
        )
        reload = SettingsReload(service, start.settings_file, after=adapters.settings_changed)
        commands = adapters.commands(service.daemon.context.executor.kind)
        run(service, listener, Ends(commands, adapters.run_directories(), start.lock.mark_leaving), reload)
    return 0


def _privileged_site(start: DaemonStart, daemon_uid: int) -> PrivilegedSite:
    """Return the knowledge of the helper, which acts with root's rights for the rest of the daemon."""
    directory, settings = start.directory, start.settings
    run_as = settings.root_jobs_run_as
    watch_machine(directory, settings).start()  # with the rights that tell what jobs can reach
    users = HostUsers(unknown_uids(settings), instead_of_root=(run_as.uid, run_as.gid))
    walls = Walls(directory, daemon_uid, (run_as.uid, run_as.gid), users.account_problem)
    images = local_images(directory, settings)
    return PrivilegedSite(
        walls=walls,
        executor_setting=settings.executor,
        allowed_images=settings.allowed_images,
        allowed_system=settings.allowed_system_packages,
        allows_dockerfiles=settings.allows_dockerfiles,
        make_executor=partial(local_executor, directory, settings),
        images=images,
        make_packages=lambda kind: make_packages(
            directory, settings, images, users, in_container=kind == "docker"
        ),
        image_records=image_settings(directory, settings).cache_dir,
        users=users,
        pins=PinnedMounts(directory / "pins", users),
        make_network=partial(make_network, settings),
        make_commands=partial(local_commands, directory, settings),
        reload=partial(reload_helper, LiveSettings(settings), start.settings_file),
    )


def _is_system_wide(settings: Settings) -> bool:
    return privileges.acts_for_root() if settings.system_wide is None else settings.system_wide


class Part(Protocol):
    """A part of the daemon that works on threads of its own."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Ends:
    """Inputs of the server besides the services: adapters, and what it does first when it stops."""

    commands: ExecPort
    directories: RunDirectories
    mark_leaving: Callable[[], None]


def run(service: JobService, listener: socket.socket, ends: Ends, reload: SettingsReload) -> None:
    """Serve at a socket until asked to stop; all that can fail is made before a client is answered."""

    def stopping() -> None:
        ends.mark_leaving()  # first: a client that finds no socket looks for it
        service.broadcast.leave()
        service.attempt_service.stop_verifying()

    deadline = StopDeadline(service.live.value.stop_within_s)
    asked_to_stop = catch_stop_signals(deadline)
    app = application(service, leave=ask_to_stop)
    sessions.attach(app, service, ends.commands)
    settings_api.attach(app, reload)
    retention = retention_api.attach(app, RetentionService(service, ends.directories))
    disk_quotas = DiskQuotas(service, ends.directories).thread()
    verifier = rollouts.attach(app, service)
    trigger = schedules.attach(app)
    monitor, metrics_port = status.attach(
        app, service, lambda: devices.by_uuid(service), lambda row: reason(service.daemon, row)["starts_at"]
    )
    curve_service = CurveService(service, CurveFiles(service.state_dir / "curves"))
    curve_thread = curves.attach(app, curve_service)
    sweep_thread = sweeps.attach(app, SweepService(service, curve_service))
    notifications = make_notifications(service, notify.sender_for, curve_service.reported)
    code_sweep = PeriodicThread("code-sweep", CODE_SWEEP_S, partial(_sweep_code, service))
    listener.listen(BACKLOG)
    service.daemon.start()
    verifier.rollouts.canaries.cancel_orphans()
    # They stop while the control loop still runs, which writes what the monitor saw last.
    parts: tuple[Part, ...] = (
        notifications, trigger, verifier, *filter(None, (metrics_port,)), monitor,
        code_sweep, curve_thread, sweep_thread, retention, disk_quotas,
    )  # fmt: skip
    for each in parts:
        each.start()
    server = server_of(app, stopping, asked_to_stop, reload.reload_and_log, deadline)
    gc.freeze()  # what the daemon is made of stays, and need not be searched again and again
    gc.enable()
    try:
        server.run(sockets=[listener])
    finally:
        for each in parts:
            each.stop()
        curve_service.stop()
        service.daemon.stop()
    log.info("daemon.stopped")


def _sweep_code(service: JobService) -> None:
    freed = 0 if service.code is None else service.code.sweep()
    if freed:
        log.info("code.swept", freed_bytes=freed)
