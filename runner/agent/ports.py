"""The ports to run directories, batch systems and queues.

They stand here and not in ``runner.core.ports`` because their values are those of ``jobs.contract``, which
core does not know.
"""

from collections.abc import Callable, Mapping
from io import BufferedReader
from pathlib import Path
from socket import socket
from typing import Literal, Protocol, TypeAlias, TypeVar

from jobs.contract import AttemptSpec, Effective, Result, RunPaths, Status, TraceSummary
from runner.core.accounting.curve_set import LogNumbers, NewNumbers
from runner.core.ports.checkpoints import (
    ProgramCheckpoint,
    ProgramFiles,
    RoomToSave,
    SavedCheckpoints,
    Verification,
)
from runner.core.ports.code import WorkingDirectory
from runner.core.ports.executor import BatchRequest
from runner.core.ports.users import Owner

T = TypeVar("T")


class RunDirectory(Protocol):
    """``<state>/jobs/<id>`` of one job.  What the job wrote there is hostile, and is read with limits."""

    @property
    def root(self) -> Path:
        """Return the path of the directory on the host."""

    def paths(self, attempt: int, lineage: int) -> RunPaths:
        """Return the paths of one attempt."""

    def create(self) -> None:
        """Make the directory of the job; may raise Refused, Unavailable."""

    def prepare(self, spec: AttemptSpec, secrets: Mapping[str, bytes], said: str = "") -> RunPaths:
        """Make the directories of one attempt, with its spec in place; may raise Refused, Unavailable.

        ``said`` is what its log begins with.
        """

    def highest_numbers(self) -> tuple[int, int]:
        """Return the highest number of an attempt and of a lineage that is there, 0 if there is none."""

    def make_work(
        self,
        lineage: int,
        wanted: WorkingDirectory,
        fill: Callable[[Path], None],
        update: Callable[[str, Path], tuple[str, ...]],
        afresh: int | None = None,
    ) -> tuple[str, ...]:
        """Make the working directory of a lineage with what ``fill`` writes.

        For the attempt ``afresh``, what earlier ones have left there is set aside, in
        ``work/L.before-N`` of the run directory.

        One that was made of another snapshot is given to ``update`` with that snapshot; the answer is what
        that returns: the paths that the program keeps.  May raise Refused, Unavailable.
        """

    def is_lineage_locked(self, paths: RunPaths) -> bool:
        """Return True if a process holds the lock of a lineage."""

    def move(self, name: str) -> None:
        """Give the directory another name, that of its job; nothing happens if it was never made."""

    def remove(self) -> None:
        """Remove the directory, which no job has; nothing happens if there is none."""

    def seed(self, lineage: int, fill: Callable[[Path], None]) -> None:
        """Publish a lineage with what ``fill`` writes into a directory that the job cannot reach yet."""

    def secret(self, name: str) -> Path:
        """Return the path of the copy of a secret."""

    def forget_secrets(self) -> None:
        """Remove the copies of the job's secrets."""

    def remove_drafts(self) -> None:
        """Remove what a killed daemon has begun to write and not completed."""

    def room_to_save(self, paths: RunPaths) -> RoomToSave | None:
        """Return the room for a checkpoint of a lineage, and the size of its newest one; None: unknown."""

    def there(self, paths: RunPaths) -> frozenset[str]:
        """Return the names of the reports that an attempt has written."""

    def spec(self, paths: RunPaths) -> AttemptSpec | None:
        """Return the spec that an attempt was given, or None if there is none."""

    def status(self, paths: RunPaths) -> Status | None:
        """Return the last heartbeat, or None if none can be read."""

    def log_status(self, paths: RunPaths, pattern: str | None) -> Status | None:
        """Return the progress that the log tells, by a pattern or by known formats, or None."""

    def log_numbers(self, paths: RunPaths, pattern: str | None, *, ended: bool) -> tuple[LogNumbers, ...]:
        """Return the numbers of the lines that the log has gained since the last call.

        ``ended``: its last line is whole, even without a line end.
        """

    def log_times(self, attempt: int) -> Path:
        """Return the file with the sizes that the log of an attempt had."""

    def note_log_size(self, paths: RunPaths, now_s: float) -> None:
        """Note the size of the log of an attempt that runs, now and then."""

    def result(self, paths: RunPaths) -> Result | None:
        """Return the result, or None if none can be read."""

    def effective(self, paths: RunPaths) -> Effective | None:
        """Return the settings that took effect, as far as the attempt has reported them."""

    def trace(self, paths: RunPaths) -> TraceSummary | None:
        """Return the table of the trace that an attempt has recorded, or None if there is none."""

    def read_numbers(self, paths: RunPaths, offset: int) -> NewNumbers | None:
        """Return the next piece of what an attempt has written beyond an offset, None if there is none.

        May raise Unavailable.
        """

    def rates(self, paths: RunPaths) -> tuple[float, ...]:
        """Return the rates that an attempt has measured, in items per second, the latest last."""

    def saved(self, paths: RunPaths, how: Verification = ..., also: int | None = None) -> SavedCheckpoints:
        """Return the checkpoints of a lineage; ``also`` is the step of an older one that is looked at, too.

        The content is verified unless ``how`` says otherwise: this takes minutes, and is for the threads of
        the verification queue alone.  May raise Unavailable.
        """

    def weights(self, kind: Literal["best", "final"]) -> Path | None:
        """Return the directory of the weights that the newest lineage with any has published; None: none."""

    def program_saved(
        self, paths: RunPaths, wanted: ProgramFiles, how: Verification = ...
    ) -> SavedCheckpoints:
        """Return the checkpoints that a program has saved on its own; as ``saved``."""

    def choose_program_checkpoint(
        self, paths: RunPaths, wanted: ProgramFiles, step: int | None, *, is_first: bool
    ) -> ProgramCheckpoint | None:
        """Return the checkpoint of a step, or the newest whole one, put back if it is torn.

        Those after a step that is asked for are set aside for the attempt.  ``is_first``: the attempt is the
        first of its lineage, and what is there came with the code, unless the lineage was given one.
        May raise Refused, Unavailable.
        """

    def copy_checkpoint(
        self, paths: RunPaths, step: int, target: Path, check: Callable[[], None] = ...
    ) -> None:
        """Copy a checkpoint into a directory, without verifying it; may raise CheckpointInvalid, OSError.

        ``check`` is called now and then; what it raises ends the copy.
        """

    def copy_program_checkpoint(
        self, paths: RunPaths, wanted: ProgramFiles, target: Path, check: Callable[[], None] = ...
    ) -> None:
        """Copy the newest checkpoint of a program into a lineage that has not begun; as ``copy_checkpoint``.

        May also raise Unavailable.
        """

    def tail(self, path: Path, limit: int) -> bytes:
        """Return the end of a file that the job may have written; nothing if it cannot be read."""

    def open(self, path: Path) -> BufferedReader:
        """Open a file that the job may have written, for reading; may raise OSError."""

    def limit_log(self, paths: RunPaths, quota_bytes: int, keep_head: int, keep_tail: int) -> int:
        """Cut the middle out of a log that is larger than its quota; return the number of bytes cut."""

    def terminals(self, paths: RunPaths) -> tuple[str, ...]:
        """Return the names of the terminals that are held in an attempt, the oldest first."""

    def terminal_touched(self, paths: RunPaths) -> float | None:
        """Return the last use of an attempt's terminal, in seconds since the epoch, if one is held."""

    def tell_terminals(self, paths: RunPaths, text: str) -> None:
        """Show a line on the terminals of an attempt; what cannot be shown is left out."""

    def connect(self, paths: RunPaths, name: str) -> socket:
        """Return a connection to a socket that the job holds; may raise Refused."""

    def keep(self, attempt: int, name: str, text: str) -> None:
        """Write a text beside an attempt, where the job cannot change it; may raise Unavailable."""

    def has_kept(self, attempt: int, name: str) -> bool:
        """Return True if such a text exists, or the directory for it does not exist."""


class BatchCheck(Protocol):
    """Check of a job by a batch system before it is submitted."""

    def problem(self, request: BatchRequest, owner: Owner) -> tuple[str, str] | None:
        """Return the field of the job file that the batch system refuses, and the fact; None: nothing.

        A batch system that does not answer refuses nothing.
        """


OpenRunDirectory: TypeAlias = Callable[[Path, Owner], RunDirectory]
"""Returns the run directory at a path, whose leaves belong to an owner."""
