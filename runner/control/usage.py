"""Usage of users and groups until now: the integral of what was allocated to them, which decays.

What owners have had in each service level is loaded here, too, and kept by ``LevelUsage``.

It is loaded once from the store, then advanced in steps.  Between two steps allocations do not change, so
the sum is exact and costs nothing while nothing happens.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from runner.core.accounting.usage import HOUR_S
from runner.core.ports.store import UsageHistory, UsageRecord
from runner.core.scheduler.fairshare import accrue_usage, charge_usage, decay_usage
from runner.core.scheduler.level_usage import Holding, LevelUsage

HORIZON: Final = 10
"""Half-lives after which usage counts for nothing: less than a thousandth is left."""

LEAST_HOURS: Final = 24
"""Length of a half-life from which on the sums by hour are exact enough: within two percent."""

LONGEST_S: Final = 3650 * 86400.0
"""As far back as usage is loaded that does not decay."""

Bill = tuple[str, str, float]
"""The user and the group that a job is charged to, and the devices that it counts as."""


@dataclass(slots=True)
class UsageLedger:
    """Device-seconds by name, and the devices in use that add to each every second."""

    used: dict[str, float] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)

    def advance(self, elapsed_s: float, half_life_s: float) -> None:
        for name in self.used.keys() | self.rates.keys():
            rate = self.rates.get(name, 0.0)
            self.used[name] = charge_usage(self.used.get(name, 0.0), rate, elapsed_s, half_life_s)

    def add(self, name: str, devices: float) -> None:
        """Let a name use so many devices more from now on, or fewer."""
        rate = self.rates.get(name, 0.0) + devices
        if rate > _NOTHING:
            self.rates[name] = rate
        else:
            self.rates.pop(name, None)

    def rounded(self) -> Mapping[str, float]:
        """Return the usage so far, rounded: the order of additions must not show."""
        rounded = {name: round(used, 1) for name, used in self.used.copy().items()}
        return {name: used for name, used in rounded.items() if used}


_NOTHING: Final = 1e-9


@dataclass(slots=True)
class UsageTracker:
    """Usage of users and groups until a moment of the monotonic clock."""

    half_life_s: float
    cpu_weight: float
    at_s: float = 0.0
    users: UsageLedger = field(default_factory=UsageLedger)
    groups: UsageLedger = field(default_factory=UsageLedger)
    _open: dict[str, Bill] = field(default_factory=dict)  # by job

    def load(self, past: UsageHistory, now: datetime) -> None:
        """Add earlier usage; of an allocation that goes on the part up to now.

        Where an hour is short beside the half-life, an hour that is summed counts as if it was used evenly.
        """
        since = now - timedelta(seconds=min(HORIZON * self.half_life_s, LONGEST_S))
        if self.half_life_s < LEAST_HOURS * HOUR_S:
            for record in past.since(since):
                self._load_record(record, now)
            return
        for hour in past.hours_since(since):
            device_s = hour.device_s + self.cpu_weight * hour.cpu_s
            ends_at = min(hour.begins_at + timedelta(seconds=HOUR_S), now)
            self._load(hour.owner, hour.team, device_s / HOUR_S, (ends_at - hour.begins_at, now - ends_at))
        for record in past.unsummed():
            self._load_record(record, now)

    def _load_record(self, each: UsageRecord, now: datetime) -> None:
        devices, ended_at = each.gpus + self.cpu_weight * each.cpus, each.ended_at or now
        self._load(each.owner, each.team, devices, (ended_at - each.placed_at, now - ended_at))

    def _load(self, owner: str, team: str, devices: float, times: tuple[timedelta, timedelta]) -> None:
        """Add devices that were held for a time, some time ago."""
        lasted_s, ago_s = (max(each.total_seconds(), 0.0) for each in times)
        counts = decay_usage(accrue_usage(devices, lasted_s, self.half_life_s), ago_s, self.half_life_s)
        self.users.used[owner] = self.users.used.get(owner, 0.0) + counts
        self.groups.used[team] = self.groups.used.get(team, 0.0) + counts

    def advance(self, now_s: float) -> None:
        """Charge all users for their allocations up to a moment."""
        elapsed_s = now_s - self.at_s
        if elapsed_s > 0:
            self.users.advance(elapsed_s, self.half_life_s)
            self.groups.advance(elapsed_s, self.half_life_s)
        self.at_s = max(now_s, self.at_s)

    def begin(self, job_id: str, bill: Bill, now_s: float) -> None:
        """Begin to charge for a job, or charge it by another bill from now on."""
        if self._open.get(job_id) != bill:
            self.end(job_id, now_s)
            self.advance(now_s)
            self._open[job_id] = bill
            self._rate(bill, 1)

    def end(self, job_id: str, now_s: float) -> None:
        """Charge no more for a job."""
        bill = self._open.pop(job_id, None)
        if bill is not None:
            self.advance(now_s)
            self._rate(bill, -1)

    def _rate(self, bill: Bill, sign: int) -> None:
        user, group, devices = bill
        self.users.add(user, sign * devices)
        self.groups.add(group, sign * devices)


def load_level_usage(
    past: Iterable[UsageRecord], now: datetime, now_s: float, tracker: UsageTracker, limits: Sequence[float]
) -> LevelUsage:
    """Return the use of owners in each service level; of an allocation that goes on the part up to now.

    Args:
        past: the earliest first, so that what a job had held before each attempt is known.
        now: the time of day.
        now_s: the same moment of the monotonic clock.
        tracker: says how usage fades and what a processor counts as.
        limits: of the service levels.
    """
    found = LevelUsage(tracker.half_life_s)
    had_device_s: dict[str, float] = {}
    for each in past:
        devices = each.gpus + tracker.cpu_weight * each.cpus
        ended_s = now_s - max((now - (each.ended_at or now)).total_seconds(), 0.0)
        began_s = min(now_s - (now - each.placed_at).total_seconds(), ended_s)
        had = had_device_s.get(each.job_id, 0.0)
        found.add(Holding((each.team, each.owner), devices, had, began_s), ended_s, now_s, limits)
        had_device_s[each.job_id] = had + devices * (ended_s - began_s)
    return found
