"""Observed cost of switching from job to job: saves on request and restarts.

It is kept in memory.  A daemon that starts counts the switches that the store knows, with the usual cost of a
start: no restart gives the machine its budget back.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from runner.base.instant import Instant
from runner.core.job.model import Job
from runner.core.policy.facts import DecisionPoint
from runner.core.ports.store import DecisionRow, SwitchRecord
from runner.core.scheduler.fairshare import decay_usage
from runner.core.scheduler.snapshot import RESTART_S

STAYS_S: Final = 60.0
"""Time for which a job that had no room to save is not preempted."""


@dataclass(slots=True)
class SwitchingCosts:
    """The costs by job, and those of the machine with their decay; times are of the monotonic clock."""

    saves_s: dict[str, float] = field(default_factory=dict)  # from the request to clean devices, by job
    told: dict[str, float] = field(default_factory=dict)  # when
    unsaving: set[str] = field(default_factory=set)  # jobs that let the grace period pass
    saving: dict[str, int] = field(default_factory=dict)  # the attempt that has reported that it saves
    looked: dict[str, int] = field(default_factory=dict)  # at how many switches of a job ``look`` has looked
    stays_until_s: dict[str, float] = field(default_factory=dict)  # jobs that had no room to save
    queued_s: dict[str, float] = field(default_factory=dict)  # when each job came to the queue
    _spent_device_s: float = 0.0
    _at_s: float = 0.0

    def left(self, job_id: str, now_s: float, devices: float, restart_s: float, half_life_s: float) -> None:
        """Note that a job that was told to be preempted has left its devices."""
        told_s = self.told.pop(job_id)
        self.saves_s[job_id] = now_s - told_s
        earlier_device_s = self.spent_device_s(now_s, half_life_s)
        self._spent_device_s = earlier_device_s + devices * (now_s - told_s + restart_s)
        self._at_s = now_s

    def load(self, past: Iterable[SwitchRecord], now: Instant, cpu_weight: float, half_life_s: float) -> None:
        """Count what earlier switches have cost the machine."""
        for each in past:
            ago_s = max((now.at - each.ended_at).total_seconds(), 0.0)
            left_s = max((each.ended_at - each.told_at).total_seconds(), 0.0)
            device_s = (each.gpus + cpu_weight * each.cpus) * (left_s + RESTART_S)
            self._spent_device_s += decay_usage(device_s, ago_s, half_life_s)
        self._at_s = now.monotonic

    def keep(self, job_id: str, now_s: float) -> None:
        """Let a job stay for a while that could not save now."""
        self.stays_until_s[job_id] = now_s + STAYS_S

    def look(self, job: Job, decisions: Callable[[str], Iterable[DecisionRow]]) -> None:
        """Look in its decisions for a switch at which a job did not save as it says; once for each switch.

        They are recorded, so a daemon knows of the switches before its start, too.
        """
        if self.looked.get(job.id, 0) == job.preempted:
            return
        self.looked[job.id] = job.preempted
        ends = (json.loads(each.body) for each in decisions(job.id) if each.moment == DecisionPoint.EXIT)
        if any(_was_charged(each) for each in ends):
            self.unsaving.add(job.id)

    def saves(self, job_id: str, attempt: int, *, by_terms: bool) -> bool:
        """Return True if an attempt saves when asked, by its terms or its report, unless it has not."""
        return (by_terms or self.saving.get(job_id) == attempt) and job_id not in self.unsaving

    def spent_s(self, job_id: str, preempted: int, restart_s: float) -> float:
        """Return the cost of a job's switches so far, in seconds."""
        return preempted * (self.saves_s.get(job_id, 0.0) + restart_s)

    def spent_device_s(self, now_s: float, half_life_s: float) -> float:
        """Return the cost of switching for the machine, decayed as usage is; from any thread."""
        return decay_usage(self._spent_device_s, max(now_s - self._at_s, 0.0), half_life_s)

    def forget(self, job_id: str) -> None:
        """Forget a finished job."""
        for kept in (self.saving, self.saves_s, self.told, self.queued_s, self.stays_until_s):
            kept.pop(job_id, None)
        self.looked.pop(job_id, None)
        self.unsaving.discard(job_id)


def _was_charged(decision: Mapping[str, Any]) -> bool:
    """Return True if an attempt was charged for its preemption: that is so only if it had to be killed."""
    facts, verdict = decision.get("facts", {}), decision.get("verdict", {})
    return facts.get("killed_by") == "preemption" and bool(verdict.get("charged"))
