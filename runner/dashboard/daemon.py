"""The daemon as the dashboard asks it: each answer is kept for a moment, so that many tabs ask once."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final

from runner.client.client import ANSWER_LIMIT_S, ChosenLog, Client, LogChunk
from runner.client.http import Query, query_string, quote_path
from runner.client.log import last_lines, pieces

FRESH_S: Final = 0.5
"""Time for which an answer is used again."""

DIFF_FRESH_S: Final = 30.0
"""Time for which the differences of two jobs are used again: the daemon reads their code for them."""

DIFF_LIMIT_S: Final = 120.0
"""Longest wait for the daemon, which reads the code."""

MOST_KEPT: Final = 256

MOST_KEPT_BYTES: Final = 16 * 1024**2
"""Of all answers that are kept, as they came; values in memory take several times as much."""


@dataclass(slots=True)
class Daemon:
    """Questions to one daemon; every method may raise a ``RunnerError``."""

    client: Client
    monotonic: Callable[[], float]
    _kept: dict[tuple[str, str, bytes | None], tuple[float, Any]] = field(default_factory=dict)
    _kept_bytes: int = 0
    _lock: Lock = field(default_factory=Lock)

    def get(self, path: str, query: Query | None = None, wait_s: float = 0.0) -> Any:
        """Return the answer to a question, perhaps the one of a moment ago."""
        path += query_string(query or {})
        return self._ask("GET", path, None, wait_s + ANSWER_LIMIT_S, 0.0 if wait_s else FRESH_S)

    def _ask(self, method: str, path: str, body: bytes | None, limit_s: float, fresh_s: float) -> Any:
        """Return an answer; one that is larger than all may be is not kept."""
        key = (method, path, body)
        with self._lock:
            known = self._kept.get(key)
        if known is not None and self.monotonic() - known[0] < fresh_s:
            return known[1]
        # Asked once: a page says that no daemon answers, and loads itself again when one does.
        said = self.client.ask(method, path, body, limit_s).body
        answer, size = json.loads(said), len(said)
        with self._lock:
            if len(self._kept) >= MOST_KEPT or self._kept_bytes + size > MOST_KEPT_BYTES:
                self._kept.clear()
                self._kept_bytes = 0
            if size <= MOST_KEPT_BYTES:
                self._kept[key] = self.monotonic(), answer
                self._kept_bytes += size
        return answer

    def job(self, ref: str, part: str = "") -> Any:
        """Return a job, or a part of it: ``/why``, ``/curves``."""
        return self.get(f"/v1/jobs/{quote_path(ref)}{part}")

    def log(self, ref: str, attempt: int | None, offset: int) -> LogChunk:
        """Return a piece of a log."""
        return self.client.log(ref, ChosenLog(attempt=attempt), offset=offset)

    def last_lines(self, ref: str, count: int) -> LogChunk:
        """Return the last lines of the newest log as one piece."""
        text, last = last_lines(self.client, ref, None, count)
        return last._replace(body=text)

    def whole_log(self, ref: str) -> tuple[LogChunk, Iterator[LogChunk]]:
        """Return the first piece of the newest log, and all that follow."""
        found = pieces(self.client, ref, ChosenLog())
        return next(found), found

    def difference(self, ref: str, other: str) -> Any:
        """Return the differences of two jobs, perhaps as it was half a minute ago."""
        path, body = f"/v1/jobs/{quote_path(ref)}/diff", json.dumps({"job": other}).encode()
        return self._ask("POST", path, body, DIFF_LIMIT_S, DIFF_FRESH_S)

    def change(self, ref: str, verb: str, body: Mapping[str, object]) -> Any:
        """Change a job; what was kept is asked for anew."""
        with self._lock:
            self._kept.clear()
            self._kept_bytes = 0
        return self.client.act(ref, verb, body)
