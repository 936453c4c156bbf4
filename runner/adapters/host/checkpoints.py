"""Verifies the checkpoints of a job, which are hostile: within a time, and within what they take on disk.

A file may claim any size without taking a block of the disk, and hashing it takes time by its size.  So a
checkpoint that claims much more than it takes is not verified, and a verification ends at its deadline, or
when the daemon leaves.  What could not be verified is unknown: neither valid nor invalid.  A result is
remembered for as long as no file of the checkpoint changes, so requests never need to hash.
"""

import hashlib
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Event, Lock
from typing import Final, TypeAlias

from jobs.contract import (
    MANIFEST,
    CheckpointInvalid,
    FileDigest,
    Manifest,
    checkpoints,
    open_verified_size,
    read_manifest_in,
)
from runner.adapters.host.run_files import OwnRights, RunFiles
from runner.base.errors import Unavailable, UsageError
from runner.base.units import format_size
from runner.core.ports.checkpoints import SavedCheckpoints, Verification
from runner.core.ports.users import Owner

SURE: Final = 2
"""How many of the newest checkpoints are verified completely; of older ones, the sizes are compared."""

NEWEST: Final = 64
"""How many checkpoints of a lineage are looked at."""

MAX_MANIFESTS_BYTES: Final = 8 * 1024**2
"""Size of all manifests that are read in one look at a lineage."""

WITHIN_S: Final = 600.0
"""Longest verification of the checkpoints of one lineage."""

FREE_BYTES: Final = 64 * 1024**2
MOST_SPARSE: Final = 16
"""A checkpoint may claim ``FREE_BYTES``, and this many times what it takes on disk."""

REMEMBERED: Final = 4096
_BLOCK_BYTES: Final = 1024**2
_SECTOR: Final = 512  # the unit of st_blocks, whatever the file system's is

Fingerprint: TypeAlias = bytes
OpenBeneath: TypeAlias = Callable[[Owner, int, str], int]
"""Returns a descriptor of a directory below an open directory, opened with the rights of an owner."""


class NotVerified(Exception):
    """A checkpoint could not be verified; the text says why."""


@dataclass(slots=True)
class CheckpointVerifier:
    """Verifies for one daemon, and remembers the results."""

    within_s: float = WITHIN_S
    open_beneath: OpenBeneath | None = None  # None: with the daemon's rights
    files: RunFiles = field(default_factory=OwnRights)
    monotonic: Callable[[], float] = time.monotonic
    _leaving: Event = field(default_factory=Event)
    _known: "OrderedDict[Fingerprint, CheckpointInvalid | NotVerified | None]" = field(
        default_factory=OrderedDict
    )
    _lock: Lock = field(default_factory=Lock)

    def close(self) -> None:
        """Break off every verification: the daemon leaves, and the next one verifies again."""
        self._leaving.set()

    def saved(
        self, lineage_dir: Path, owner: Owner, how: Verification, also: int | None = None
    ) -> SavedCheckpoints:
        """Return the checkpoints of a lineage; ``also`` is the step of an older one that is looked at, too.

        Raises:
            Unavailable: the daemon leaves.
        """
        try:
            with self.files.open_directory(lineage_dir) as lineage:
                return _Look(self, lineage, owner, how, self.monotonic() + self.within_s).saved(also)
        except OSError:
            return SavedCheckpoints()

    @contextmanager
    def open(
        self, owner: Owner, lineage: int, name: str, how: Verification = Verification.CONTENT
    ) -> Iterator[int]:
        """Open a checkpoint directory; for its content to be read, with the rights of its owner.

        Raises:
            CheckpointInvalid: it cannot be opened.
        """
        with ExitStack() as stack:
            try:
                if self.open_beneath is None or how is not Verification.CONTENT:
                    fd = stack.enter_context(self.files.open_directory(name, lineage))
                else:
                    fd = self.open_beneath(owner, lineage, name)
                    stack.callback(os.close, fd)
            except (OSError, UsageError) as error:
                raise CheckpointInvalid(f"cannot be read: {getattr(error, 'strerror', error)}") from error
            yield fd

    def check_time(self, deadline: float) -> None:
        """Raise ``NotVerified`` after a deadline, and ``Unavailable`` when the daemon leaves."""
        if self._leaving.is_set():
            raise Unavailable("the daemon leaves; the next one verifies the checkpoints")
        if self.monotonic() > deadline:
            raise NotVerified(f"not verified within {self.within_s:g} s")

    @contextmanager
    def limited(self) -> Iterator[Callable[[], None]]:
        """Give what is called during work on checkpoints that takes a while, and breaks it off in time.

        Raises:
            Unavailable: the daemon leaves, or it takes too long.
        """
        try:
            yield partial(self.check_time, self.monotonic() + self.within_s)
        except NotVerified as error:
            raise Unavailable(f"checkpoints: {error}") from error

    def is_known(self, fingerprint: Fingerprint) -> bool:
        """Return whether a checkpoint is remembered as valid.

        Raises:
            CheckpointInvalid: it is invalid.
            NotVerified: it could not be verified.
        """
        with self._lock:
            if fingerprint not in self._known:
                return False
            self._known.move_to_end(fingerprint)
            problem = self._known[fingerprint]
        if problem is not None:
            raise problem.with_traceback(None)
        return True

    def remember(self, fingerprint: Fingerprint, problem: CheckpointInvalid | NotVerified | None) -> None:
        with self._lock:
            self._known[fingerprint] = problem
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)


@dataclass(slots=True)
class _Look:
    """One look at the checkpoints of an open lineage directory."""

    verifier: CheckpointVerifier
    lineage: int
    owner: Owner
    how: Verification
    deadline: float
    _manifests_bytes: int = 0

    def saved(self, also: int | None) -> SavedCheckpoints:
        valid: list[tuple[Manifest, datetime]] = []
        rejected, unverified, pending = [], [], False
        for directory in self._candidates(also):
            try:
                manifest, changed, is_known = self._validate(directory.name, content=len(valid) < SURE)
            except CheckpointInvalid as error:
                rejected.append(f"{directory.name}: {error}")
            except NotVerified as error:
                unverified.append(f"{directory.name}: {error}")
            else:
                if is_known:
                    valid.append((manifest, changed))
                else:
                    pending = True
                    unverified.append(f"{directory.name}: not verified yet")
        return SavedCheckpoints(
            tuple(manifest.step for manifest, _ in valid),
            tuple(rejected),
            valid[0][1] if valid else None,
            valid[0][0].attempt if valid else None,
            tuple(unverified),
            pending=pending,
        )

    def _candidates(self, also: int | None) -> Iterator[Path]:
        for number, (step, directory) in enumerate(checkpoints(self.lineage)):
            if (number < NEWEST and self._manifests_bytes < MAX_MANIFESTS_BYTES) or step == also:
                yield directory

    def _validate(self, name: str, *, content: bool) -> tuple[Manifest, datetime, bool]:
        """Return the manifest of a checkpoint, when it was put there, and whether it is known to be valid.

        Raises:
            CheckpointInvalid: a file is missing or differs.
            NotVerified: it cannot be verified.
            Unavailable: the daemon leaves.
        """
        with self.verifier.open(self.owner, self.lineage, name, self.how) as fd:
            manifest, status = _read_manifest(fd, name, self.verifier.files)
            changed = datetime.fromtimestamp(os.fstat(fd).st_ctime, UTC)
            self._manifests_bytes += status.st_size
            files = check_sizes(fd, manifest, self.verifier.files)
            if not content or self.how is Verification.SIZES:
                return manifest, changed, True
            fingerprint = _fingerprint((status, *files.values()))
            if self.verifier.is_known(fingerprint):
                return manifest, changed, True
            if self.how is Verification.KNOWN:
                return manifest, changed, False
            self.verifier.check_time(self.deadline)
            try:
                self._verify_content(fd, manifest, files)
            except (CheckpointInvalid, NotVerified) as problem:
                self.verifier.remember(fingerprint, problem)
                raise
            self.verifier.remember(fingerprint, None)
            return manifest, changed, True

    def _verify_content(self, fd: int, manifest: Manifest, files: Mapping[str, os.stat_result]) -> None:
        """Compare the content of every file with the manifest; one with several names is read once."""
        _check_allocation(files.values())
        digests: dict[tuple[int, int], str] = {}
        for name, expected in manifest.files.items():
            inode = (files[name].st_dev, files[name].st_ino)
            if inode not in digests:
                digests[inode] = self._digest(fd, name, expected, files[name])
            if digests[inode] != expected.sha256:
                raise CheckpointInvalid(f"{name}: content differs from its sha256")

    def _digest(self, fd: int, name: str, expected: FileDigest, before: os.stat_result) -> str:
        digest, block = hashlib.sha256(), memoryview(bytearray(_BLOCK_BYTES))
        with open_verified_size(fd, name, expected, self.verifier.files.open_file) as file:
            try:
                while size := file.readinto(block):
                    self.verifier.check_time(self.deadline)
                    digest.update(block[:size])
            except OSError as error:
                raise CheckpointInvalid(f"{name}: {error.strerror}") from error
            if _fingerprint((before,)) != _fingerprint((os.fstat(file.fileno()),)):
                raise NotVerified(f"{name}: was changed while it was verified")
        return digest.hexdigest()


def _read_manifest(fd: int, name: str, opener: RunFiles) -> tuple[Manifest, os.stat_result]:
    manifest = read_manifest_in(fd, name, opener.open_file)
    try:
        with opener.open_file(MANIFEST, fd) as file:
            return manifest, os.fstat(file.fileno())
    except OSError as error:
        raise CheckpointInvalid(f"manifest cannot be read: {error.strerror}") from error


def check_sizes(fd: int, manifest: Manifest, opener: RunFiles) -> dict[str, os.stat_result]:
    """Return the status of each file, after comparing its size and its owner.

    Raises:
        CheckpointInvalid: one is missing, of another size, or a hard link to a file of another user.
    """
    found: dict[str, os.stat_result] = {}
    owner = os.fstat(fd).st_uid
    for name, expected in manifest.files.items():
        with open_verified_size(fd, name, expected, opener.open_file) as file:
            found[name] = os.fstat(file.fileno())
        if found[name].st_uid != owner:
            raise CheckpointInvalid(f"{name}: belongs to another user than the checkpoint")
    return found


def _check_allocation(files: Iterable[os.stat_result]) -> None:
    """Raise ``NotVerified`` if files claim much more than they take on disk."""
    once = {(each.st_dev, each.st_ino): each for each in files}.values()
    claimed, allocated = sum(each.st_size for each in once), sum(each.st_blocks for each in once) * _SECTOR
    if claimed > FREE_BYTES + MOST_SPARSE * allocated:
        raise NotVerified(f"claims {format_size(claimed)}, and takes {format_size(allocated)} on disk")


def _fingerprint(files: Iterable[os.stat_result]) -> Fingerprint:
    """Return what differs when a file was replaced or written to; a job cannot set the time of a change."""
    seen = [(each.st_dev, each.st_ino, each.st_size, each.st_mtime_ns, each.st_ctime_ns) for each in files]
    return hashlib.sha256(repr(seen).encode()).digest()
