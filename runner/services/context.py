"""Context of every service of a daemon: the control loop, and the ports of the host and of the store."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from runner.agent.host_processes import HostProcesses
from runner.agent.interface import Agent
from runner.agent.package_locks import PackageLocks
from runner.agent.ports import BatchCheck
from runner.agent.user_texts import UserTexts
from runner.base.broadcast import ChangeBroadcast
from runner.base.errors import Refused, RunnerError
from runner.control.controller import Controller
from runner.core.ports.clock import Clock
from runner.core.ports.code import CodeSnapshots
from runner.core.ports.images import Images
from runner.core.ports.notifications import NotificationFeed
from runner.core.ports.schedules import Schedules
from runner.core.ports.store import JobStore
from runner.core.ports.usage import UsageReport
from runner.core.ports.users import User
from runner.files.settings.live import LiveSettings
from runner.files.settings.model import Settings


class NotFound(RunnerError):
    """There is no such job."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Caller:
    """The user who is connected."""

    uid: int
    gid: int


def check_operator(caller: Caller, action: str) -> None:
    """Raise ``Refused`` unless a caller is root or the daemon's own user."""
    if caller.uid not in {0, os.geteuid()}:
        raise Refused(f"only root and the daemon's own user may {action}")


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """The control loop, the ports and the settings of one daemon; the composition root fills it in."""

    daemon: Controller
    store: JobStore
    schedules: Schedules
    usage_report: UsageReport
    notification_feed: NotificationFeed
    users: UserTexts
    attempt_service: Agent
    live: LiveSettings
    clock: Clock
    broadcast: ChangeBroadcast
    state_dir: Path
    started_at: datetime
    code: CodeSnapshots | None = None  # None: attempts run the directory of the code as it is then
    host_processes: HostProcesses | None = None  # None: attempts run in containers
    unrecorded: Mapping[str, int | None] = field(
        default_factory=dict
    )  # owners of run directories without a job
    batch_check: BatchCheck | None = None  # None: attempts run on this host
    package_locks: PackageLocks | None = None  # None: no packages are offered
    images: Images | None = None  # None: they are not looked at before a job is prepared

    @property
    def settings(self) -> Settings:
        """The settings that are in force now."""
        return self.live.value

    def user(self, caller: Caller) -> User:
        """Return the user of the host that a caller is."""
        return self.users.find_user(caller.uid, caller.gid)
