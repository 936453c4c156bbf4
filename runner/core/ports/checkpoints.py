"""Checkpoints of attempts, as adapters find them and policies judge them."""

from dataclasses import dataclass
from datetime import datetime
from enum import Enum


class Verification(Enum):
    """Thoroughness of the verification of checkpoints."""

    SIZES = "sizes"  # manifests and sizes alone
    KNOWN = "known"  # the same, without those whose content was found to be bad before
    CONTENT = "content"  # the content of the newest is compared with its SHA-256; this may take minutes


@dataclass(frozen=True, slots=True)
class ProgramFiles:
    """Files of a program that are its checkpoints."""

    pattern: str  # below the working directory, below /job/home/, or below a mount
    keep: int  # copies of a checkpoint that its program writes over
    mount: str = ""  # the directory of the host that the pattern is below; empty: it is in the run directory


@dataclass(frozen=True, slots=True)
class ProgramCheckpoint:
    """A checkpoint that a program has saved on its own."""

    step: int  # the number by which it is chosen: its step, or the number of the version
    path: str  # below the working directory, the home directory or the mount
    in_home: bool = False
    set_aside: tuple[str, ...] = ()  # later ones, which were moved away for the attempt that begins here
    directory: str = ""  # below the run directory or the mount, where those are now
    known_as: str | None = None  # such as "version 3"; empty: by its path alone; None: by its step
    put_back: tuple[str, ...] = ()  # torn ones, in whose place a kept version is now
    torn: tuple[str, ...] = ()  # others, which were renamed


@dataclass(frozen=True, slots=True)
class SavedCheckpoints:
    """The checkpoints of one lineage."""

    steps: tuple[int, ...] = ()  # of the valid ones, the newest first
    rejected: tuple[str, ...] = ()  # the invalid ones, and what is wrong with them
    changed: datetime | None = None  # when the newest valid one was put there
    attempt: int | None = None  # that made it, as its manifest says
    unverified: tuple[str, ...] = ()  # neither valid nor invalid as far as is known, and why
    complete: bool = True  # False: there may be others, which could not be read
    set_aside: tuple[int, ...] = ()  # steps that an earlier restart has moved away; they can be put back
    are_steps: bool = True  # False: the newest has no step
    has_versions: bool = False  # none of them has a step: the numbers are in the order of saving
    advanced: bool | None = None  # there is a newer one than the attempt began with; None: the steps tell
    missed: str = ""  # why the pattern of the job file has never named anything
    only_first: bool | None = None  # the attempt began with the first ever, a directory; None: unknown
    went_back: str = ""  # what shows that the attempt did not go on from its checkpoint

    @property
    def newest(self) -> int | None:
        return next(iter(self.steps), None)


@dataclass(frozen=True, slots=True)
class RoomToSave:
    """Space left for unprivileged users on a file system, and the size of the newest checkpoint."""

    free_bytes: int
    newest_bytes: int
