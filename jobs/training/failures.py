"""The expected reasons why training ends early, each with its cause and its exit code.

``jobs.__main__`` turns them into one line on stderr, ``result.json`` and the exit status.
Any other exception is a defect and gets a traceback.
"""

import errno
import pickle
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from typing import ClassVar

from jobs.contract import Cause, ExitCode, Rejected

UNEXPECTED = 1
"""Exit status of every failure that has no code of its own in the contract."""

UNLOADABLE = (
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""Errors of torch, numpy and gzip, beside ``OSError``, for a file that is damaged or of another format."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class Failure(Exception):
    """Training ended early; the text gives the reason in one line."""

    cause: ClassVar[Cause] = Cause.EXCEPTION
    exit_code: ClassVar[int] = UNEXPECTED


class InvalidSpec(Failure):
    """The spec is not valid, or does not fit the corpus or the saved state."""

    cause = Cause.INVALID_SPEC
    exit_code: ClassVar[int] = ExitCode.INVALID_SPEC


class NoBatch(Failure):
    """The loader processes are alive but deliver no batch."""


class Stopped(Failure):
    """A stop was requested; new steps are saved if the spec saves on a stop."""

    cause = Cause.STOPPED
    exit_code: ClassVar[int] = ExitCode.STOPPED


class NonFinite(Failure):
    """The loss or the gradient is not finite; no checkpoint contains the update."""

    cause = Cause.NON_FINITE
    exit_code: ClassVar[int] = ExitCode.NON_FINITE


class DeviceOutOfMemory(Failure):
    """The device has too little memory for the step."""

    cause = Cause.DEVICE_OUT_OF_MEMORY
    exit_code: ClassVar[int] = ExitCode.DEVICE_OUT_OF_MEMORY


class NoValidCheckpoint(Failure):
    """Checkpoints exist and none is usable; training does not silently start from scratch."""

    cause = Cause.NO_VALID_CHECKPOINT
    exit_code: ClassVar[int] = ExitCode.NO_VALID_CHECKPOINT

    def __init__(self, message: str, rejected: tuple[Rejected, ...]) -> None:
        super().__init__(message)
        self.rejected = rejected


class DiskFull(Failure):
    """The disk has no space for a checkpoint that must be written."""

    cause = Cause.DISK_FULL


class LineageBusy(Failure):
    """Another process holds the lock of this lineage."""

    cause = Cause.LINEAGE_BUSY
    exit_code: ClassVar[int] = ExitCode.LINEAGE_BUSY


class Superseded(Failure):
    """A later attempt has taken the lineage over; this one publishes nothing more."""

    cause = Cause.SUPERSEDED
    exit_code: ClassVar[int] = ExitCode.SUPERSEDED


class RankLost(Failure):
    """Another process of this attempt is gone or does not answer."""

    cause = Cause.RANK_LOST
    exit_code: ClassVar[int] = ExitCode.RANK_LOST


class ReplicasDiffer(Failure):
    """The processes of this attempt hold other weights; no checkpoint contains them."""

    cause = Cause.REPLICAS_DIFFER
    exit_code: ClassVar[int] = ExitCode.REPLICAS_DIFFER


def is_disk_full(error: BaseException) -> bool:
    """Return True if an error or one of its causes reports a full disk or quota."""
    return any(isinstance(each, OSError) and each.errno in _FULL for each in chain(error))


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and the chain of its causes, latest first."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
