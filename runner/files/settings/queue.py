"""Settings of the queue: classes, quotas, shares, preemption, maintenance.

Durations are written as in a job file (``90m``, ``7d``), moments with their offset from UTC. The values are
those of ``core.queue.rules``, which also has the defaults; docs/explanation/quotas.md explains what
they do.
"""

import grp
import pwd
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated, Final, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import (
    Field,
    PlainSerializer,
    PlainValidator,
    field_validator,
    model_validator,
)

from runner.base.textfile import quoted
from runner.base.units import format_duration, parse_duration
from runner.core.scheduler.config import (
    DEFAULT_CLASSES,
    DEFAULT_USER_QUOTA,
    PreemptionConfig,
    PriorityClass,
    Quota,
    Quotas,
    SchedulerConfig,
    SchedulingOrder,
    SwitchingConfig,
)
from runner.core.scheduler.snapshot import Maintenance
from runner.files.job.queue import Timestamp, Zone
from runner.files.types import ClosedModel

Duration = Annotated[
    timedelta, PlainValidator(parse_duration), PlainSerializer(format_duration, return_type=str)
]


def _days(value: object) -> timedelta:
    """Return a duration that is usually in hours or days; a unit is required."""
    number = str(value).strip()
    if not isinstance(value, bool) and re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,6})?", number):
        raise ValueError(f'needs a unit: did you mean "{number}d", "{number}h", "{number}m" or "{number}s"?')
    return parse_duration(value)


Days = Annotated[timedelta, PlainValidator(_days), PlainSerializer(format_duration, return_type=str)]
Named = Annotated[str, Field(min_length=1, max_length=64)]
Share = Annotated[float, Field(ge=0, le=1e6)]

_RULES: Final = SchedulerConfig()
_USUAL: Final = "normal"

MAX_LEVELS: Final = 8
"""Limits of service levels in the settings; two to four are usual."""


def _of(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


class QuotaSettings(ClosedModel):
    """The limits of one user or group; null: no limit."""

    devices: int | None = Field(None, ge=0)
    """Devices allocated at once; a slice or a share counts as one."""

    jobs: int | None = Field(None, ge=0)
    """Jobs with an allocation at once."""

    queued: int | None = Field(None, ge=0)
    """Jobs in the queue when another one is submitted."""

    def quota(self) -> Quota:
        return Quota(self.devices, self.jobs, self.queued)


class ClassSettings(ClosedModel):
    """A priority class."""

    rank: int = Field(ge=-1000, le=1000)
    """Higher ranks start first, whatever their owners have used."""

    weight: float = Field(1.0, gt=0, le=1000)
    """The value of a device-second of waiting; only for preemption."""

    preempts: bool = False
    """True: its jobs may preempt preemptible jobs of lower ranks."""

    preemptible: bool = False
    """True: its jobs may be preempted: they save, stop and return to the queue."""

    bound: Days = timedelta(days=3)
    """The starvation limit: a job that has waited longer goes first."""

    user_quota: QuotaSettings = QuotaSettings()
    """The limits of each user within the class, in addition to those of users."""

    time_limit: Duration | None = None
    """The time limit of a job that names none; null: it has none."""

    users: tuple[Named, ...] | None = None
    """Users who may use the class, by name; root and the daemon's own user always may."""

    groups: tuple[Named, ...] | None = None
    """Groups whose members may use the class.  Neither users nor groups: everybody may, except that a daemon
    of root for all users keeps a class that preempts to root."""

    def named(self, name: str) -> PriorityClass:
        return PriorityClass(
            name,
            self.rank,
            self.weight,
            self.preempts,
            self.preemptible,
            self.bound.total_seconds(),
            self.user_quota.quota(),
            None if self.time_limit is None else self.time_limit.total_seconds(),
        )


class UserQuotaSettings(QuotaSettings):
    """The limits of users who have no limits of their own."""

    queued: int | None = Field(DEFAULT_USER_QUOTA.queued, ge=0)
    """Jobs in the queue when another one is submitted; null: no limit."""


class PreemptionSettings(ClosedModel):
    """Conditions under which one job is preempted for another."""

    hurdle: float = Field(_RULES.preemption.min_gain, ge=0)
    """The gain must be this many times the loss."""

    grace: Duration = _of(_RULES.preemption.grace_s)
    """The planned time from the request until the devices are clean."""

    young: Duration = _of(_RULES.preemption.min_runtime_s)
    """A younger attempt is not preempted."""

    most: int = Field(_RULES.preemption.max_preemptions, ge=0)
    """Most preemptions of one job; 0: never."""

    def preemption(self) -> PreemptionConfig:
        return PreemptionConfig(
            self.hurdle, self.grace.total_seconds(), self.young.total_seconds(), self.most
        )


class SwitchingSettings(ClosedModel):
    """The order ``attained``: service levels, and what switching from job to job may cost."""

    budget: float = Field(_RULES.switching.budget, ge=0, le=1)
    """The part of the device time, of each job and of the machine, that switching may cost."""

    levels: tuple[Days, ...] | None = None
    """The ascending limits of the service levels in device time: 2 GPUs reach 1h in 30 minutes.  Null: they
    follow from the jobs that this machine has finished; 10m, 1h and 8h until there are 100 of them."""

    kept_weight: float = Field(_RULES.switching.kept_weight, ge=1, le=100)
    """Factor of the usage of a job with ``queue.preemptible: false``."""

    @field_validator("levels")
    @classmethod
    def _ascending(cls, levels: tuple[timedelta, ...] | None) -> tuple[timedelta, ...] | None:
        if levels is None:
            return None
        if not 1 <= len(levels) <= MAX_LEVELS:
            raise ValueError(f"must have 1 to {MAX_LEVELS} limits, or be null: they are learned then")
        if not min(levels):
            raise ValueError("a limit must be more than 0s: every job is above that")
        if any(later <= sooner for sooner, later in pairwise((timedelta(), *levels))):
            raise ValueError("must ascend; write for example [10m, 1h, 8h]")
        return levels

    def switching(self) -> SwitchingConfig:
        if self.levels is None:
            return SwitchingConfig(budget=self.budget, kept_weight=self.kept_weight)
        levels_device_s = tuple(each.total_seconds() for each in self.levels)
        return SwitchingConfig(levels_device_s, self.budget, self.kept_weight)


class Window(ClosedModel):
    """A maintenance window of the machine or of some devices."""

    begin: Timestamp
    end: Timestamp
    reason: str = Field("maintenance", min_length=1, max_length=200)
    devices: tuple[Named, ...] = ()
    """UUIDs or names such as GPU-3; none: the whole machine."""

    @model_validator(mode="after")
    def _lasts(self) -> Self:
        if self.end <= self.begin:
            raise ValueError("ends before it begins; swap begin and end")
        return self

    def maintenance(self) -> Maintenance:
        begins_s, ends_s = self.begin.timestamp(), self.end.timestamp()
        return Maintenance(begins_s, ends_s, self.reason, devices=frozenset(self.devices))


def _classes() -> dict[str, ClassSettings]:
    return {
        each.name: ClassSettings(
            rank=each.rank,
            weight=each.weight,
            preempts=each.preempts,
            preemptible=each.preemptible,
            bound=_of(each.starvation_limit_s),
            user_quota=QuotaSettings(
                devices=each.user_quota.devices, jobs=each.user_quota.jobs, queued=each.user_quota.queued
            ),
            time_limit=None if each.time_limit_s is None else _of(each.time_limit_s),
        )
        for each in DEFAULT_CLASSES
    }


def _over(shipped: object, written: object) -> object:
    """Return the written values, completed by the shipped ones, at any depth."""
    if not (isinstance(shipped, Mapping) and isinstance(written, Mapping)):
        return written
    return {**shipped, **{name: _over(shipped.get(name), each) for name, each in written.items()}}


class QueueSettings(ClosedModel):
    """The order of the queue, and the limits of users and groups."""

    order: Literal["fair", "attained", "fifo", "priority", "sjf"] = "attained"
    """``attained``: short jobs need not wait for long ones, which are preempted and come back.  ``fair``: no
    job is preempted for one of the same class.  The others exist for comparisons."""

    classes: dict[Named, ClassSettings] = Field(default_factory=_classes)
    """Priority classes by name, on top of the shipped ones: what an entry leaves out is that of the shipped
    class of its name, and null leaves out that class.  ``normal`` is the default of jobs, and stays."""

    backfill: bool = True
    """True: a job may start before earlier jobs if it delays none of them."""

    half_life: Days = _of(_RULES.half_life_s)
    """The time after which past usage counts half."""

    cpu_weight: float = Field(_RULES.cpu_weight, ge=0, le=1)
    """Number of devices that a CPU counts as."""

    user_shares: dict[Named, Share] = {}
    """Shares of users; 1 for all others; 0: last."""

    group_shares: dict[Named, Share] = {}
    """Shares of groups; the primary group of the owner counts."""

    user_quota: UserQuotaSettings = UserQuotaSettings()
    """The quota of every user without an own quota."""

    group_quota: QuotaSettings = QuotaSettings()
    """The quota of every group without an own quota."""

    user_quotas: dict[Named, QuotaSettings] = {}
    """Quotas by user."""

    group_quotas: dict[Named, QuotaSettings] = {}
    """Quotas by group."""

    unknown: Days = _of(_RULES.default_duration_s)
    """The assumed run time of a job without a time limit or earlier runs."""

    overdue_per_owner: int = Field(_RULES.overdue_per_owner, ge=1, le=1000)
    """The number of jobs per owner that can be overdue at once."""

    reservations: int = Field(_RULES.reservations, ge=1, le=1000)
    """The number of reservations for overdue jobs at once."""

    preemption: PreemptionSettings = PreemptionSettings()
    """Conditions on which one job is preempted for another."""

    switching: SwitchingSettings = SwitchingSettings()
    """Costs that the order ``attained`` may cause, and its service levels."""

    maintenance: tuple[Window, ...] = ()
    """Maintenance windows of the machine or of some devices."""

    timezone: Zone | None = None
    """The time zone of times in pending reasons; null: that of this machine."""

    @field_validator("classes", mode="before")
    @classmethod
    def _merge(cls, written: object) -> object:
        if not isinstance(written, Mapping):
            return written
        shipped = {name: each.model_dump() for name, each in _classes().items()}
        merged = {name: _over(shipped.get(name, {}), each) for name, each in {**shipped, **written}.items()}
        return {name: each for name, each in merged.items() if each is not None}

    @field_validator("classes")
    @classmethod
    def _complete(cls, classes: Mapping[str, ClassSettings]) -> Mapping[str, ClassSettings]:
        if _USUAL not in classes:
            raise ValueError(f"{_USUAL} must stay, as the class of jobs that name none")
        return classes

    def shipped_classes(self) -> tuple[str, ...]:
        """Return the classes that are as they are shipped, if others are not."""
        shipped = _classes()
        kept = tuple(name for name, each in self.classes.items() if each == shipped.get(name))
        return () if self.classes == shipped else kept

    @field_validator("half_life", "unknown")
    @classmethod
    def _positive(cls, value: timedelta) -> timedelta:
        if value < timedelta(minutes=1):
            raise ValueError("must be at least 1m")
        return value

    def rules(self) -> SchedulerConfig:
        """Return the configuration of the scheduler."""
        return SchedulerConfig(
            order=SchedulingOrder(self.order),
            classes=tuple(each.named(name) for name, each in self.classes.items()),
            backfill=self.backfill,
            quotas=Quotas(
                _quotas(self.user_quotas),
                _quotas(self.group_quotas),
                self.user_quota.quota(),
                self.group_quota.quota(),
            ),
            user_shares=MappingProxyType(dict(self.user_shares)),
            group_shares=MappingProxyType(dict(self.group_shares)),
            half_life_s=self.half_life.total_seconds(),
            cpu_weight=self.cpu_weight,
            default_duration_s=self.unknown.total_seconds(),
            overdue_per_owner=self.overdue_per_owner,
            reservations=self.reservations,
            preemption=self.preemption.preemption(),
            switching=self.switching.switching(),
        )

    def windows(self) -> tuple[Maintenance, ...]:
        return tuple(window.maintenance() for window in self.maintenance)

    def strangers(self) -> Iterator[str]:
        """Yield a warning for each user and group in quotas and shares that does not exist here."""
        for name, each in self.classes.items():
            yield from find_unknown_names(f"queue.classes.{name}", each.users or (), each.groups or ())
        for key, noun, known, names in (
            ("user_quotas", "user", _is_user, list(self.user_quotas)),
            ("user_shares", "user", _is_user, list(self.user_shares)),
            ("group_quotas", "group", _is_group, list(self.group_quotas)),
            ("group_shares", "group", _is_group, list(self.group_shares)),
        ):
            for name in names:
                if not known(name):
                    yield f"queue.{key}: this machine has no {noun} {quoted(name)}; the entry has no effect"

    def utc_offset_s(self, now: datetime) -> float:
        """Return the UTC offset of the time zone in seconds."""
        zone = None if self.timezone is None else ZoneInfo(self.timezone)
        offset = now.astimezone(zone).utcoffset()
        return 0.0 if offset is None else offset.total_seconds()


def find_unknown_names(section: str, users: Iterable[str], groups: Iterable[str]) -> Iterator[str]:
    """Yield a warning for each user and group of a section that does not exist on this machine."""
    for key, noun, known, names in (
        ("users", "user", _is_user, users),
        ("groups", "group", _is_group, groups),
    ):
        for name in names:
            if not known(name):
                yield f"{section}.{key}: this machine has no {noun} {quoted(name)}"


def _is_user(name: str) -> bool:
    try:
        return name.isdecimal() or bool(pwd.getpwnam(name))  # an owner without a name is known by the number
    except KeyError:
        return False


def _is_group(name: str) -> bool:
    try:
        return name.isdecimal() or bool(grp.getgrnam(name))
    except KeyError:
        return False


def _quotas(settings: Mapping[str, QuotaSettings]) -> Mapping[str, Quota]:
    return MappingProxyType({name: each.quota() for name, each in settings.items()})
