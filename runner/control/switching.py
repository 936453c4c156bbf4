"""What switching from job to job has cost, as observed: saves on request and restarts.

It is kept in memory.  After a restart of the daemon the number of preemptions, which the store has, and usual
costs take its place until new ones are observed.
"""

from dataclasses import dataclass, field

from runner.core.scheduler.fairshare import decay_usage


@dataclass(slots=True)
class SwitchingCosts:
    """The costs by job, and those of the machine with their decay; times are of the monotonic clock."""

    saves_s: dict[str, float] = field(default_factory=dict)  # from the request to clean devices, by job
    told: dict[str, tuple[float, float]] = field(default_factory=dict)  # when, and the grace period
    unsaving: set[str] = field(default_factory=set)  # jobs that let the grace period pass
    queued_s: dict[str, float] = field(
        default_factory=dict
    )  # when each job came to the queue, by the calendar
    _spent_device_s: float = 0.0
    _at_s: float = 0.0

    def left(self, job_id: str, now_s: float, devices: float, restart_s: float) -> None:
        """Note that a job that was told to give way has left its devices."""
        told_s, grace_s = self.told.pop(job_id)
        self.saves_s[job_id] = now_s - told_s
        if now_s - told_s >= grace_s:
            self.unsaving.add(job_id)
        self._spent_device_s += devices * (now_s - told_s + restart_s)

    def spent_s(self, job_id: str, preempted: int, restart_s: float) -> float:
        """Return what the switches of a job have cost it so far, in seconds."""
        return preempted * (self.saves_s.get(job_id, 0.0) + restart_s)

    def spent_device_s(self, now_s: float, half_life_s: float) -> float:
        """Return what switching has cost the machine, decayed as usage is."""
        self._spent_device_s = decay_usage(self._spent_device_s, max(now_s - self._at_s, 0.0), half_life_s)
        self._at_s = now_s
        return self._spent_device_s

    def forget(self, job_id: str) -> None:
        """Forget a finished job."""
        for kept in (self.saves_s, self.told, self.queued_s):
            kept.pop(job_id, None)
        self.unsaving.discard(job_id)
