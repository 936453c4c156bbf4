"""Who has had how much: device-seconds that fade with a half-life, and what follows for the order.

``U(t) = sum over lent devices of the integral of 2^(-(t - s) / h) ds``, with the half-life h.
Users are compared within their group, groups before users, by ``U / S`` with their shares S:
the order of Slurm's Fair Tree (https://slurm.schedmd.com/fair_tree.html), whose classic factor
``F = 2^(-U / S)`` (https://slurm.schedmd.com/classic_fair_share.html) falls as ``U / S`` rises.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import exp2, log

from runner.core.scheduler.config import SchedulerConfig
from runner.core.scheduler.snapshot import ResourceRequest, RunningJob, Snapshot


def decay_usage(device_s: float, elapsed_s: float, half_life_s: float) -> float:
    """Return what usage counts after a while."""
    return device_s * exp2(-elapsed_s / half_life_s)


def accrue_usage(devices: float, lasted_s: float, half_life_s: float) -> float:
    """Return what devices lent for a time until now count: the integral, so that two halves make a whole."""
    return devices * half_life_s / log(2) * (1 - exp2(-lasted_s / half_life_s))


def charge_usage(device_s: float, devices: float, lasted_s: float, half_life_s: float) -> float:
    """Return usage after a time in which so many devices were lent all along."""
    return decay_usage(device_s, lasted_s, half_life_s) + accrue_usage(devices, lasted_s, half_life_s)


def jain_index(values: Iterable[float]) -> float:
    """Return Jain's index of fairness, from 1/n (one has all) to 1 (all have the same).

    R. Jain, D. Chiu, W. Hawe: A Quantitative Measure of Fairness and Discrimination for Resource
    Allocation in Shared Computer Systems. DEC-TR-301, 1984.
    """
    known = list(values)
    squares = sum(value * value for value in known)
    return sum(known) ** 2 / (len(known) * squares) if squares else 1.0


def billed_devices(needs: ResourceRequest, rules: SchedulerConfig) -> float:
    """Return how many devices some needs count as; processors count a little too."""
    return needs.gpus + rules.cpu_weight * needs.cpus


@dataclass(slots=True)
class FairShare:
    """Usage by user and group while one plan is made: what starts is charged at once."""

    users: dict[str, float] = field(default_factory=dict)
    groups: dict[str, float] = field(default_factory=dict)
    config: SchedulerConfig = field(default_factory=SchedulerConfig)
    charges: int = 0  # how often somebody was charged: until the next time all ranks stay

    @classmethod
    def of(cls, snapshot: Snapshot) -> "FairShare":
        shares = cls(dict(snapshot.user_usage), dict(snapshot.group_usage), snapshot.config)
        for job in snapshot.running:
            shares.charge(job.owner, job.group, job.request, _remaining(job, snapshot))
        return shares

    def charge(self, user: str, group: str, needs: ResourceRequest, lasts_s: float) -> None:
        """Count what a job takes as used for the time to come, as far as that is charged at once."""
        device_s = billed_devices(needs, self.config) * min(lasts_s, self.config.charge_ahead_s)
        self.users[user] = self.users.get(user, 0.0) + device_s
        self.groups[group] = self.groups.get(group, 0.0) + device_s
        self.charges += 1

    def rank(self, user: str, group: str) -> tuple[float, float]:
        """Return what the order compares: the lower goes first."""
        return (
            _over(self.groups.get(group, 0.0), self.config.group_shares, group),
            _over(self.users.get(user, 0.0), self.config.user_shares, user),
        )


def _over(usage: float, shares: Mapping[str, float], name: str) -> float:
    share = shares.get(name, 1.0)
    return usage / share if share > 0 else float("inf")


def _remaining(job: RunningJob, snapshot: Snapshot) -> float:
    ends_s = job.started_s + snapshot.config.default_duration_s if job.ends_s is None else job.ends_s
    return max(ends_s - snapshot.now_s, 0.0)
