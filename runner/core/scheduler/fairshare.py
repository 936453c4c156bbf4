"""Fair share: usage in device-seconds that decays with a half-life, and the rank that follows from it.

``U(t) = sum over allocated devices of the integral of 2^(-(t - s) / h) ds``, with the half-life h.
Groups are compared first, then users within a group, both by ``U / S`` with their shares S: the order of
Slurm's Fair Tree (https://slurm.schedmd.com/fair_tree.html), whose classic factor
``F = 2^(-U / S)`` (https://slurm.schedmd.com/classic_fair_share.html) falls as ``U / S`` rises.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from math import exp2, inf, log

from runner.core.scheduler.config import SchedulerConfig, SchedulingOrder
from runner.core.scheduler.snapshot import ResourceRequest, RunningJob, Snapshot


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
    """Return the number of devices that a request counts as; CPUs count by ``cpu_weight``."""
    return request.gpus + config.cpu_weight * request.cpus


@dataclass(slots=True)
class FairShare:
    """Usage by user and group during a planning pass; a job that starts is charged at once."""

    users: dict[str, float] = field(default_factory=dict)
    groups: dict[str, float] = field(default_factory=dict)
    config: SchedulerConfig = field(default_factory=SchedulerConfig)
    charges: int = 0  # number of charges so far; ranks change only when it does
    had_share_from: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Of owners who have had more than their share: the lowest service level in which that is so."""

    @classmethod
    def of(cls, snapshot: Snapshot) -> "FairShare":
        fair_share = cls(dict(snapshot.user_usage), dict(snapshot.group_usage), snapshot.config)
        if snapshot.config.order is SchedulingOrder.ATTAINED:
            fair_share.had_share_from = levels_with_share(snapshot)
        for job in snapshot.running:
            fair_share.charge(job.owner, job.group, job.request, _remaining(job, snapshot))
        return fair_share

    def charge(self, user: str, group: str, request: ResourceRequest, duration_s: float) -> None:
        """Charge a job for its coming duration, up to ``charge_ahead_s``."""
        device_s = billed_devices(request, self.config) * min(duration_s, self.config.charge_ahead_s)
        self.users[user] = self.users.get(user, 0.0) + device_s
        self.groups[group] = self.groups.get(group, 0.0) + device_s
        self.charges += 1

    def has_had_share(self, user: str, group: str, level: float) -> bool:
        """Return True if jobs of an owner, in a service level and those below it, have had a whole share.

        Such jobs go after those of others, and displace none of them.
        """
        return level >= self.had_share_from.get((group, user), inf)

    def rank(self, user: str, group: str) -> tuple[float, float]:
        """Return the usage of the group and of the user by their shares; the lower goes first."""
        return (
            _usage_by_share(self.groups.get(group, 0.0), self.config.group_shares, group),
            _usage_by_share(self.users.get(user, 0.0), self.config.user_shares, user),
        )


def levels_with_share(snapshot: Snapshot) -> dict[tuple[str, str], int]:
    """Return the lowest service level in which each owner has had a share, for those who have in any."""
    found: dict[tuple[str, str], int] = {}
    for owner, parts in _parts_of_shares(snapshot):
        level = next((level for level, part in enumerate(parts) if part > 1), None)
        if level is not None:
            found[owner] = level
    return found


def share_excesses(snapshot: Snapshot) -> list[float]:
    """Return the multiple of its share that each owner has had in a level, where that is more than once."""
    return [part for _, parts in _parts_of_shares(snapshot) for part in parts if part > 1]


def _parts_of_shares(snapshot: Snapshot) -> Iterator[tuple[tuple[str, str], list[float]]]:
    """Yield by owner what was had in each service level and those below it, as parts of the owner's share.

    A share is what the owner's devices by ``entitlements`` would have been charged if they had always been
    held.  Owners whose share is 0 have had it from the beginning.
    """
    whole_s = snapshot.config.half_life_s / log(2)  # what one device is charged that is always held
    for owner, devices in entitlements(snapshot).items():
        share = devices * whole_s
        had = accumulate(snapshot.level_usage.get(owner, ()))
        yield owner, [device_s / share for device_s in had] if devices else [inf]


def entitlements(snapshot: Snapshot) -> dict[tuple[str, str], float]:
    """Return the billed devices that each group and user with unfinished jobs would hold by their shares.

    Groups divide the machine by their shares, and the users of a group divide its part by theirs.
    """
    config = snapshot.config
    users: dict[str, set[str]] = {}
    for (_, owner, group), count in snapshot.queue_lengths.items():
        if count:
            users.setdefault(group, set()).add(owner)
    for job in snapshot.running:
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
