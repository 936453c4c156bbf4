"""Verifies the checkpoints of a job, which are hostile: within a time, and within what they take on disk.

A file may claim any size without taking a block of the disk, and hashing it takes time by its size.  So a
checkpoint that claims much more than it takes is not verified, and a verification ends at its deadline, or
when the daemon leaves.  What could not be verified is unknown: neither valid nor invalid.  A result is
remembered for as long as no file of the checkpoint changes, so requests never need to hash.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from jobs.contract import (
    MANIFEST,
    CheckpointInvalid,
    FileDigest,
    Manifest,
    checkpoints,
    open_directory,
    open_regular,
    open_verified_size,
    read_manifest_in,
)
from runner.base.readable import readable_duration, readable_size
from runner.core.ports.checkpoints import SavedCheckpoints, Verification

SURE: Final = 2
"""Number of the newest checkpoints that are verified completely; of older ones, the sizes are compared."""

NEWEST: Final = 64
"""Number of checkpoints of a lineage that are looked at."""

MAX_MANIFESTS_BYTES: Final = 8 * 1024**2
"""Size of all manifests that are read in one look at a lineage."""

WITHIN_S: Final = 600.0
"""Longest verification of the checkpoints of one lineage."""

FREE_BYTES: Final = 64 * 1024**2
MOST_SPARSE: Final = 16
"""A checkpoint may claim ``FREE_BYTES``, and this many times what it takes on disk."""

_BLOCK_BYTES: Final = 1024**2
_SECTOR: Final = 512  # the unit of st_blocks, whatever the file system's is


class NotVerified(Exception):
    """A checkpoint could not be verified; the text says why."""


@dataclass(frozen=True, slots=True)
class VerificationResult:
    """Result of a verification."""

    invalid: str | None = None
    unverified: str | None = None

    def raise_if_bad(self) -> None:
        """Raise CheckpointInvalid or NotVerified if that was found."""
        if self.invalid is not None:
            raise CheckpointInvalid(self.invalid)
        if self.unverified is not None:
            raise NotVerified(self.unverified)


@dataclass(frozen=True, slots=True)
class LineageLook:
    """Request for a look at the checkpoints of a lineage."""

    how: Verification
    also: int | None
    within_s: float
    known: Mapping[str, VerificationResult]  # by fingerprint, as the last look has found them


@dataclass(frozen=True, slots=True)
class LookedAt:
    """Result of a look at a lineage."""

    saved: SavedCheckpoints
    known: Mapping[str, VerificationResult]


@dataclass(slots=True)
class LineageReader:
    """One look at the checkpoints of an open lineage directory, with the rights of this process.

    ``check`` is called now and then, and may raise.
    """

    lineage: int
    look: LineageLook
    check: Callable[[], None]
    _deadline: float = field(init=False)
    _found: dict[str, VerificationResult] = field(default_factory=dict)
    _manifests_bytes: int = 0

    def __post_init__(self) -> None:
        self._deadline = time.monotonic() + self.look.within_s

    def read(self) -> LookedAt:
        """Return the checkpoints, with the results to remember."""
        valid: list[tuple[Manifest, datetime]] = []
        rejected, unverified = [], []
        for directory in self._candidates(self.look.also):
            try:
                valid.append(self._validate(directory.name, content=len(valid) < SURE))
            except CheckpointInvalid as error:
                rejected.append(f"{directory.name}: {error}")
            except NotVerified as error:
                unverified.append(f"{directory.name}: {error}")
        saved = SavedCheckpoints(
            tuple(manifest.step for manifest, _ in valid),
            tuple(rejected),
            valid[0][1] if valid else None,
            valid[0][0].attempt if valid else None,
            tuple(unverified),
        )
        return LookedAt(saved, self._found)

    def _candidates(self, also: int | None) -> Iterator[Path]:
        for number, (step, directory) in enumerate(checkpoints(self.lineage)):
            if (number < NEWEST and self._manifests_bytes < MAX_MANIFESTS_BYTES) or step == also:
                yield directory

    def _validate(self, name: str, *, content: bool) -> tuple[Manifest, datetime]:
        """Return the manifest of a checkpoint, and when it was put there.

        Raises:
            CheckpointInvalid: a file is missing or differs.
            NotVerified: it cannot be verified.
            Unavailable: the daemon leaves.
        """
        with opened_checkpoint(self.lineage, name) as fd:
            manifest, status = _read_manifest(fd, name)
            changed = datetime.fromtimestamp(os.fstat(fd).st_ctime, UTC)
            self._manifests_bytes += status.st_size
            files = check_sizes(fd, manifest)
            if not content or self.look.how is Verification.SIZES:
                return manifest, changed
            fingerprint = _fingerprint((status, *files.values()))
            found = self.look.known.get(fingerprint)
            if found is None and self.look.how is Verification.KNOWN:
                return manifest, changed
            found = found or self._verify(fd, manifest, files)
            self._found[fingerprint] = found
            found.raise_if_bad()
            return manifest, changed

    def _verify(self, fd: int, manifest: Manifest, files: Mapping[str, os.stat_result]) -> VerificationResult:
        try:
            self._check_time()
            self._verify_content(fd, manifest, files)
        except CheckpointInvalid as problem:
            return VerificationResult(invalid=str(problem))
        except NotVerified as problem:
            return VerificationResult(unverified=str(problem))
        return VerificationResult()

    def _check_time(self) -> None:
        self.check()
        if time.monotonic() > self._deadline:
            raise NotVerified(f"not verified within {readable_duration(self.look.within_s)}")

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
        with open_verified_size(fd, name, expected) as file:
            try:
                while size := file.readinto(block):
                    self._check_time()
                    digest.update(block[:size])
            except OSError as error:
                raise CheckpointInvalid(f"{name}: {error.strerror}") from error
            if _fingerprint((before,)) != _fingerprint((os.fstat(file.fileno()),)):
                raise NotVerified(f"{name}: was changed while it was verified")
        return digest.hexdigest()


@contextmanager
def opened_checkpoint(lineage: int, name: str) -> Iterator[int]:
    """Open a checkpoint of an open lineage directory; may raise CheckpointInvalid."""
    with ExitStack() as stack:
        try:
            fd = stack.enter_context(open_directory(name, lineage))
        except OSError as error:
            raise CheckpointInvalid(f"cannot be read: {error.strerror}") from error
        yield fd


def _read_manifest(fd: int, name: str) -> tuple[Manifest, os.stat_result]:
    manifest = read_manifest_in(fd, name)
    try:
        with open_regular(MANIFEST, fd) as file:
            return manifest, os.fstat(file.fileno())
    except OSError as error:
        raise CheckpointInvalid(f"manifest cannot be read: {error.strerror}") from error


def check_sizes(fd: int, manifest: Manifest) -> dict[str, os.stat_result]:
    """Return the status of each file, after comparing its size.

    Raises:
        CheckpointInvalid: one is missing, or of another size.
    """
    found: dict[str, os.stat_result] = {}
    for name, expected in manifest.files.items():
        with open_verified_size(fd, name, expected) as file:
            found[name] = os.fstat(file.fileno())
    return found


def _check_allocation(files: Iterable[os.stat_result]) -> None:
    """Raise ``NotVerified`` if files claim much more than they take on disk."""
    once = {(each.st_dev, each.st_ino): each for each in files}.values()
    claimed, allocated = sum(each.st_size for each in once), sum(each.st_blocks for each in once) * _SECTOR
    if claimed > FREE_BYTES + MOST_SPARSE * allocated:
        raise NotVerified(f"claims {readable_size(claimed)}, and takes {readable_size(allocated)} on disk")


def _fingerprint(files: Iterable[os.stat_result]) -> str:
    """Return a text that another file, or another write, changes; a job cannot set the time of a change."""
    seen = [(each.st_dev, each.st_ino, each.st_size, each.st_mtime_ns, each.st_ctime_ns) for each in files]
    return hashlib.sha256(repr(seen).encode()).hexdigest()
