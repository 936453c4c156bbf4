"""One answer of ``squeue`` for all attempts, asked for at a bounded rate.

A command of Slurm takes ten seconds to say that slurmctld is dead, and longer if it hangs.  So whoever only
looks does not wait for a late answer: he is told at once that there is none, and since when.
"""

import threading
import time
from collections.abc import Collection, Iterable
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from math import inf
from secrets import token_hex
from typing import Final

from runner.adapters.host.clock import SystemClock
from runner.adapters.slurm.commands import SlurmCommands
from runner.adapters.slurm.states import Row, describe_silence, parse_rows, query
from runner.base.errors import Unavailable
from runner.base.threads import run_to_future

AGAIN_S: Final = 5.0
"""After Slurm has not answered, it is not asked again for so long: each command waits ten seconds for it."""

PROMPT_S: Final = 3.0
"""An answer that is not there by then is late; of a Slurm whose last answer was late, more is waited for."""


@dataclass(frozen=True, slots=True)
class QueueAnswer:
    """The jobs of some users in Slurm, and when they were asked for, by the monotonic clock."""

    asked_s: float = -inf
    rows: dict[str, Row] = field(default_factory=dict)
    uids: frozenset[int] = frozenset()  # of these users all jobs are in it

    def row(self, number: str, name: str, uid: int, outputs: Collection[str] = ()) -> Row | None:
        """Return a job of a user; with another name it is another job, which has got the number.

        Unless its batch script writes to one of ``outputs``: then its user has renamed it.
        """
        row = self.rows.get(number)
        if row is None or row.uid != uid:
            return None
        return row if row.name == name or (row.output and row.output in outputs) else None


@dataclass(frozen=True, slots=True)
class _Question:
    """A question that was given to Slurm, whose answer may still come."""

    asked_s: float
    asked_at: datetime
    answer: Future[QueueAnswer] = field(default_factory=Future)


@dataclass(slots=True, repr=False)
class QueueView:
    """The last answer of ``squeue``."""

    commands: SlurmCommands
    prompt_s: float = PROMPT_S
    clock: SystemClock = field(default_factory=SystemClock)
    _answer: QueueAnswer = field(default_factory=QueueAnswer)
    _expired_s: float = -inf  # an answer that was asked for earlier does not know what was changed then
    _failed: tuple[float, str] | None = None
    _silent_since: datetime | None = None  # when the first question was asked that has no answer
    _pending: _Question | None = None
    _is_slow: bool = False  # the last answer came, and was late
    _lock: threading.Lock = field(default_factory=threading.Lock)
    asked: int = 0
    """Number of the questions to Slurm."""

    def expire(self) -> None:
        """Have the next look ask again: something was submitted, or signalled."""
        self._expired_s = time.monotonic()

    def look(self, uids: Iterable[int], max_age_s: float, *, prompt: bool = False) -> QueueAnswer:
        """Return the jobs of some users, not older than so many seconds.

        ``prompt``: a late answer is not waited for; it is too old for the next look, which asks again.

        Raises:
            Unavailable: Slurm does not answer; the text says since when.
        """
        now_s, asked = time.monotonic(), frozenset(uids)
        known_s = max(now_s - max_age_s, self._expired_s)
        while True:
            with self._lock:
                self._take_late_answer()
                if self._answer.asked_s >= known_s and asked <= self._answer.uids:
                    return self._answer
                if self._failed is not None and now_s - self._failed[0] < AGAIN_S:
                    raise Unavailable(self._failed[1])
                question = self._pending or self._give(asked)
                late_s = question.asked_s + self.prompt_s if prompt and not self._is_slow else inf
            wait([question.answer], None if late_s == inf else max(late_s - time.monotonic(), 0.0))
            with self._lock:
                if not question.answer.done():
                    raise Unavailable(self._silence(question, "squeue: no answer yet"))
                answer = self._take(question)
            if question.asked_s >= known_s and asked <= answer.uids:
                return answer

    def _give(self, uids: frozenset[int]) -> _Question:
        """Ask Slurm on a thread of its own."""
        self._pending = question = _Question(time.monotonic(), self.clock.now())
        work = partial(run_to_future, question.answer, partial(self._ask, uids, question.asked_s))
        threading.Thread(target=work, name="squeue", daemon=True).start()
        return question

    def _take(self, question: _Question) -> QueueAnswer:
        """Return the answer of a question, which is there, and remember what it says of Slurm."""
        is_first = self._pending is question
        self._pending = None if is_first else self._pending
        try:
            answer = question.answer.result()
        except Unavailable as error:
            said = self._silence(question, str(error))
            if is_first:
                self._failed, self._is_slow = (time.monotonic(), said), False
            raise Unavailable(said) from error
        if is_first:
            self._answer, self._failed, self._silent_since = answer, None, None
            self._is_slow = time.monotonic() - question.asked_s > self.prompt_s
        return answer

    def _take_late_answer(self) -> None:
        """Note an answer that nobody has waited for."""
        if self._pending is not None and self._pending.answer.done():
            with suppress(Unavailable):
                self._take(self._pending)

    def _silence(self, question: _Question, said: str) -> str:
        """Return since when Slurm has not answered, and what its command says."""
        self._silent_since = self._silent_since or question.asked_at
        return describe_silence(self._silent_since, said)

    def named(self, name: str, uid: int) -> str | None:
        """Return the number of the job that a user has with a name: anybody may give his job any name."""
        rows = self._squeue(f"--user={uid}", f"--name={name}")
        found = [row for row in rows if row.name == name and row.uid == uid]
        return found[-1].number if found else None

    def _ask(self, uids: frozenset[int], now_s: float) -> QueueAnswer:
        rows = self._squeue(f"--user={','.join(map(str, sorted(uids)))}")
        return QueueAnswer(now_s, {row.number: row for row in rows}, uids)

    def _squeue(self, *which: str) -> list[Row]:
        self.asked += 1
        mark = token_hex(8)
        what = ("--noheader", "--states=all", f"--Format={query(mark)}")
        return parse_rows(self.commands.ask("squeue", *what, *which), mark)
