"""How long to wait before something is tried again that did not work.

A world that does not answer is asked again at a steady pace: it may be back at any moment, and
a start should not come much later than it could.  A mistake that nobody expected will probably be
made again, so it is given ever more time, and the log is spared.
"""

from dataclasses import dataclass, field, replace
from typing import Final

PLAN_WITHIN_S: Final = 0.02  # a plan waits for news that are there already, but not longer
RETRY_S: Final = 2.0  # between two tries of what the world did not answer
RETRY_MAX_S: Final = 60.0  # the longest wait after mistakes in a row


def delay_s(mistakes: int) -> float:
    """Return the wait after so many mistakes in a row: 2 s, 4 s, 8 s, ... and never more than a minute."""
    doublings = min(max(mistakes - 1, 0), 10)
    return min(RETRY_S * 2.0**doublings, RETRY_MAX_S)


def describe_error(error: Exception) -> str:
    """Return a mistake in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


@dataclass(frozen=True, slots=True)
class RetryState:
    """What is remembered of one thing that did not work."""

    again_at: float | None = None  # monotonic; None: it is being tried
    mistakes: int = 0  # in a row


@dataclass(slots=True)
class RetryTable:
    """When to try what again, by the job that it was for."""

    _known: dict[str, RetryState] = field(default_factory=dict)

    def unanswered(self, key: str, now: float) -> None:
        """Remember that the world did not answer."""
        known = self._known.get(key, RetryState())
        self._known[key] = replace(known, again_at=now + RETRY_S)

    def mistaken(self, key: str, now: float) -> RetryState:
        """Remember a mistake that nobody expected, and return what is known now."""
        mistakes = self._known.get(key, RetryState()).mistakes + 1
        self._known[key] = RetryState(now + delay_s(mistakes), mistakes)
        return self._known[key]

    def waits(self, key: str, now: float) -> bool:
        """Return whether it is too early to try again."""
        known = self._known.get(key, RetryState())
        return known.again_at is not None and now < known.again_at

    def due(self, now: float) -> tuple[str, ...]:
        """Return for what it is time to try again."""
        return tuple(
            key for key, known in self._known.items() if known.again_at is not None and known.again_at <= now
        )

    def begin(self, key: str, now: float) -> bool:
        """Return whether to try again now: true once for every wait."""
        known = self._known.get(key, RetryState())
        if known.again_at is None or now < known.again_at:
            return False
        self._known[key] = replace(known, again_at=None)
        return True

    def worked(self, key: str, now: float) -> bool:
        """Return whether all is well again; something else of the same job may still have to wait."""
        known = self._known.pop(key, RetryState())
        if known.again_at is None or known.again_at <= now:
            return True
        self._known[key] = RetryState(known.again_at)
        return False

    def forget(self, key: str) -> None:
        """Begin anew: the job has moved on."""
        self._known.pop(key, None)

    def __contains__(self, key: str) -> bool:
        return key in self._known
