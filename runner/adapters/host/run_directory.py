"""Makes the run directory of a job, and reads the reports that its attempts write there.

Parent directories belong to the daemon's user, and leaves (``attempts/N``, ``lineages/L``, ``homes/L``,
``cache``) to the job's, so the daemon never creates anything below a directory that the job can change.
The content of a leaf is not trusted: only regular files are read, without links, with limited sizes, and
unknown keys are ignored.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader
from itertools import takewhile
from pathlib import Path, PurePosixPath
from socket import socket
from typing import Final, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from jobs.contract import (
    MAX_PROCESSES,
    MAX_REPORT_BYTES,
    AttemptSpec,
    Effective,
    Result,
    RunPaths,
    Status,
    TraceSummary,
    checkpoint_name,
    dump,
    open_directory,
    read_at_most,
)
from runner.adapters.host import log_quota, terminal
from runner.adapters.host.job_checkpoints import CheckpointVerifier, ProgramCheckpoints
from runner.adapters.host.log_progress import LogProgressReader
from runner.adapters.host.log_times import note_size
from runner.adapters.host.program_files import DIRECTORY, directory_at
from runner.adapters.host.run_files import OwnRights, RunFiles
from runner.adapters.host.set_aside import remove
from runner.adapters.host.user_outputs import WEIGHTS
from runner.base.durable import publish, write_whole
from runner.base.errors import Refused, Unavailable, disk_errors, disk_fact
from runner.core.accounting.curve_set import LogNumbers, NewNumbers
from runner.core.ports.checkpoints import (
    ProgramCheckpoint,
    ProgramFiles,
    RoomToSave,
    SavedCheckpoints,
    Verification,
)
from runner.core.ports.code import WorkingDirectory
from runner.core.ports.users import Owner

R = TypeVar("R", bound=BaseModel)

LINEAGE_LOCK: Final = ".lock"
"""The file that an attempt keeps locked as long as it writes to its lineage."""

METRICS_TAIL_BYTES: Final = 64 * 1024


def numbered(jobs: Path) -> list[str]:
    """Return the ids of the jobs that have a run directory, in order."""
    try:
        return sorted((name for name in os.listdir(jobs) if _is_number(name)), key=int)
    except FileNotFoundError:
        return []


def owners(jobs: Path) -> dict[str, int | None]:
    """Return the ids of the jobs that have a run directory, with the uid of whom its cache belongs to."""
    return {name: _uid(f"{jobs}/{name}/cache") for name in numbered(jobs)}


WHAT_TO_DO: Final = "put it back, or begin anew with: runner restart"


def work_aside(lineage: int, attempt: int) -> str:
    """Return the place of an attempt's working directory that was set aside, below the run directory."""
    return f"work/{lineage}.before-{attempt}"


def highest(parent: str | Path) -> int:
    """Return the highest number that is a name in a directory, 0 if none is.

    ``3.exit.json`` tells of an attempt as ``3`` does; ``1.change.json`` is kept before there is one.
    """
    try:
        names = (name.removesuffix(".exit.json") for name in os.listdir(parent))
        return max((int(name) for name in names if _is_number(name)), default=0)
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) < 19


def _uid(path: str) -> int | None:
    try:
        return os.stat(path, follow_symlinks=False).st_uid
    except OSError:
        return None


class HostRunDirectory:
    """Satisfies ``runner.agent.ports.RunDirectory``: ``<state>/jobs/<id>`` of one job."""

    def __init__(
        self,
        root: Path,
        owner: Owner,
        verifier: CheckpointVerifier | None = None,
        files: RunFiles | None = None,
    ) -> None:
        self.root = root
        self.owner = owner
        self._verifier = verifier or CheckpointVerifier()  # one for a daemon: it remembers its results
        self._files = files or OwnRights()
        self._paths = RunPaths(root, 0, 0)  # of the attempt that was used last
        self._program_checkpoints = ProgramCheckpoints(
            root,
            owner,
            self._verifier,
            self._files.open_directory,
            lambda lineage: self.open_kept(lineage),  # noqa: PLW0108  (the helper may act in its place)
        )
        self._log_progress: LogProgressReader | None = None  # of the attempt that was looked at last

    def paths(self, attempt: int, lineage: int) -> RunPaths:
        paths = self._paths
        if (paths.attempt, paths.lineage) != (attempt, lineage):
            paths = self._paths = RunPaths(self.root, attempt, lineage)
        return paths

    def create(self) -> None:
        """Make the directory on the disk before the job is placed, for no launch makes it again."""
        with disk_errors(self.root):
            for name in ("attempts", "lineages", "homes"):
                self.root.joinpath(name).mkdir(mode=0o755, parents=True, exist_ok=True)
            if self._leaf(self.root / "cache", {}):
                _sync(self.root, self.root.parent)

    def prepare(self, spec: AttemptSpec, secrets: Mapping[str, bytes], said: str = "") -> RunPaths:
        paths = self.paths(spec.attempt, spec.lineage)
        files = {paths.spec.name: dump(spec).encode(), paths.log.name: said.encode()}
        with self._changing():
            self._leaf(paths.cache, {})
            self._select_home(spec.lineage)
            self._leaf(paths.lineage_dir, {})
            if self._leaf(paths.attempt_dir, files):
                parents = (paths.attempt_dir.parent, paths.lineage_dir.parent, self.root / "homes", self.root)
                _sync(paths.spec, paths.attempt_dir, *parents)
            for name, content in secrets.items():
                self._secret(self.secret(name), content)
        return paths

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Translate the errors of a change.

        Raises:
            Refused: a directory that was made before is lost: no other try will find it.
            Unavailable: the file system refuses it.
        """
        try:
            yield
        except OSError as error:
            for place in (self.root, self.root / "attempts", self.root / "lineages"):
                if not place.is_dir():
                    fact = "is lost, with what the job has kept there"
                    raise Refused(f"{place}: {fact}; {WHAT_TO_DO}") from error
            raise Unavailable(f"{error.filename or self.root}: {disk_fact(error)}") from error

    def _select_home(self, lineage: int) -> None:
        """Make the home directory of a lineage, and ``home`` a link to it.

        What a program saves in its home belongs to one lineage, as its checkpoints do: a new lineage begins
        with an empty home, and a return to an earlier one finds what it has left there.
        """
        home, homes = self.root / "home", self.root / "homes"
        homes.mkdir(mode=0o755, exist_ok=True)
        if home.is_dir() and not home.is_symlink():  # made before homes were kept apart
            home.rename(homes / str(highest(f"{self.root}/lineages") or lineage))
        self._leaf(homes / str(lineage), {})
        target = f"homes/{lineage}"
        if home.is_symlink() and str(home.readlink()) == target:
            return
        draft = self.root / ".home.draft"
        draft.unlink(missing_ok=True)
        draft.symlink_to(target)
        draft.rename(home)

    def _leaf(self, path: Path, files: Mapping[str, bytes]) -> bool:
        """Make a directory of the job with files, atomically; return whether it was not there."""
        place = str(path)  # str for speed: this runs twice for each attempt, with several files
        if os.path.isdir(place):
            self._check_owner(place)
            return False
        parent, _, name = place.rpartition("/")
        draft = f"{parent}/.{name}.draft"
        _make_empty(draft)
        for file, content in files.items():
            _write_new(f"{draft}/{file}", content, 0o600, self.owner.uid, self.owner.gid)
        if os.geteuid() == 0:
            os.chown(draft, self.owner.uid, self.owner.gid, follow_symlinks=False)
        os.rename(draft, place)
        return True

    def _check_owner(self, place: str) -> None:
        """Raise ``Refused`` if a leaf belongs to another user; no job gets it, whatever the store says."""
        uid = os.stat(place, follow_symlinks=False).st_uid
        if os.geteuid() == 0 and uid != self.owner.uid:
            raise Refused(f"{place}: belongs to uid {uid}, not to {self.owner.name}; move it away")

    def highest_numbers(self) -> tuple[int, int]:
        return highest(f"{self.root}/attempts"), highest(f"{self.root}/lineages")

    def make_work(
        self,
        lineage: int,
        wanted: WorkingDirectory,
        fill: Callable[[Path], None],
        update: Callable[[str, Path], tuple[str, ...]],
        afresh: int | None = None,
    ) -> tuple[str, ...]:
        draft = self.work_draft(lineage)
        place = draft.with_name(str(lineage))
        before = self.begin_work(lineage, afresh=afresh)
        if before == wanted.snapshot:
            return ()
        with self._changing():
            if before is not None:
                kept = update(before, place)
                self.note_work(lineage, wanted.snapshot)
                return kept
            fill(draft)
            self._give(draft, 0o700)
            self.publish_work(lineage, wanted.snapshot)
        return ()

    def work_draft(self, lineage: int) -> Path:
        """Return the path at which a working directory is written before the job can reach it."""
        return self.root / "work" / f".{lineage}.draft"

    def begin_work(self, lineage: int, writer: int | None = None, *, afresh: int | None = None) -> str | None:
        """Return the snapshot of a working directory that is there; else make a draft for ``writer``, a uid.

        For the attempt ``afresh`` a directory of earlier attempts is set aside, once; what was set aside
        for an attempt before that is removed.

        Raises:
            Refused: the directory belongs to another user, or that of the job is lost.
            Unavailable: the file system refuses it.
        """
        draft = self.work_draft(lineage)
        with self._changing():
            draft.parent.mkdir(mode=0o755, exist_ok=True)
            place = draft.with_name(str(lineage))
            if place.is_dir():
                self._check_owner(str(place))
                if not self._set_work_aside(lineage, place, afresh):
                    return self._noted_work(lineage)
            _make_empty(draft)
            if writer is not None:
                os.chown(draft, writer, 0, follow_symlinks=False)
        return None

    def _set_work_aside(self, lineage: int, place: Path, afresh: int | None) -> bool:
        """Set a working directory aside for an attempt, and return whether that was done now."""
        aside = self.root / work_aside(lineage, afresh or 0)
        if afresh is None or aside.is_dir():
            return False
        with directory_at(place.parent, PurePosixPath()) as parent:
            for old in place.parent.glob(f"{lineage}.before-*"):
                remove(parent, old.name)
        place.rename(aside)
        return True

    def publish_work(self, lineage: int, snapshot: str) -> None:
        """Put the draft of a working directory in its place."""
        self.note_work(lineage, snapshot)
        draft = self.work_draft(lineage)
        draft.rename(draft.with_name(str(lineage)))
        _sync(draft.parent, self.root)

    def _noted_work(self, lineage: int) -> str:
        """Return the snapshot that a working directory was made of."""
        note = self.root / "work" / f"{lineage}.json"
        try:
            return str(json.loads(note.read_bytes())["snapshot"])
        except (FileNotFoundError, ValueError, TypeError, KeyError) as error:
            raise Refused(f"{note}: is lost or damaged; {WHAT_TO_DO}") from error

    def note_work(self, lineage: int, snapshot: str) -> None:
        """Write beside a working directory which snapshot it was made of."""
        note = self.root / "work" / f"{lineage}.json"
        publish(note, json.dumps({"snapshot": snapshot}).encode(), durable=True)

    def is_lineage_locked(self, paths: RunPaths) -> bool:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            with self._files.open_directory(paths.lineage_dir) as lineage:
                descriptor = os.open(LINEAGE_LOCK, flags, dir_fd=lineage)
        except OSError:
            return False  # nobody has written there yet
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def move(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self.root.rename(self.root.with_name(name))

    def remove(self) -> None:
        _remove(self.root)

    def seed(self, lineage: int, fill: Callable[[Path], None]) -> None:
        fill(self.begin_seed(lineage))
        self.publish_seed(lineage)

    def seed_draft(self, lineage: int) -> Path:
        """Return the path at which a lineage is written before the job can reach it."""
        return self.root / "lineages" / f".{lineage}.draft"

    def begin_seed(self, lineage: int) -> Path:
        """Make the draft of a lineage, which its owner's worker fills, and return its path."""
        draft = self.seed_draft(lineage)
        _make_empty(draft)
        if os.geteuid() == 0:
            os.chown(draft, self.owner.uid, self.owner.gid, follow_symlinks=False)
        return draft

    def publish_seed(self, lineage: int) -> None:
        """Put the draft of a lineage in its place."""
        draft = self.seed_draft(lineage)
        draft.rename(draft.with_name(str(lineage)))

    def secret(self, name: str) -> Path:
        return self.root / "secrets" / name

    def _secret(self, path: Path, content: bytes) -> None:
        """Write the copy of a secret so that only the job's user can read it."""
        path.parent.mkdir(mode=0o711, exist_ok=True)
        path.parent.chmod(0o711)  # nobody else lists the names, whatever the umask
        path.unlink(missing_ok=True)
        _write_new(path, content, 0o400, self.owner.uid, self.owner.gid)

    def _give(self, path: Path, mode: int) -> None:
        path.chmod(mode)
        if os.geteuid() == 0:
            os.chown(path, self.owner.uid, self.owner.gid, follow_symlinks=False)

    def forget_secrets(self) -> None:
        secrets = self.root.joinpath("secrets")
        if secrets.exists():
            shutil.rmtree(secrets, ignore_errors=True)

    def remove_drafts(self) -> None:
        """Remove drafts, which lie in directories that only the daemon can change."""
        for parent in (self.root, *(self.root / name for name in ("attempts", "lineages", "work"))):
            with suppress(FileNotFoundError, NotADirectoryError):
                for draft in parent.glob(".*.draft"):
                    _remove(draft)

    def has_kept(self, attempt: int, name: str) -> bool:
        parent = self.root / "attempts"
        return (parent / f"{attempt}.{name}").exists() or not parent.exists()

    def there(self, paths: RunPaths) -> frozenset[str]:
        """Return the reports by looking up each name: a job may have written any number of other files."""
        try:
            with self._files.open_directory(paths.attempt_dir) as place:
                return frozenset(name for name in paths.REPORTS if os.access(name, os.F_OK, dir_fd=place))
        except OSError:
            return frozenset()

    def spec(self, paths: RunPaths) -> AttemptSpec | None:
        return self._report(paths.spec, AttemptSpec)

    def status(self, paths: RunPaths) -> Status | None:
        return self._report(paths.status, Status)

    def log_status(self, paths: RunPaths, pattern: str | None) -> Status | None:
        return self._log_reader(paths, pattern).status()

    def log_numbers(self, paths: RunPaths, pattern: str | None, *, ended: bool) -> tuple[LogNumbers, ...]:
        return self._log_reader(paths, pattern).numbers(ended=ended)

    def _log_reader(self, paths: RunPaths, pattern: str | None) -> LogProgressReader:
        reader = self._log_progress
        if reader is None or (reader.path, reader.pattern) != (paths.log, pattern):
            reader = self._log_progress = LogProgressReader(paths.log, pattern, self._files.open_file)
        return reader

    def log_times(self, attempt: int) -> Path:
        return self.root / "attempts" / f"{attempt}.log-times"

    def note_log_size(self, paths: RunPaths, now_s: float) -> None:
        note_size(self.log_times(paths.attempt), paths.log, now_s)

    def result(self, paths: RunPaths) -> Result | None:
        return self._report(paths.result, Result)

    def effective(self, paths: RunPaths) -> Effective | None:
        return self._report(paths.effective, Effective)

    def trace(self, paths: RunPaths) -> TraceSummary | None:
        return self._report(paths.trace_summary, TraceSummary)

    def read_numbers(self, paths: RunPaths, offset: int) -> NewNumbers | None:
        try:
            with self._files.open_file(paths.metrics) as file:
                if os.fstat(file.fileno()).st_size <= offset:
                    return None
                work = self._verifier.of(self.owner, Verification.KNOWN)
                return work.read_numbers(file.fileno(), offset)
        except OSError:
            return None

    def rates(self, paths: RunPaths) -> tuple[float, ...]:
        return tuple(_rates(self.tail(paths.metrics, METRICS_TAIL_BYTES)))

    def room_to_save(self, paths: RunPaths) -> RoomToSave | None:
        try:
            with self._files.open_directory(paths.lineage_dir) as lineage:
                return self._verifier.of(self.owner, Verification.KNOWN).room_to_save(lineage)
        except (OSError, Unavailable):
            return None

    def saved(
        self, paths: RunPaths, how: Verification = Verification.CONTENT, also: int | None = None
    ) -> SavedCheckpoints:
        try:
            with self._files.open_directory(paths.lineage_dir) as lineage:
                return self._verifier.saved(paths.lineage_dir, lineage, self.owner, how, also)
        except OSError:
            return SavedCheckpoints()

    def weights(self, kind: Literal["best", "final"]) -> Path | None:
        """Return the newest weights; whether they are whole is not looked at."""
        work = self._verifier.of(self.owner, Verification.KNOWN)
        for lineage in range(highest(self.root / "lineages"), 0, -1):
            directory = self.paths(0, lineage).lineage_dir
            with suppress(OSError), self._files.open_directory(directory) as opened:
                name = work.published(opened, kind)
                if name and WEIGHTS[kind].fullmatch(name):  # a process of the user has said it
                    return directory / name
        return None

    def program_saved(
        self, paths: RunPaths, wanted: ProgramFiles, how: Verification = Verification.CONTENT
    ) -> SavedCheckpoints:
        return self._program_checkpoints.saved(paths.lineage, wanted, how, paths.attempt)

    def choose_program_checkpoint(
        self, paths: RunPaths, wanted: ProgramFiles, step: int | None, *, is_first: bool
    ) -> ProgramCheckpoint | None:
        if is_first and not self._program_checkpoints.begin(paths.lineage, wanted):
            return None
        return self._program_checkpoints.choose(paths.lineage, paths.attempt, wanted, step)

    def open_kept(self, lineage: int) -> int:
        """Return a descriptor of a directory of the job's user, which only its workers reach.

        Its parent is closed to all users.  The caller closes it.

        Raises:
            OSError: the file system refuses it.
        """
        parent = self.root / "kept"
        parent.mkdir(mode=0o700, exist_ok=True)
        parent.chmod(0o700)
        with suppress(FileExistsError):
            (parent / str(lineage)).mkdir(mode=0o700)
        kept = os.open(parent / str(lineage), DIRECTORY)
        if os.geteuid() == 0:
            os.fchown(kept, self.owner.uid, self.owner.gid)
        return kept

    def copy_checkpoint(
        self, paths: RunPaths, step: int, target: Path, check: Callable[[], None] = lambda: None
    ) -> None:
        with (
            self._files.open_directory(paths.lineage_dir) as lineage,
            self._files.open_directory(target) as draft,
        ):
            work = self._verifier.work.outputs(self.owner, check, self._verifier.within_s)
            work.copy_checkpoint(lineage, draft, checkpoint_name(step))

    def copy_program_checkpoint(
        self, paths: RunPaths, wanted: ProgramFiles, target: Path, check: Callable[[], None] = lambda: None
    ) -> None:
        self._program_checkpoints.give_newest(paths.lineage, wanted, target, check)

    def tail(self, path: Path, limit: int) -> bytes:
        try:
            with self._files.open_file(path) as file:
                file.seek(max(os.fstat(file.fileno()).st_size - limit, 0))
                return file.read(limit)
        except OSError:
            return b""

    def open(self, path: Path) -> BufferedReader:
        return self._files.open_file(path)

    def _report(self, path: Path, model: type[R]) -> R | None:
        """Return the content of a JSON file of a job, None if it is missing, too large or malformed."""
        try:
            with self._files.open_file(path) as file:
                return model.model_validate_json(read_at_most(file, MAX_REPORT_BYTES))
        except (OSError, ValidationError):
            return None

    def limit_log(self, paths: RunPaths, quota_bytes: int, keep_head: int, keep_tail: int) -> int:
        """Cut the logs; the processes of an attempt have equal parts of the quota."""
        logs = [paths.log]
        with suppress(OSError), self._files.open_directory(paths.attempt_dir) as place:
            others = map(paths.rank_log, range(1, MAX_PROCESSES))
            logs += takewhile(lambda log: os.access(log.name, os.F_OK, dir_fd=place), others)
        parts = (each // len(logs) for each in (quota_bytes, keep_head, keep_tail))
        quota, head, tail = parts
        return sum(log_quota.enforce(log, quota, head, tail) for log in logs)

    def terminals(self, paths: RunPaths) -> tuple[str, ...]:
        return terminal.names(paths.terminals)

    def terminal_touched(self, paths: RunPaths) -> float | None:
        return terminal.touched(paths.terminals)

    def tell_terminals(self, paths: RunPaths, text: str) -> None:
        for name in terminal.names(paths.terminals):
            terminal.tell(paths.terminals, name, self.owner.uid, text)

    def connect(self, paths: RunPaths, name: str) -> socket:
        return terminal.connect(paths.terminals, name, self.owner.uid)

    def keep(self, attempt: int, name: str, text: str) -> None:
        """Write a file beside an attempt: a program for all to read, and what is told of a job for nobody.

        The group of a user may be that of many, and what lies here is the daemon's, to be trusted later.
        """
        path = self.root / "attempts" / f"{attempt}.{name}"
        # If the directory of the job is lost, its next launch says so.
        with disk_errors(path), suppress(FileNotFoundError):
            publish(path, text.encode(), 0o644 if name.endswith(".py") else 0o600)


_SYNCED: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def _sync(*places: Path) -> None:
    """Write files and directories to the disk: a power cut takes the newest entries of others."""
    for place in places:
        with open_directory(place.parent) as parent:
            descriptor = os.open(place.name, _SYNCED, dir_fd=parent)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _make_empty(draft: str | Path) -> None:
    """Make a directory, and remove an earlier one, which a killed daemon may have left."""
    try:
        os.mkdir(draft, 0o700)
    except FileExistsError:
        _remove(Path(draft))
        os.mkdir(draft, 0o700)


def _remove(path: Path) -> None:
    """Remove a file or a directory, however deep: its owner may have reached it."""
    with directory_at(path.parent, PurePosixPath()) as parent:
        remove(parent, path.name)


def _write_new(path: str | Path, content: bytes, mode: int, uid: int, gid: int) -> None:
    """Write a file that must not exist, and give it to a user, with few system calls."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        write_whole(fd, content)
        if mode & 0o077:  # the umask may have removed bits
            os.fchmod(fd, mode)
        if os.geteuid() == 0:
            os.fchown(fd, uid, gid)
    finally:
        os.close(fd)


def _rates(text: bytes) -> Iterator[float]:
    for line in text.splitlines():
        try:
            said = json.loads(line).get("items_per_s")
            rate = float(said) if isinstance(said, int | float) and not isinstance(said, bool) else 0.0
        except (ValueError, AttributeError, OverflowError, RecursionError):
            continue
        if 0 < rate < float("inf"):
            yield rate
