"""One answer of ``squeue`` for all attempts, asked for at a bounded rate."""

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Final

from runner.adapters.slurm.commands import SlurmCommands
from runner.adapters.slurm.states import FORMAT, Row, parse_rows
from runner.base.errors import Unavailable

AGAIN_S: Final = 5.0
"""After Slurm has not answered, it is not asked again for so long: each command waits ten seconds for it."""


@dataclass(frozen=True, slots=True)
class QueueAnswer:
    """The jobs of some users in Slurm, and when they were asked for, by the monotonic clock."""

    asked_s: float = -inf
    rows: dict[str, Row] = field(default_factory=dict)

    def row(self, number: str, name: str, uid: int) -> Row | None:
        """Return a job; one with its number and another name is another job, which has got the number."""
        row = self.rows.get(number)
        return row if row is not None and row.name == name and row.uid == uid else None


@dataclass(slots=True, repr=False)
class QueueView:
    """The last answer of ``squeue``."""

    commands: SlurmCommands
    _answer: QueueAnswer = field(default_factory=QueueAnswer)
    _expired_s: float = -inf  # an answer that was asked for earlier does not know what was changed then
    _failed: tuple[float, str] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    asked: int = 0
    """How often Slurm was asked."""

    def expire(self) -> None:
        """Have the next look ask again: something was submitted, or signalled."""
        self._expired_s = time.monotonic()

    def look(self, uids: Iterable[int], max_age_s: float) -> QueueAnswer:
        """Return the jobs of some users, not older than so many seconds.

        Raises:
            Unavailable: Slurm does not answer.
        """
        with self._lock:
            now_s = time.monotonic()
            if self._answer.asked_s >= max(now_s - max_age_s, self._expired_s):
                return self._answer
            if self._failed is not None and now_s - self._failed[0] < AGAIN_S:
                raise Unavailable(self._failed[1])
            try:
                self._answer = self._ask(sorted(set(uids)), now_s)
            except Unavailable as error:
                self._failed = time.monotonic(), str(error)
                raise
            self._failed = None
            return self._answer

    def named(self, name: str, uid: int) -> str | None:
        """Return the number of the job that a user has with a name: anybody may give his job any name."""
        said = self._squeue(f"--user={uid}", f"--name={name}")
        found = [row for row in parse_rows(said) if row.name == name and row.uid == uid]
        return found[-1].number if found else None

    def _ask(self, uids: list[int], now_s: float) -> QueueAnswer:
        said = self._squeue(f"--user={','.join(map(str, uids))}")
        return QueueAnswer(now_s, {row.number: row for row in parse_rows(said)})

    def _squeue(self, *which: str) -> str:
        self.asked += 1
        return self.commands.ask("squeue", "--noheader", "--states=all", f"--Format={FORMAT}", *which)
