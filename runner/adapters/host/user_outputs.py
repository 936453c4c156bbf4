"""Calls of a worker about what jobs of its user have written, with the rights of its process."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from jobs.contract import BEST_NAME, FINAL_NAME, open_directory, open_regular
from runner.adapters.host.checkpoint_copy import copy_checkpoint
from runner.adapters.host.checkpoints import LineageLook, LineageReader, LookedAt, opened_checkpoint
from runner.adapters.host.program_checkpoints import ProgramLineage, ProgramReader, Seen
from runner.adapters.rpc.calls import Descriptor
from runner.base.errors import Unavailable
from runner.base.readable import readable_duration
from runner.core.accounting.curve_set import CurveSet, NewNumbers
from runner.core.ports.checkpoints import ProgramCheckpoint, RoomToSave, SavedCheckpoints, Verification

PIECE_BYTES: Final = 1024**2
"""Bytes of a file of numbers that are read for one answer."""

MOST_FILES: Final = 1000
"""Files of a checkpoint whose sizes are added up."""

WEIGHTS: Final = {"best": BEST_NAME, "final": FINAL_NAME}
"""The names of published weights."""

SECTOR_BYTES: Final = 512
"""The unit of ``st_blocks``, whatever the file system's is."""


class UserOutputs:
    """Outputs of a user's jobs, in files and directories that the daemon has opened.

    ``check`` is called now and then, and raises what ends the work.
    """

    def __init__(self, check: Callable[[], None] = lambda: None) -> None:
        self._check = check

    def look_at_lineage(self, lineage: Descriptor, look: LineageLook) -> LookedAt:
        """Return the checkpoints of a lineage; may raise Unavailable."""
        return LineageReader(lineage, look, self._check).read()

    def copy_checkpoint(self, lineage: Descriptor, target: Descriptor, name: str) -> None:
        """Copy a checkpoint into a directory; may raise CheckpointInvalid, OSError, Unavailable."""
        with opened_checkpoint(lineage, name) as source:
            copy_checkpoint(source, Path(f"/proc/self/fd/{target}") / name, self._check)

    def read_numbers(self, file: Descriptor, offset: int) -> NewNumbers:
        """Return whole lines of a file of numbers beyond an offset, so that the answer comes in a moment.

        Raises:
            OSError: the file system refuses it.
        """
        piece = os.pread(file, PIECE_BYTES, offset)
        end = piece.rfind(b"\n") + 1
        if end == 0 and len(piece) == PIECE_BYTES:
            end = len(piece)  # of a line that is longer than any that counts
        found = CurveSet(offset=offset + end)
        for line in piece[:end].splitlines():
            found.add_line(line)
        return found.numbers()

    def room_to_save(self, lineage: Descriptor) -> RoomToSave:
        """Return the room for a checkpoint, and the size of the newest one; may raise OSError."""
        file_system = os.fstatvfs(lineage)
        names = [name for name in os.listdir(lineage) if name.startswith("step-")]
        newest = _size_of(lineage, max(names)) if names else 0
        return RoomToSave(file_system.f_bavail * file_system.f_frsize, newest)

    def published(self, lineage: Descriptor, kind: Literal["best", "final"]) -> str | None:
        """Return the name of the weights that a lineage has published; may raise OSError."""
        return max(filter(WEIGHTS[kind].fullmatch, os.listdir(lineage)), default=None)

    def look_at_program(
        self,
        base: Descriptor,
        kept: Descriptor,
        lineage: Descriptor,
        asked: ProgramLineage,
        how: Verification,
    ) -> tuple[SavedCheckpoints, Seen]:
        """Return the checkpoints that a program has saved; may raise Unavailable."""
        return self._reader(base, kept, lineage, asked).saved(how), asked.seen

    def begin_program(
        self, base: Descriptor, kept: Descriptor, lineage: Descriptor, asked: ProgramLineage
    ) -> bool:
        """Leave out what is there, and return whether the lineage was given a checkpoint.

        Raises:
            Unavailable: the file system refuses it.
        """
        return self._reader(base, kept, lineage, asked).begin_lineage()

    def give_newest_of_program(
        self,
        base: Descriptor,
        kept: Descriptor,
        lineage: Descriptor,
        asked: ProgramLineage,
        target: Descriptor,
    ) -> None:
        """Copy the newest one for another lineage; may raise CheckpointInvalid, OSError, Unavailable."""
        self._reader(base, kept, lineage, asked).give_newest(target)

    def choose_of_program(
        self, base: Descriptor, kept: Descriptor, lineage: Descriptor, asked: ProgramLineage, step: int | None
    ) -> ProgramCheckpoint | None:
        """Return the checkpoint to resume from, in its place; may raise Refused, Unavailable."""
        return self._reader(base, kept, lineage, asked).choose(step)

    def _reader(self, base: int, kept: int, lineage: int, asked: ProgramLineage) -> ProgramReader:
        until_s = time.monotonic() + asked.within_s

        def check() -> None:
            self._check()
            if time.monotonic() > until_s:
                raise Unavailable(f"checkpoints: not copied within {readable_duration(asked.within_s)}")

        return ProgramReader(base, kept, lineage, asked, check)


def _size_of(parent: int, name: str) -> int:
    """Return the disk use of the files in a directory below an open one."""
    size = 0
    with open_directory(name, parent) as directory:
        for each in sorted(os.listdir(directory))[:MOST_FILES]:
            with suppress(OSError), open_regular(each, directory) as file:
                size += os.fstat(file.fileno()).st_blocks * SECTOR_BYTES
    return size
