"""The directory of one lineage: what may appear in it, in which order, and who may write.

    step-00000050/  state.pt  manifest.json      complete, and never changed again
    best-00000040/  weights.pt  manifest.json    the weights of the best evaluation
    final/          weights.pt  manifest.json    the finished model
    micro-batch.json                             the size that micro_batch: auto came to
    .tmp-...  .trash-...                         left by a kill; swept by the next attempt
    bad-...  superseded-...                      set aside, never read again
    .lock                                        held while an attempt writes here
    .owner                                       the number of the latest attempt; no earlier one publishes
    .fence                                       held for the moment in which one looks at it and renames

A checkpoint is committed by a rename only.  A directory named ``step-N`` was complete, on the disk
and verified to be readable before it got that name.  There is no link to the newest checkpoint; it
is determined from the list of names.
"""

import errno
import fcntl
import os
import secrets
import shutil
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from jobs.checkpoint import durable as files
from jobs.checkpoint.state import Plain, digest, size_bytes, weights_sha256
from jobs.contract import (
    CONTRACT_VERSION,
    MANIFEST,
    CheckpointInvalid,
    FileDigest,
    Manifest,
    checkpoint_name,
    checkpoints,
    dump,
    file_sha256,
)
from jobs.training.failures import (
    UNLOADABLE,
    DiskFull,
    InvalidSpec,
    LineageBusy,
    Stopped,
    Superseded,
    chain,
    is_disk_full,
)
from jobs.training.report import warn
from jobs.training.signals import StopRequests

STATE = "state.pt"
WEIGHTS = "weights.pt"
FINAL = "final"
BEST = "best-"

LOOKING_ON = frozenset({"best", "evaluated", "halved", "adaptation"})
"""Entries of a state that are no result of its steps: what was seen on the way."""

LOCK_WAIT_S = 30.0
"""A killed attempt may hold the lock for some seconds; a longer hold means a second attempt, a defect."""

OWNER = ".owner"
FENCE = ".fence"

TAKE_OVER_S = 5.0
"""Wait for an earlier attempt, which can publish nothing more."""

FENCE_WAIT_S = 2.0
"""Longer than a rename takes; who holds the fence longer is frozen."""

_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP})

BAD_KEPT = 3
"""Number of rejected checkpoints that are kept for inspection."""

SPARE = 1.2
"""The required free disk space, as a multiple of the size of the tensors."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of the checkpoints of one attempt, which every manifest records."""

    job_id: str
    lineage: int
    attempt: int
    revision: int
    signatures: Mapping[str, str]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A cloned state, with the name of its directory and the function for its digest."""

    step: int
    parent_step: int | None
    state: Plain
    name: str
    file: str
    digest: Callable[[Plain], str]
    stopped_early: str = ""


def of_step(step: int, parent_step: int | None, state: Plain) -> Snapshot:
    return Snapshot(step, parent_step, state, checkpoint_name(step), STATE, training_digest)


def training_digest(state: Plain) -> str:
    """Return the digest of the state that steps change, without the records of evaluations."""
    return digest({key: value for key, value in state.items() if key not in LOOKING_ON})


def of_final(step: int, weights: Plain, stopped_early: str = "") -> Snapshot:
    return Snapshot(step, step, weights, FINAL, WEIGHTS, weights_sha256, stopped_early)


def of_best(step: int, weights: Plain) -> Snapshot:
    return Snapshot(step, step, weights, f"{BEST}{step:08d}", WEIGHTS, weights_sha256)


def fence(directory: Path, attempt: int) -> None:
    """Check that the lineage still belongs to an attempt, before it changes anything there.

    Raises:
        Superseded: A later attempt has taken it over.
    """
    owner = owner_of(directory)
    if owner > attempt:
        raise Superseded(
            f"attempt {owner} has taken this lineage over; attempt {attempt} publishes nothing more"
        )


def owner_of(directory: Path) -> int:
    """Return the number of the attempt that has the lineage; 0 if none has written it."""
    try:
        return int((directory / OWNER).read_text())
    except (OSError, ValueError):
        return 0


@contextmanager
def _fenced(directory: Path) -> Iterator[None]:
    """Let no other process look at the owner and rename in between; a frozen one does not hold this up."""
    descriptor = os.open(directory / FENCE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + FENCE_WAIT_S
        while not _try_lock(descriptor) and time.monotonic() < deadline:
            threading.Event().wait(0.01)
        yield
    finally:
        os.close(descriptor)


def take_over(directory: Path, attempt: int) -> bool:
    """Make a lineage that of an attempt, and return whether an earlier attempt had it.

    Raises:
        Superseded: A later attempt has it.
    """
    with _fenced(directory):
        fence(directory, attempt)
        before = owner_of(directory)
        try:
            files.replace(directory / OWNER, str(attempt).encode())
        except OSError as error:
            if not is_disk_full(error):
                raise
            warn(f"{OWNER} cannot be written ({error.strerror}): the lock alone keeps earlier attempts out")
            return False
    return 0 < before < attempt


@contextmanager
def locked(
    directory: Path, requests: StopRequests, wait_s: float = LOCK_WAIT_S, *, attempt: int | None = None
) -> Iterator[None]:
    """Hold the lineage's lock, so that a zombie attempt and its successor never write concurrently.

    A number of the attempt makes the lineage its own.  Then an earlier attempt that holds the lock and does
    not let go, for example because it is frozen, can publish nothing more, and is not waited for.

    Raises:
        LineageBusy: Another process held the lock for ``wait_s``.
        Superseded: A later attempt has the lineage.
        Stopped: A stop was requested while waiting.
        InvalidSpec: The directory does not exist.
    """
    descriptor = _open_lock(directory)
    try:
        had_earlier = attempt is not None and take_over(directory, attempt)
        try:
            _lock(descriptor, directory, requests, min(wait_s, TAKE_OVER_S) if had_earlier else wait_s)
        except LineageBusy as error:
            if not had_earlier:
                raise
            warn(f"{error}; it belongs to attempt {attempt} now, and the other one can publish nothing more")
        yield
    finally:
        os.close(descriptor)


def _open_lock(directory: Path) -> int:
    try:
        return os.open(directory / ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except FileNotFoundError as error:
        raise InvalidSpec(f"{directory}: no such directory; it must be there before the attempt") from error


def _lock(descriptor: int, directory: Path, requests: StopRequests, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    while not _try_lock(descriptor):
        if requests.stop:
            raise Stopped("asked to stop while another process held the lineage's lock")
        if time.monotonic() >= deadline:
            raise LineageBusy(
                f"{directory}: locked by another process for {wait_s:g} s; stop that attempt first"
            )
        threading.Event().wait(0.05)


def _try_lock(descriptor: int) -> bool:
    """Return True if the lock is held now; a file system without locks has only the owner."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def load(directory: Path, file: str = STATE) -> Plain:
    """Return the state in one checkpoint directory, on the CPU.

    Raises:
        CheckpointInvalid: The file cannot be loaded, or contains values that are not plain.
    """
    try:
        return torch.load(directory / file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise CheckpointInvalid(f"{file}: {error.strerror}") from error
    except UNLOADABLE as error:
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise CheckpointInvalid(f"{file}: cannot be loaded: {first_line}") from error


def load_foreign(path: Path) -> Plain:
    """Return what ``torch.save`` wrote in another code base, on the CPU; none of its code is run.

    An object of another class, such as a configuration beside the weights, is an empty stand-in.

    Raises:
        CheckpointInvalid: The file cannot be loaded.
    """
    with ExitStack() as stack:
        with suppress(*UNLOADABLE):  # ``load`` says it
            foreign = get_unsafe_globals_in_checkpoint(path) if zipfile.is_zipfile(path) else ()
            stand_ins = [(type("StandIn", (_StandIn,), {}), name) for name in foreign]
            stack.enter_context(safe_globals(stand_ins))
        return load(path.parent, path.name)


class _StandIn(dict[Any, Any]):
    """Takes the place of an object of another code base, and keeps nothing of it."""

    def __new__(cls, *_: object, **__: object) -> Self:
        return super().__new__(cls)

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()

    def __setstate__(self, state: object) -> None:
        """Drop the state of the object."""

    def append(self, value: object) -> None:
        """Drop an element of the object."""


def publish(directory: Path, snapshot: Snapshot, provenance: Provenance) -> None:
    """Write a snapshot below ``directory``, durably, and verify it before it gets its name.

    Raises:
        DiskFull: The disk is full; no partial snapshot is left.
    """
    _require_space(directory, snapshot)
    tmp = directory / f".tmp-{snapshot.step}-{secrets.token_hex(4)}"
    try:
        tmp.mkdir()
        _write_state(tmp / snapshot.file, snapshot.state)
        sha256 = _proven_digest(tmp, snapshot)
        manifest = _manifest(tmp / snapshot.file, snapshot, provenance, sha256)
        files.write_durably(tmp / MANIFEST, dump(manifest).encode())
        files.sync(tmp)
        with _fenced(directory):
            fence(directory, provenance.attempt)
            tmp.rename(directory / snapshot.name)
        files.sync(directory)
    except Superseded:
        files.remove_tree(tmp)
        raise
    except (OSError, RuntimeError) as error:
        files.remove_tree(tmp)  # free the space at once
        fence(directory, provenance.attempt)  # a later attempt sweeps what this one writes
        if is_disk_full(error):
            raise DiskFull(f"{directory / snapshot.name}: not written: no space left on the disk") from error
        raise


def _require_space(directory: Path, snapshot: Snapshot) -> None:
    need = int(size_bytes(snapshot.state) * SPARE) + 64 * 1024
    free = shutil.disk_usage(directory).free
    if free < need:
        raise DiskFull(
            f"{directory / snapshot.name}: not written: it needs {need / 2**20:.1f} MiB"
            f" and {free / 2**20:.1f} MiB are free; make room"
        )


def _write_state(path: Path, state: Plain) -> None:
    with path.open("xb") as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:  # torch wraps the file's error in one of its archive format
            for each in chain(error):
                if isinstance(each, OSError):
                    raise each from error
            raise
        file.flush()
        os.fsync(file.fileno())


def _proven_digest(tmp: Path, snapshot: Snapshot) -> str:
    """Read the snapshot back from the disk, compare its content, and return its digest."""
    expected = snapshot.digest(snapshot.state)
    try:
        found = snapshot.digest(load(tmp, snapshot.file))
    except CheckpointInvalid as error:
        raise OSError(f"{snapshot.name}: just written and cannot be read back: {error}") from error
    if found != expected:
        raise OSError(f"{snapshot.name}: reads back with other content than was written")
    return expected


def _manifest(file: Path, snapshot: Snapshot, provenance: Provenance, sha256: str) -> Manifest:
    return Manifest(
        contract_version=CONTRACT_VERSION,
        job_id=provenance.job_id,
        step=snapshot.step,
        lineage=provenance.lineage,
        attempt=provenance.attempt,
        revision=provenance.revision,
        parent_step=snapshot.parent_step,
        created=time.time(),
        files={file.name: FileDigest(bytes=file.stat().st_size, sha256=file_sha256(file))},
        signatures=dict(provenance.signatures),
        environment=dict(provenance.environment),
        state_sha256=sha256,
        stopped_early=snapshot.stopped_early,
    )


def sweep(directory: Path) -> None:
    """Remove partly written or partly deleted directories of a killed attempt; requires the lock."""
    for entry in directory.iterdir():
        if entry.name.startswith((".tmp-", ".trash-")):
            files.remove_tree(entry)


def retain(directory: Path, keep: int, milestone_every: int | None = None) -> None:
    """Delete all but the ``keep`` newest checkpoints; milestones are neither counted nor deleted."""
    passing = [
        path for step, path in checkpoints(directory) if not (milestone_every and step % milestone_every == 0)
    ]
    for path in passing[keep:]:
        files.discard(path, secrets.token_hex(4))


def bests(directory: Path, beyond: int = -1) -> list[Path]:
    """Return the weights directories of best evaluations; if ``beyond`` is given, those after that step."""
    return [path for path in directory.glob(f"{BEST}*") if path.name > f"{BEST}{beyond:08d}" or beyond < 0]


def retain_best(directory: Path, name: str) -> None:
    """Delete the weights of all best evaluations except the named one."""
    for path in bests(directory):
        if path.name != name:
            files.discard(path, secrets.token_hex(4))


def set_aside(path: Path, prefix: str) -> None:
    """Rename a directory so that it is not read as a checkpoint again."""
    path.rename(path.with_name(f"{prefix}-{path.name}-{secrets.token_hex(4)}"))


def set_aside_bad(path: Path) -> None:
    """Set a rejected checkpoint aside, and delete all but the ``BAD_KEPT`` latest ones."""
    set_aside(path, "bad")
    bad = sorted(path.parent.glob("bad-*"), key=lambda each: each.lstat().st_ctime_ns, reverse=True)
    for old in bad[BAD_KEPT:]:
        files.discard(old, secrets.token_hex(4))
