"""Checkpoints of jobs, from the daemon's side: it opens their directories, and their users' workers look.

The daemon knows what was verified before, and where the notes about the checkpoints of a program are.
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock
from typing import Final, Protocol, TypeVar

from jobs.contract import CheckpointInvalid
from runner.adapters.host.checkpoints import WITHIN_S, LineageLook, VerificationResult
from runner.adapters.host.program_checkpoints import HOME, ProgramLineage, Seen
from runner.adapters.host.user_outputs import UserOutputs
from runner.adapters.host.workers import WorkerEnded
from runner.base.errors import RunnerError, Unavailable, UsageError, disk_errors
from runner.core.ports.checkpoints import ProgramCheckpoint, ProgramFiles, SavedCheckpoints, Verification
from runner.core.ports.users import Owner

T = TypeVar("T")

REMEMBERED: Final = 4096
"""Lineages whose verified checkpoints are remembered."""


ENDED: Final = (WorkerEnded, UsageError)
"""Errors of a worker that has reached a limit."""


def twice(work: Callable[[], T]) -> T:
    """Return the result of a worker's work; it is done again if somebody has killed the worker.

    Raises:
        WorkerEnded: it has ended again.
    """
    try:
        return work()
    except WorkerEnded:
        return work()


def _unknown(error: Exception) -> SavedCheckpoints:
    return SavedCheckpoints(unverified=(f"checkpoints: {error}",), complete=False)


class WorkOf(Protocol):
    """Access to what works with the rights of an owner."""

    def outputs(self, owner: Owner, check: Callable[[], None], within_s: float | None = None) -> UserOutputs:
        """Return it; ``within_s`` is for what takes so long, and what ``check`` raises ends the wait."""

    def open_as_owner(self, owner: Owner, path: Path) -> int:
        """Return a descriptor of a directory; may raise UsageError, Unavailable, OSError."""


class WorkHere:
    """Satisfies ``WorkOf`` with the rights of this process, where they are the owner's."""

    def outputs(self, owner: Owner, check: Callable[[], None], within_s: float | None = None) -> UserOutputs:
        del owner, within_s
        return UserOutputs(check)

    def open_as_owner(self, owner: Owner, path: Path) -> int:
        del owner
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


@dataclass(slots=True)
class CheckpointVerifier:
    """Verifies for one daemon, and remembers the results."""

    within_s: float = WITHIN_S
    work: WorkOf = field(default_factory=WorkHere)
    _leaving: Event = field(default_factory=Event)
    _known: "OrderedDict[Path, Mapping[str, VerificationResult]]" = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)

    def close(self) -> None:
        """Break off every verification: the daemon is stopping, and the next one verifies again."""
        self._leaving.set()

    def check(self) -> None:
        """Raise ``Unavailable`` when the daemon is stopping."""
        if self._leaving.is_set():
            raise Unavailable("the daemon is stopping; the next one verifies the checkpoints")

    def of(self, owner: Owner, how: Verification = Verification.CONTENT) -> UserOutputs:
        """Return the reader of an owner's checkpoints that looks so thoroughly."""
        within_s = self.within_s if how is not Verification.KNOWN else None
        return self.work.outputs(owner, self.check, within_s)

    def saved(
        self, place: Path, lineage: int, owner: Owner, how: Verification, also: int | None = None
    ) -> SavedCheckpoints:
        """Return the checkpoints of an open lineage, whose path is ``place``.

        ``also`` is the step of an older one that is looked at, too.

        Raises:
            Unavailable: the daemon is stopping, or there is no answer.
        """
        with self._lock:
            known = self._known.get(place, {})
        work = self.work.outputs(owner, self.check, self.within_s if how is Verification.CONTENT else None)
        look = LineageLook(how, also, self.within_s, known)
        try:
            found = twice(lambda: work.look_at_lineage(lineage, look))
        except ENDED as error:
            return _unknown(error)
        if found.known:
            with self._lock:
                self._known[place] = found.known
                self._known.move_to_end(place)
                if len(self._known) > REMEMBERED:
                    self._known.popitem(last=False)
        return found.saved


@dataclass(slots=True)
class ProgramCheckpoints:
    """Checkpoints of a program in one run directory."""

    root: Path
    owner: Owner
    verifier: CheckpointVerifier
    open_leaf: Callable[[Path], AbstractContextManager[int]]
    """Opens a directory of the job."""
    open_kept: Callable[[int], int]
    """Returns a descriptor of the directory for versions and notes of a lineage; may raise OSError."""
    _seen: Seen = field(default_factory=Seen)
    _lock: Lock = field(default_factory=Lock)

    def saved(
        self, lineage: int, wanted: ProgramFiles, how: Verification, attempt: int = 0
    ) -> SavedCheckpoints:
        """Return the checkpoints of a lineage; see ``ProgramReader.saved``; may raise Unavailable."""
        try:
            with self._lock, self._places(lineage, wanted) as places:
                if places is None:
                    return SavedCheckpoints()
                asked = self._asked(lineage, attempt, wanted)
                work = self.verifier.of(self.owner, how)
                found, self._seen = twice(lambda: work.look_at_program(*places, asked, how))
                return found
        except ENDED as error:
            return _unknown(error)
        except Unavailable as error:
            if not wanted.mount:
                raise
            return _unknown(error)

    def begin(self, lineage: int, wanted: ProgramFiles) -> bool:
        """Begin a lineage; see ``ProgramReader.begin_lineage``; may raise Unavailable."""
        with self._lock, self._places(lineage, wanted) as places:
            if places is None:
                return False
            return self.verifier.of(self.owner).begin_program(*places, self._asked(lineage, 0, wanted))

    def give_newest(
        self, lineage: int, wanted: ProgramFiles, target: Path, check: Callable[[], None]
    ) -> None:
        """Copy the newest one for another lineage; see ``ProgramReader.give_newest``."""
        with self._lock, self._places(lineage, wanted) as places, self.open_leaf(target) as draft:
            if places is None:
                raise CheckpointInvalid("its directory is gone")
            work = self.verifier.work.outputs(self.owner, check, self.verifier.within_s)
            work.give_newest_of_program(*places, self._asked(lineage, 0, wanted), draft)

    def choose(
        self, lineage: int, attempt: int, wanted: ProgramFiles, step: int | None
    ) -> ProgramCheckpoint | None:
        """Return the checkpoint to resume from; raises what ``ProgramReader.choose`` raises."""
        with self._lock, self._places(lineage, wanted) as places:
            if places is None:
                return None
            asked, work = self._asked(lineage, attempt, wanted), self.verifier.of(self.owner)
            return twice(lambda: work.choose_of_program(*places, asked, step))

    def _asked(self, lineage: int, attempt: int, wanted: ProgramFiles) -> ProgramLineage:
        return ProgramLineage(self.root.name, lineage, attempt, wanted, self.verifier.within_s, self._seen)

    @contextmanager
    def _places(self, lineage: int, wanted: ProgramFiles) -> Iterator[tuple[int, int, int] | None]:
        """Open the directories of a lineage; None if that of the pattern is not there.

        Raises:
            UsageError: the owner may not read the mount of the pattern, or it is gone.
            Unavailable: its file system does not answer.
        """
        with ExitStack() as stack:
            try:
                base = self._open_base(lineage, wanted, stack)
            except (OSError, RunnerError):
                if wanted.mount:  # which says nothing about the checkpoints in it
                    raise
                yield None
                return
            with disk_errors("kept versions of checkpoints"):
                kept = self.open_kept(lineage)
            stack.callback(os.close, kept)
            yield base, kept, self._open_lineage(lineage, stack)

    def _open_lineage(self, lineage: int, stack: ExitStack) -> int:
        try:
            return stack.enter_context(self.open_leaf(self.root / "lineages" / str(lineage)))
        except OSError:  # nothing is set aside where there is none
            nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, nothing)
            return nothing

    def _open_base(self, lineage: int, wanted: ProgramFiles, stack: ExitStack) -> int:
        if not wanted.mount:
            name = "homes" if wanted.pattern.startswith(HOME) else "work"
            return stack.enter_context(self.open_leaf(self.root / name / str(lineage)))
        base = self.verifier.work.open_as_owner(self.owner, Path(wanted.mount))
        stack.callback(os.close, base)
        return base
