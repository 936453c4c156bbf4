"""Launch failures that jobs have in common: the fault is the host's, whatever its words are."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from runner.core.policy.history import fingerprint

FIRST_WAIT_S: Final = 30.0
"""Before the next launch of a job whose launch failed as that of another job did."""

LONGEST_WAIT_S: Final = 600.0
"""The same after many such failures; each doubles the time."""

KEPT: Final = timedelta(hours=1)
"""For how long a failure counts against the host if no other like it follows."""


@dataclass(frozen=True, slots=True)
class HostFailure:
    """A launch failure of a host: the engine says so, or several jobs have it."""

    first: str  # the id of the job that failed first
    wait_s: float


@dataclass(slots=True)
class _Seen:
    """The jobs whose launches have failed with one fingerprint."""

    first: str
    last: datetime
    times: int = 0
    jobs: set[str] = field(default_factory=set)


@dataclass(slots=True)
class LaunchFailures:
    """The newest launch failures of each kind, until a job that had one is launched."""

    _seen: dict[str, _Seen] = field(default_factory=dict)  # by fingerprint

    def note(self, job_id: str, why: str, at: datetime, *, of_host: bool = False) -> HostFailure | None:
        """Record a failure; return it if it is the host's, because another job has failed likewise."""
        self._seen = {kind: seen for kind, seen in self._seen.items() if at - seen.last <= KEPT}
        seen = self._seen.setdefault(fingerprint("launch_failed", why), _Seen(job_id, at))
        seen.jobs.add(job_id)
        seen.times, seen.last = seen.times + 1, at
        if len(seen.jobs) == 1 and not of_host:
            return None
        wait_s = min(FIRST_WAIT_S * 2.0 ** min(max(seen.times - 2, 0), 10), LONGEST_WAIT_S)
        return HostFailure(seen.first, wait_s)

    def forget(self, job_id: str) -> None:
        """Forget the failures that a job had: it was launched, so the host can.

        The launch of a job that asks for less, such as no network, shows nothing about the others.
        """
        self._seen = {kind: seen for kind, seen in self._seen.items() if job_id not in seen.jobs}
