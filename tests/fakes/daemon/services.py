"""The services of a test, on the real adapters of the host and of SQLite."""

from pathlib import Path

from runner.adapters.host.run_directory import HostRunDirectory
from runner.adapters.sqlite.accounting import SqliteAccounting
from runner.adapters.sqlite.notifications import SqliteNotificationFeed
from runner.adapters.sqlite.schedules import SqliteSchedules
from runner.adapters.sqlite.store import SqliteStore
from runner.agent.attempts.prepare import AttemptConfig
from runner.agent.attempts.service import AttemptService
from runner.agent.package_locks import PackageLocks
from runner.base.broadcast import ChangeBroadcast
from runner.base.fair_executor import FairExecutor
from runner.control.controller import Controller
from runner.core.ports.clock import Clock
from runner.core.ports.images import Images
from runner.core.ports.packages import Packages
from runner.files.settings.live import LiveSettings
from runner.files.settings.model import Settings
from runner.services.jobs import JobService
from tests.fakes.daemon.users import DirectUsers

USERS = DirectUsers()
"""One for all daemons of a test process: it may start a process of its own."""


def attempt_config(
    jobs_dir: Path, images: Images, clock: Clock, instance: str = "i1", packages: Packages | None = None
) -> AttemptConfig:
    """Return what an attempt service of a test is given; it launches containers."""
    return AttemptConfig(
        instance=instance,
        jobs_dir=jobs_dir,
        in_container=True,
        images=images,
        image_reference={"ours": "site/ours:1"}.get,
        network=None,
        log_quota_bytes=1024**2,
        clock=clock,
        users=USERS,
        open_directory=HostRunDirectory,
        packages=packages,
    )


def job_service(  # noqa: PLR0913, PLR0917  (what a daemon is made of)
    daemon: Controller,
    store: SqliteStore,
    attempt_service: AttemptService,
    settings: Settings,
    clock: Clock,
    broadcast: ChangeBroadcast,
    directory: Path,
    packages: Packages | None = None,
    images: Images | None = None,
) -> JobService:
    """Return the services of a daemon that a test has made."""
    return JobService(
        daemon=daemon,
        store=store,
        schedules=SqliteSchedules(store),
        usage_report=SqliteAccounting(store),
        notification_feed=SqliteNotificationFeed(store),
        users=USERS,
        attempt_service=attempt_service,
        live=LiveSettings(settings),
        clock=clock,
        broadcast=broadcast,
        state_dir=directory,
        started_at=clock.now(),
        images=images,
        package_locks=None
        if packages is None
        else PackageLocks(packages, FairExecutor("packages"), directory / "packages"),
    )
