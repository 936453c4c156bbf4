"""Pace of retries: by the time that it has lasted for what is unavailable, ever slower for unexpected errors.

What is unavailable may be back at any moment, and a job should not start much later than it could.  An
unexpected error will probably happen again, so its retries back off, and the log is spared.
"""

from dataclasses import dataclass, field, replace
from typing import Final

from runner.base.readable import readable_duration

RETRY_S: Final = 2.0  # before another try of what was unavailable
RETRY_MAX_S: Final = 60.0  # the longest wait
RETRY_PART: Final = 0.1  # of the time that something has been unavailable


def delay_s(errors: int) -> float:
    """Return the wait after so many errors in a row: 2 s, 4 s, 8 s, ... and never more than a minute."""
    doublings = min(max(errors - 1, 0), 10)
    return min(RETRY_S * 2.0**doublings, RETRY_MAX_S)


def describe_error(error: BaseException) -> str:
    """Return an error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


@dataclass(frozen=True, slots=True)
class RetryState:
    """State of the retries of one thing that failed."""

    again_at: float | None = None  # monotonic; None: it is being tried
    errors: int = 0  # unexpected ones, in a row
    tries: int = 0  # of what was unavailable, in a row
    since: float = 0.0  # the first of them, monotonic


@dataclass(slots=True)
class RetryTable:
    """Times of the next retries, by job."""

    _known: dict[str, RetryState] = field(default_factory=dict)

    def record_unavailable(self, key: str, now: float) -> None:
        """Schedule a retry: of what has been unavailable for long, later."""
        known = self._known.get(key, RetryState())
        since = known.since if known.tries else now
        wait_s = min(max(RETRY_S, (now - since) * RETRY_PART), RETRY_MAX_S)
        self._known[key] = replace(known, again_at=now + wait_s, tries=known.tries + 1, since=since)

    def tried(self, key: str, now: float) -> str:
        """Return the number of tries of something unavailable, empty below two.  From any thread."""
        known = self._known.get(key, RetryState())
        return f"{known.tries} tries in {readable_duration(now - known.since)}" if known.tries > 1 else ""

    def record_error(self, key: str, now: float) -> RetryState:
        """Schedule a retry after an unexpected error, and return its state."""
        errors = self._known.get(key, RetryState()).errors + 1
        self._known[key] = RetryState(now + delay_s(errors), errors)
        return self._known[key]

    def postpone(self, key: str, now: float, times: int) -> float:
        """Schedule a retry of what has been tried so many times already, and return the wait."""
        self._known[key] = RetryState(now + delay_s(times))
        return delay_s(times)

    def is_waiting(self, key: str, now: float) -> bool:
        """Return True if it is too early for a retry."""
        known = self._known.get(key, RetryState())
        return known.again_at is not None and now < known.again_at

    def due(self, now: float) -> tuple[str, ...]:
        """Return the keys whose retry is due."""
        return tuple(
            key for key, known in self._known.items() if known.again_at is not None and known.again_at <= now
        )

    def begin(self, key: str, now: float) -> bool:
        """Return True if it is time to retry: once for every wait."""
        known = self._known.get(key, RetryState())
        if known.again_at is None or now < known.again_at:
            return False
        self._known[key] = replace(known, again_at=None)
        return True

    def record_success(self, key: str, now: float) -> bool:
        """Return True if no retry is left; other work of the same job may still have to wait for one."""
        known = self._known.pop(key, RetryState())
        if known.again_at is None or known.again_at <= now:
            return True
        self._known[key] = replace(known, errors=0)
        return False

    def forget(self, key: str) -> None:
        """Forget all failures of a job that has moved on."""
        self._known.pop(key, None)

    def __contains__(self, key: str) -> bool:
        return key in self._known
