"""Fair share: usage in device-seconds that decays with a half-life, and the rank that follows from it.

``U(t) = sum over allocated devices of the integral of 2^(-(t - s) / h) ds``, with the half-life h.
Groups are compared first, then users within a group, both by ``U / S`` with their shares S: the order of
Slurm's Fair Tree (https://slurm.schedmd.com/fair_tree.html), whose classic factor
``F = 2^(-U / S)`` (https://slurm.schedmd.com/classic_fair_share.html) falls as ``U / S`` rises.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import exp2, inf, log

from runner.core.scheduler.config import SchedulerConfig, SchedulingOrder
from runner.core.scheduler.snapshot import PendingJob, ResourceRequest, RunningJob, Snapshot


def decay_usage(device_s: float, elapsed_s: float, half_life_s: float) -> float:
    """Return usage after it has decayed for a time."""
    return device_s * exp2(-elapsed_s / half_life_s)


def accrue_usage(devices: float, duration_s: float, half_life_s: float) -> float:
    """Return the usage of devices that were allocated for a time until now.

    It is the integral of the decay, so that the usage of two halves of the time adds up to the whole.
    With an infinite half-life nothing decays.
    """
    if half_life_s == inf:
        return devices * duration_s
    return devices * half_life_s / log(2) * (1 - exp2(-duration_s / half_life_s))


def charge_usage(device_s: float, devices: float, duration_s: float, half_life_s: float) -> float:
    """Return usage after a time in which this many devices were allocated throughout."""
    return decay_usage(device_s, duration_s, half_life_s) + accrue_usage(devices, duration_s, half_life_s)


def jain_index(values: Iterable[float]) -> float:
    """Return Jain's index of fairness, from 1/n (one has all) to 1 (all have the same).

    R. Jain, D. Chiu, W. Hawe: A Quantitative Measure of Fairness and Discrimination for Resource
    Allocation in Shared Computer Systems. DEC-TR-301, 1984.
    """
    known = list(values)
    squares = sum(value * value for value in known)
    return sum(known) ** 2 / (len(known) * squares) if squares else 1.0


def billed_devices(request: ResourceRequest, config: SchedulerConfig) -> float:
    """Return how many devices a request counts as; CPUs count by ``cpu_weight``."""
    return request.gpus + config.cpu_weight * request.cpus


@dataclass(slots=True)
class FairShare:
    """Usage by user and group during a planning pass; a job that starts is charged at once."""

    users: dict[str, float] = field(default_factory=dict)
    groups: dict[str, float] = field(default_factory=dict)
    config: SchedulerConfig = field(default_factory=SchedulerConfig)
    charges: int = 0  # number of charges so far; ranks change only when it does
    held: dict[tuple[str, str], float] = field(default_factory=dict)  # billed devices, by group and user
    entitled: Mapping[tuple[str, str], float] = field(
        default_factory=dict
    )  # the same, as shares would have it

    @classmethod
    def of(cls, snapshot: Snapshot) -> "FairShare":
        fair_share = cls(dict(snapshot.user_usage), dict(snapshot.group_usage), snapshot.config)
        if snapshot.config.order is SchedulingOrder.ATTAINED:
            fair_share.entitled = entitlements(snapshot)
        for job in snapshot.running:
            fair_share.charge(job.owner, job.group, job.request, _remaining(job, snapshot))
            if job.stopping:
                fair_share.release(job)
        return fair_share

    def charge(self, user: str, group: str, request: ResourceRequest, duration_s: float) -> None:
        """Charge a job for its coming duration, up to ``charge_ahead_s``."""
        device_s = billed_devices(request, self.config) * min(duration_s, self.config.charge_ahead_s)
        self.users[user] = self.users.get(user, 0.0) + device_s
        self.groups[group] = self.groups.get(group, 0.0) + device_s
        self.held[group, user] = self.held.get((group, user), 0.0) + billed_devices(request, self.config)
        self.charges += 1

    def release(self, job: RunningJob) -> None:
        """Take a job that gives way off what its owner holds."""
        self.held[job.group, job.owner] -= billed_devices(job.request, self.config)
        self.charges += 1

    def exceeds_share(self, job: PendingJob) -> bool:
        """Return whether a job would let its owner hold more than the owner's share of the machine.

        A job of an owner who holds nothing never does, however large it is.
        """
        name = job.group, job.owner
        held, wanted = self.held.get(name, 0.0), billed_devices(job.request, self.config)
        return held > _NOTHING and held + wanted > self.entitled.get(name, 0.0) + _NOTHING

    def rank(self, user: str, group: str) -> tuple[float, float]:
        """Return the usage of the group and of the user by their shares; the lower goes first."""
        return (
            _usage_by_share(self.groups.get(group, 0.0), self.config.group_shares, group),
            _usage_by_share(self.users.get(user, 0.0), self.config.user_shares, user),
        )

    def holds_more_than_share(self, job: RunningJob) -> bool:
        """Return whether the owner of a running job holds more than the owner's share of the machine."""
        name = job.group, job.owner
        return self.held.get(name, 0.0) > self.entitled.get(name, 0.0) + _NOTHING


_NOTHING = 1e-6
"""Billed devices below this are the rounding of a sum."""


def entitlements(snapshot: Snapshot) -> dict[tuple[str, str], float]:
    """Return the billed devices that each group and user with unfinished jobs would hold by their shares.

    Groups divide the machine by their shares, and the users of a group divide its part by theirs.
    """
    config = snapshot.config
    jobs: tuple[PendingJob | RunningJob, ...] = (*snapshot.pending, *snapshot.running)
    users: dict[str, set[str]] = {}
    for job in jobs:
        users.setdefault(job.group, set()).add(job.owner)
    capacity = sum(len(host.devices) + config.cpu_weight * host.cpus for host in snapshot.hosts)
    of_groups = _divide(capacity, dict.fromkeys(users, 1.0) | _known(config.group_shares, users))
    return {
        (group, user): part
        for group, members in users.items()
        for user, part in _divide(
            of_groups[group], dict.fromkeys(members, 1.0) | _known(config.user_shares, members)
        ).items()
    }


def _known(shares: Mapping[str, float], names: Collection[str]) -> dict[str, float]:
    return {name: share for name, share in shares.items() if name in names}


def _divide(amount: float, shares: Mapping[str, float]) -> dict[str, float]:
    whole = sum(shares.values())
    return {name: amount * share / whole if whole else 0.0 for name, share in shares.items()}


def _usage_by_share(usage: float, shares: Mapping[str, float], name: str) -> float:
    share = shares.get(name, 1.0)
    return usage / share if share > 0 else float("inf")


def _remaining(job: RunningJob, snapshot: Snapshot) -> float:
    ends_s = job.started_s + snapshot.config.default_duration_s if job.ends_s is None else job.ends_s
    return max(ends_s - snapshot.now_s, 0.0)
