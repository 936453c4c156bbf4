"""Launch failures that jobs have in common: the fault is the host's, whatever its words are."""

from dataclasses import dataclass, field
from typing import Final

from runner.core.policy.history import fingerprint

FIRST_WAIT_S: Final = 30.0
"""Before the next launch of a job whose launch failed as that of another job did."""

LONGEST_WAIT_S: Final = 600.0
"""The same after many such failures; each doubles the time."""


@dataclass(frozen=True, slots=True)
class CommonFailure:
    """A launch failure of several jobs."""

    first: str  # the id of the job that failed first
    wait_s: float


@dataclass(slots=True)
class _Seen:
    """The jobs whose launches have failed with one fingerprint."""

    first: str
    others: int = 0  # failures since a second job failed likewise


@dataclass(slots=True)
class LaunchFailures:
    """The launch failures since an attempt was last launched."""

    _seen: dict[str, _Seen] = field(default_factory=dict)  # by fingerprint

    def note(self, job_id: str, why: str) -> CommonFailure | None:
        """Record a failure; return it if another job has failed likewise, else None."""
        seen = self._seen.setdefault(fingerprint("launch_failed", why), _Seen(job_id))
        if seen.first == job_id and not seen.others:
            return None
        seen.others += 1
        return CommonFailure(seen.first, min(FIRST_WAIT_S * 2 ** (seen.others - 1), LONGEST_WAIT_S))

    def forget(self) -> None:
        """Forget the failures: an attempt was launched, so the host can."""
        self._seen.clear()
