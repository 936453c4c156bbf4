"""The state of the privileged part: what the operator has set, and what the daemon has chosen."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock

from images.records import recorded
from runner.adapters.host.mounts import PinnedMounts
from runner.adapters.host.users import HostUsers
from runner.adapters.privileged.checks import Walls
from runner.base.errors import Refused
from runner.core.ports.exec import ExecPort
from runner.core.ports.executor import Executor
from runner.core.ports.images import Images
from runner.core.ports.network import OutboundNetwork
from runner.core.ports.packages import Packages
from runner.files.settings.model import Settings


@dataclass(frozen=True, slots=True)
class Chosen:
    """Choices of the daemon: the engine that runs attempts, and its store."""

    kind: str
    instance: str
    executor: Executor
    packages: Packages
    network: OutboundNetwork | None

    def check_instance(self, instance: str) -> None:
        """Raise ``Refused`` for an attempt of another store."""
        if instance != self.instance:
            raise Refused("the helper refuses an attempt of another store")


@dataclass(slots=True)
class PrivilegedSite:
    """Context of all privileged operations."""

    walls: Walls
    executor_setting: str
    """``docker``, ``process`` or ``auto``, as the operator has set it."""
    allowed_images: Mapping[str, str]
    make_executor: Callable[[str, str], Executor]
    images: Images
    make_packages: Callable[[str], Packages]
    image_records: Path
    users: HostUsers
    pins: PinnedMounts
    make_network: Callable[[str, Executor], OutboundNetwork | None] = lambda _instance, _executor: None
    make_commands: Callable[[str], ExecPort | None] = lambda _kind: None
    reload: Callable[[], Settings] | None = None
    allowed_system: tuple[str, ...] = ()
    """Debian packages that jobs may have, as patterns."""
    allows_dockerfiles: bool = False
    """True if jobs may be built from a Dockerfile of their own."""
    _chosen: Chosen | None = None
    _used: bool = False
    _lock: Lock = field(default_factory=Lock)

    @property
    def jobs(self) -> Path:
        return self.walls.directory / "jobs"

    def choose(self, kind: str, instance: str) -> None:
        """Choose where attempts run; what has been used stays."""
        if self.executor_setting not in {"auto", kind}:
            raise Refused(f"the settings say executor {self.executor_setting}")
        with self._lock:
            chosen = self._chosen
            same = chosen is not None and (chosen.kind, chosen.instance) == (kind, instance)
            if self._used and not same:
                raise Refused("the executor and the store stay what they are")
            if not same:
                executor = self.make_executor(kind, instance)
                network = self.make_network(instance, executor)
                self._chosen = Chosen(kind, instance, executor, self.make_packages(kind), network)

    def chosen(self, *, use: bool = False) -> Chosen:
        """Return the choice of the daemon; once it is used, it stays the same; may raise Refused."""
        with self._lock:
            if self._chosen is None:
                raise Refused("the executor is not chosen yet")
            self._used = self._used or use
            return self._chosen

    def known_images(self) -> frozenset[str]:
        """Return the ids of images that this state directory has built, or that the settings have offered."""
        return recorded(self.image_records) | recorded(self.image_records / "offered")

    def read_settings(self) -> None:
        """Read the settings file again."""
        if self.reload is None:
            raise Refused("there are no settings to reload")
        settings = self.reload()
        run_as = settings.root_jobs_run_as
        self.allowed_images = settings.allowed_images
        self.allowed_system = settings.allowed_system_packages
        self.allows_dockerfiles = settings.allows_dockerfiles
        self.walls = replace(self.walls, root_jobs=(run_as.uid, run_as.gid))
        self.users.instead_of_root = (run_as.uid, run_as.gid)
