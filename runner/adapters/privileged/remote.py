"""The ports of a daemon that has given up root: each asks the helper.

What jobs have written is opened by the helper and read here, so that nothing of it is parsed by root.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from socket import socket
from typing import Any, BinaryIO, Final, TypeVar

from pydantic import ValidationError

from jobs.contract import AttemptSpec, RunPaths
from runner.adapters.host.checkpoints import CheckpointVerifier
from runner.adapters.host.log_times import EVERY_S
from runner.adapters.host.run_directories import HostRunDirectories
from runner.adapters.host.run_directory import HostRunDirectory
from runner.adapters.privileged import messages as ask
from runner.adapters.privileged.connection import HelperConnection
from runner.base.errors import Refused, Unavailable
from runner.base.textfile import one_line
from runner.core.ports.checkpoints import ProgramCheckpoint, ProgramFiles, SavedCheckpoints, Verification
from runner.core.ports.code import WorkingDirectory
from runner.core.ports.disk import DiskCounters
from runner.core.ports.disk_use import DiskUse
from runner.core.ports.executor import Alive, Key, LaunchRequest, LaunchResult, Observation
from runner.core.ports.images import Accelerator
from runner.core.ports.network import NetworkState
from runner.core.ports.packages import DockerfileRequest, PackageRequest
from runner.core.ports.users import Owner, User


class RemoteNetwork:
    """Satisfies ``runner.core.ports.network.OutboundNetwork``."""

    def __init__(self, helper: HelperConnection, found: Mapping[str, Any]) -> None:
        self._helper = helper
        self.name: Final[str] = found["name"]
        self.dns: Final[tuple[str, ...]] = tuple(found["dns"])
        self.is_for_all: Final[bool] = found["is_for_all"]

    @classmethod
    def of(cls, helper: HelperConnection) -> "RemoteNetwork | None":
        """Return the network of the helper's containers, None where attempts have that of this host."""
        found = helper.ask(ask.DescribeNetwork())
        return None if found is None else cls(helper, found)

    def state(self) -> NetworkState:
        return NetworkState(**self._helper.ask(ask.FindNetworkState()))

    def prepare(self) -> str:
        return str(self._helper.ask(ask.PrepareNetwork()))

    def close(self) -> None:
        self._helper.ask(ask.CloseNetwork())


M = TypeVar("M", bound=ask.InRunDirectory)


class RemoteExecutor:
    """Satisfies ``runner.core.ports.executor.Executor``; attempts run where the helper runs them."""

    queues: Final = False

    def __init__(self, helper: HelperConnection, kind: ask.ExecutorKind, instance: str) -> None:
        self._helper = helper
        self.kind: Final = kind
        self.in_container: Final = kind == "docker"
        helper.ask(ask.UseExecutor(kind=kind, instance=instance))

    def plan(self, request: LaunchRequest) -> Mapping[str, object]:
        found: Mapping[str, object] = self._helper.ask(ask.Plan(request=request))
        return found

    def launch(self, request: LaunchRequest) -> LaunchResult:
        return LaunchResult(self._helper.ask(ask.Launch(request=request)))

    def signal(self, key: Key, signal: int) -> None:
        self._helper.ask(ask.Signal(key=key, signal=int(signal)))

    def observe(self) -> tuple[Observation, ...]:
        return ask.observations_from_json(self._helper.ask(ask.Observe()))

    def remove(self, key: Key) -> None:
        self._helper.ask(ask.Remove(key=key))

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        return self._helper.watch(wake)


@dataclass(frozen=True, slots=True)
class RemoteDiskUse:
    """Satisfies ``runner.core.ports.disk.DiskUse``; only root is told about other users' processes."""

    helper: HelperConnection

    def counters(self, attempts: Iterable[Alive]) -> Mapping[Key, DiskCounters]:
        keys = tuple(each.key for each in attempts)
        if not keys:
            return {}
        return dict(ask.COUNTERS.validate_python(self.helper.ask(ask.MeasureDisk(keys=keys))))


class RemoteImages:
    """Satisfies ``runner.core.ports.images.Images``."""

    def __init__(self, helper: HelperConnection) -> None:
        self._helper = helper

    def ensure(self, accelerator: Accelerator, log: Path, job_id: str) -> str:  # noqa: ARG002  it is job_id's
        return str(self._helper.ask(ask.EnsureImage(accelerator=accelerator, job=job_id)))

    def leave(self, job_id: str) -> None:
        self._helper.ask(ask.LeaveImage(job=job_id))

    def close(self) -> None:
        self._helper.ask(ask.CloseImages())

    def resolve(self, reference: str) -> str:
        return str(self._helper.ask(ask.ResolveImage(reference=reference)))

    def digest(self, accelerator: Accelerator) -> str:
        return str(self._helper.ask(ask.ImageDigest(accelerator=accelerator)))


class RemotePackages:
    """Satisfies ``runner.core.ports.packages.Packages``."""

    def __init__(self, helper: HelperConnection) -> None:
        self._helper = helper
        self._known: set[str] = set()  # images that jobs have got
        self._grown = False  # since the last eviction

    def resolve(self, request: PackageRequest, who: User, log: Path, job_id: str) -> str:  # noqa: ARG002  it is job_id's
        return str(
            self._helper.ask(ask.ResolvePackages(request=request, uid=who.uid, gid=who.gid, job=job_id))
        )

    def ensure(self, lock: str, image: str, accelerator: Accelerator, log: Path, job_id: str) -> str:  # noqa: ARG002  the same
        request = ask.EnsurePackages(lock=lock, image=image, accelerator=accelerator, job=job_id)
        made = str(self._helper.ask(request))
        self._grown = self._grown or made not in self._known
        self._known.add(made)
        return made

    def build(self, request: DockerfileRequest, context: BinaryIO, log: Path, job_id: str) -> str:  # noqa: ARG002  the same
        asked = ask.BuildDockerfile(
            path=request.path,
            image=request.image,
            accelerator=request.accelerator,
            uid=request.uid,
            job=job_id,
        )
        context.flush()
        made = str(self._helper.ask(asked, context.fileno()))
        self._grown = self._grown or made not in self._known
        self._known.add(made)
        return made

    def environment(self, lock: str) -> Path | None:
        found = self._helper.ask(ask.FindEnvironment(lock=lock))
        return None if found is None else Path(found)

    def evict(self, needed: Callable[[], frozenset[str]]) -> None:
        if self._grown:
            self._grown = False
            self._helper.ask(ask.EvictPackages(needed=tuple(sorted(needed()))))

    def leave(self, job_id: str) -> None:
        self._helper.ask(ask.LeavePackages(job=job_id))

    def close(self) -> None:
        self._helper.ask(ask.ClosePackages())


class RemotePins:
    """Satisfies ``runner.core.ports.users.MountPins``."""

    def __init__(self, helper: HelperConnection) -> None:
        self._helper = helper

    def pin(self, who: User, path: Path, name: str) -> Path:
        pin, _, number = name.partition("/")
        request = ask.Pin(uid=who.uid, gid=who.gid, path=os.fsencode(path), pin=pin, number=int(number))
        return Path(self._helper.ask(request))

    def release(self, name: str) -> None:
        self._helper.ask(ask.ReleasePins(pin=name))

    def names(self) -> tuple[str, ...]:
        return tuple(self._helper.ask(ask.PinNames()))


@dataclass(frozen=True, slots=True)
class RemoteFiles:
    """Satisfies ``runner.adapters.host.run_files.RunFiles`` for the run directories of one daemon."""

    helper: HelperConnection
    jobs: Path

    def open_file(self, path: Path | str, dir_fd: int | None = None) -> BufferedReader:
        return os.fdopen(self._open(path, dir_fd, directory=False), "rb")

    @contextmanager
    def open_directory(self, path: Path | str, dir_fd: int | None = None) -> Iterator[int]:
        descriptor = self._open(path, dir_fd, directory=True)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _open(self, path: Path | str, dir_fd: int | None, *, directory: bool) -> int:
        if dir_fd is not None:
            return self.helper.open(ask.OpenInDirectory(path=str(path), directory=directory), dir_fd)
        run, _, below = str(path)[len(str(self.jobs)) + 1 :].partition("/")
        return self.helper.open(ask.OpenInRun(run=run, path=below, directory=directory))


class RemoteRunDirectory(HostRunDirectory):
    """Satisfies ``runner.agent.ports.RunDirectory``: read here, and changed by the helper."""

    def __init__(
        self, root: Path, owner: Owner, verifier: CheckpointVerifier, helper: HelperConnection
    ) -> None:
        super().__init__(root, owner, verifier)
        self._helper = helper
        self._noted = (0, 0.0)  # the attempt whose log was looked at last, and when

    def _ask(self, kind: type[M], **more: object) -> Any:  # noqa: ANN401  (JSON)
        where = {"run": self.root.name, "uid": self.owner.uid, "gid": self.owner.gid}
        try:
            return self._helper.ask(kind.model_validate({**where, **more}))
        except OSError as error:
            raise Unavailable(f"{self.root}: {error.strerror}") from error

    def create(self) -> None:
        self._ask(ask.CreateRun)

    def prepare(self, spec: AttemptSpec, secrets: Mapping[str, bytes], said: str = "") -> RunPaths:
        self._ask(ask.PrepareRun, spec=spec, secrets=dict(secrets), said=said)
        return self.paths(spec.attempt, spec.lineage)

    def is_lineage_locked(self, paths: RunPaths) -> bool:
        return bool(self._ask(ask.IsLineageLocked, attempt=paths.attempt, lineage=paths.lineage))

    def seed(self, lineage: int, fill: Callable[[Path], None]) -> None:
        fill(Path(self._ask(ask.BeginSeed, lineage=lineage)))
        self._ask(ask.PublishSeed, lineage=lineage)

    def make_work(
        self,
        lineage: int,
        wanted: WorkingDirectory,
        fill: Callable[[Path], None],
        update: Callable[[str, Path], tuple[str, ...]],
    ) -> tuple[str, ...]:
        draft = self.work_draft(lineage)
        place = draft.with_name(str(lineage))
        before = self._ask(ask.BeginWork, lineage=lineage)
        if before == wanted.snapshot:
            return ()
        try:
            if before is not None:
                kept = update(before, place)
                self._ask(ask.NoteWork, lineage=lineage, snapshot=wanted.snapshot)
                return kept
            fill(draft)
        except OSError as error:
            raise Unavailable(f"{error.filename or place}: {error.strerror}") from error
        self._ask(ask.PublishWork, lineage=lineage, snapshot=wanted.snapshot)
        return ()

    def note_log_size(self, paths: RunPaths, now_s: float) -> None:
        attempt, at_s = self._noted
        if attempt == paths.attempt and 0 <= now_s - at_s < EVERY_S:
            return
        self._noted = (paths.attempt, now_s)
        self._ask(ask.NoteLogSize, attempt=paths.attempt, lineage=paths.lineage, now_s=now_s)

    def move(self, name: str) -> None:
        if self.root.exists():
            self._ask(ask.MoveRun, to=name)

    def remove(self) -> None:
        if self.root.exists():
            self._ask(ask.RemoveRun)

    def forget_secrets(self) -> None:
        self._ask(ask.ForgetSecrets)

    def remove_drafts(self) -> None:
        self._ask(ask.RemoveDrafts)

    def there(self, paths: RunPaths) -> frozenset[str]:
        return frozenset(self._ask(ask.FindReports, attempt=paths.attempt, lineage=paths.lineage))

    def program_saved(
        self, paths: RunPaths, wanted: ProgramFiles, how: Verification = Verification.CONTENT
    ) -> SavedCheckpoints:
        numbers = {"attempt": paths.attempt, "lineage": paths.lineage}
        found = self._ask(ask.FindProgramCheckpoints, **numbers, wanted=wanted, how=how)
        return ask.SAVED.validate_python(found)

    def choose_program_checkpoint(
        self, paths: RunPaths, wanted: ProgramFiles, step: int | None, *, is_first: bool
    ) -> ProgramCheckpoint | None:
        numbers = {"attempt": paths.attempt, "lineage": paths.lineage}
        chosen = self._ask(
            ask.ChooseProgramCheckpoint, **numbers, wanted=wanted, step=step, is_first=is_first
        )
        return ask.CHOSEN.validate_python(chosen)

    def tell_terminals(self, paths: RunPaths, text: str) -> None:
        self._ask(ask.TellTerminals, attempt=paths.attempt, lineage=paths.lineage, text=text)

    def terminals(self, paths: RunPaths) -> tuple[str, ...]:
        return tuple(self._ask(ask.FindTerminals, attempt=paths.attempt, lineage=paths.lineage))

    def terminal_touched(self, paths: RunPaths) -> float | None:
        found: float | None = self._ask(ask.FindTerminalUse, attempt=paths.attempt, lineage=paths.lineage)
        return found

    def connect(self, paths: RunPaths, name: str) -> socket:
        where = {"run": self.root.name, "uid": self.owner.uid, "gid": self.owner.gid}
        numbers = {"attempt": paths.attempt, "lineage": paths.lineage}
        try:
            asked = ask.Connect.model_validate({**where, **numbers, "name": name})
        except ValidationError as error:
            raise Refused(f"{one_line(name)}: no such terminal") from error
        return socket(fileno=self._helper.open(asked))

    def limit_log(self, paths: RunPaths, quota_bytes: int, keep_head: int, keep_tail: int) -> int:
        found = self._ask(
            ask.LimitLog,
            attempt=paths.attempt,
            lineage=paths.lineage,
            quota_bytes=quota_bytes,
            keep_head=keep_head,
            keep_tail=keep_tail,
        )
        return int(found)

    def keep(self, attempt: int, name: str, text: str) -> None:
        self._ask(ask.Keep, attempt=attempt, name=name, text=text)


@dataclass(frozen=True, slots=True)
class RemoteRunDirectories:
    """Satisfies ``runner.services.retention.RunDirectories``: the helper measures and removes."""

    helper: HelperConnection
    jobs: Path

    def ids(self) -> tuple[str, ...]:
        return HostRunDirectories(self.jobs).ids()

    def size(self, job_id: str) -> int:
        return int(self.helper.ask(ask.MeasureRun(job=job_id)))

    def use(self, job_id: str, most: DiskUse) -> DiskUse:
        request = ask.UseOfRun(job=job_id, most_size=most.size, most_files=most.files)
        size, files = self.helper.ask(request)
        return DiskUse(int(size), int(files))

    def remove(self, job_id: str) -> None:
        self.helper.ask(ask.RemoveEndedRun(job=job_id))

    def sweep(self) -> None:
        self.helper.ask(ask.SweepRuns())
