"""The ports of a daemon that has given up root, where they are more than the privileged interfaces.

What jobs have written is opened by the helper and read here, so that nothing of it is parsed by root.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from socket import socket
from typing import Any, BinaryIO, Final

from pydantic import ValidationError

from jobs.contract import AttemptSpec, RunPaths
from runner.adapters.host.job_checkpoints import CheckpointVerifier
from runner.adapters.host.run_directories import HostRunDirectories
from runner.adapters.host.run_directory import HostRunDirectory
from runner.adapters.host.run_files import RunFiles
from runner.adapters.privileged.client import PrivilegedClient
from runner.adapters.privileged.interface import ExecutorKind, PrivilegedRun
from runner.base.errors import Refused, disk_errors
from runner.base.textfile import one_line
from runner.core.ports.disk import DiskCounters
from runner.core.ports.executor import Alive, Key
from runner.core.ports.images import Accelerator
from runner.core.ports.packages import DockerfileRequest, PackageRequest
from runner.core.ports.users import Owner, User


class RemoteNetwork:
    """Satisfies ``runner.core.ports.network.OutboundNetwork``."""

    def __init__(
        self, name: str, dns: tuple[str, ...], helper: PrivilegedClient, *, is_for_all: bool
    ) -> None:
        self.name: Final = name
        self.dns: Final = dns
        self.is_for_all: Final = is_for_all
        asked = helper.network
        self.state, self.prepare, self.close = asked.state, asked.prepare, asked.close

    @classmethod
    def of(cls, helper: PrivilegedClient) -> "RemoteNetwork | None":
        """Return the network of the helper's containers, None where attempts have that of this host."""
        found = helper.network.describe()
        return None if found is None else cls(found.name, found.dns, helper, is_for_all=found.is_for_all)


class RemoteExecutor:
    """Satisfies ``runner.core.ports.executor.Executor``; attempts run where the helper runs them."""

    queues: Final = False

    def __init__(self, helper: PrivilegedClient, kind: ExecutorKind, instance: str) -> None:
        asked, self.watch = helper.attempts, helper.watch
        self.kind: Final = kind
        self.in_container: Final = kind == "docker"
        self.plan, self.launch = asked.plan, asked.launch
        self.observe, self.remove = asked.observe, asked.remove
        self._asked = asked
        asked.use(kind, instance)

    def signal(self, key: Key, signal: int) -> None:
        self._asked.signal(key, int(signal))


@dataclass(frozen=True, slots=True)
class RemoteDiskUse:
    """Satisfies ``runner.core.ports.disk.DiskUse``; only root is told about other users' processes."""

    helper: PrivilegedClient

    def counters(self, attempts: Iterable[Alive]) -> Mapping[Key, DiskCounters]:
        keys = tuple(each.key for each in attempts)
        return dict(self.helper.attempts.disk_counters(keys)) if keys else {}


class RemotePackages:
    """Satisfies ``runner.core.ports.packages.Packages``."""

    def __init__(self, helper: PrivilegedClient) -> None:
        asked = self._asked = helper.packages
        self.environment, self.evict = asked.environment, asked.evict
        self.leave, self.close = asked.leave, asked.close

    def resolve(self, request: PackageRequest, who: User, log: Path, job_id: str) -> str:  # noqa: ARG002  it is job_id's
        return self._asked.resolve(request, who.uid, who.gid, job_id)

    def ensure(self, lock: str, image: str, accelerator: Accelerator, log: Path, job_id: str) -> str:  # noqa: ARG002  the same
        return self._asked.ensure(lock, image, accelerator, job_id)

    def build(self, request: DockerfileRequest, context: BinaryIO, log: Path, job_id: str) -> str:  # noqa: ARG002  the same
        context.flush()
        return self._asked.build(request, context.fileno(), job_id)


class RemoteRunDirectory(HostRunDirectory):
    """Satisfies ``runner.agent.ports.RunDirectory``: read here; what needs root, the helper does."""

    def __init__(
        self,
        root: Path,
        owner: Owner,
        verifier: CheckpointVerifier,
        files: RunFiles,
        helper: PrivilegedClient,
    ) -> None:
        super().__init__(root, owner, verifier, files)
        self._asked = helper.run(root.name, owner)
        for name in vars(PrivilegedRun).keys() - vars(RemoteRunDirectory).keys():
            if not name.startswith("_"):  # in place of the methods that act with the rights of this process
                setattr(self, name, partial(self._ask, name))

    def _ask(self, name: str, *args: object, **named: object) -> Any:  # noqa: ANN401  as the interface says
        with disk_errors(self.root):
            return getattr(self._asked, name)(*args, **named)

    def prepare(self, spec: AttemptSpec, secrets: Mapping[str, bytes], said: str = "") -> RunPaths:
        self._ask("prepare", spec, secrets, said)
        return self.paths(spec.attempt, spec.lineage)

    def connect(self, paths: RunPaths, name: str) -> socket:
        try:
            return self._asked.connect(paths, name)
        except ValidationError as error:
            raise Refused(f"{one_line(name)}: no such terminal") from error


class RemoteRunDirectories:
    """Satisfies ``runner.services.retention.RunDirectories``: the helper measures and removes."""

    def __init__(self, helper: PrivilegedClient, jobs: Path) -> None:
        runs, self.ids = helper.runs, HostRunDirectories(jobs).ids
        self.size, self.use, self.sweep = runs.size, runs.use, runs.sweep
        self.set_aside, self.remove = runs.set_aside, runs.remove
