"""What an operator may say about the queue: classes, quotas, shares, preemption, maintenance.

Durations are written as in a job file (``90m``, ``7d``), moments with their offset from UTC.
The values are those of ``core.queue.rules``, which also has the defaults; docs/explanation/scheduling.md
explains what they do.
"""

import grp
import pwd
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Annotated, Final, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import (
    BaseModel,
    ConfigDict,
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
    PreemptionConfig,
    PriorityClass,
    Quota,
    Quotas,
    SchedulerConfig,
    SchedulingOrder,
)
from runner.core.scheduler.snapshot import Maintenance
from runner.files.job.queue import Timestamp

Duration = Annotated[
    timedelta, PlainValidator(parse_duration), PlainSerializer(format_duration, return_type=str)
]


def _days(value: object) -> timedelta:
    """Return a duration that is mostly hours or days; one without a unit may mean either."""
    number = str(value).strip()
    if not isinstance(value, bool) and re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,6})?", number):
        raise ValueError(f'needs a unit: did you mean "{number}d", "{number}h" or "{number}m"?')
    return parse_duration(value)


Days = Annotated[timedelta, PlainValidator(_days), PlainSerializer(format_duration, return_type=str)]
Named = Annotated[str, Field(min_length=1, max_length=64)]
Share = Annotated[float, Field(ge=0, le=1e6)]

_RULES: Final = SchedulerConfig()
_USUAL: Final = "normal"


def _of(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


class ClosedModel(BaseModel):
    """Base of every section: an unknown key is a mistake."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ClassSettings(ClosedModel):
    """A class of jobs."""

    rank: int = Field(ge=-1000, le=1000)
    """Higher goes first, whatever the owners have used."""

    weight: float = Field(1.0, gt=0, le=1000)
    """What a device-second of waiting is worth; for preemption alone."""

    preempts: bool = False
    """Whether its jobs may stop preemptible ones of lower ranks."""

    preemptible: bool = False
    """Whether its jobs may be made to save, leave and wait again."""

    bound: Days = timedelta(days=3)
    """A job that has waited longer goes before all others."""

    def named(self, name: str) -> PriorityClass:
        return PriorityClass(
            name, self.rank, self.weight, self.preempts, self.preemptible, self.bound.total_seconds()
        )


class QuotaSettings(ClosedModel):
    """The most that one user or group may have; null: as much as there is."""

    devices: int | None = Field(None, ge=0)
    """Lent at a time; a slice or a share is one."""

    jobs: int | None = Field(None, ge=0)
    """That hold anything at a time."""

    queued: int | None = Field(None, ge=0)
    """Waiting, when another one is submitted."""

    def quota(self) -> Quota:
        return Quota(self.devices, self.jobs, self.queued)


class PreemptionSettings(ClosedModel):
    """When it pays to stop one job for another."""

    hurdle: float = Field(_RULES.preemption.min_gain, ge=0)
    """What is won must be so many times what is lost."""

    grace: Duration = _of(_RULES.preemption.grace_s)
    """From the request to the devices being clean, as far as is planned with it."""

    young: Duration = _of(_RULES.preemption.min_runtime_s)
    """An attempt younger than this is let be."""

    most: int = Field(_RULES.preemption.max_preemptions, ge=0)
    """Times that one job may be made to give way; 0: nobody ever is."""

    def preemption(self) -> PreemptionConfig:
        return PreemptionConfig(
            self.hurdle, self.grace.total_seconds(), self.young.total_seconds(), self.most
        )


class Window(ClosedModel):
    """A time in which the machine, or some of its devices, is not the queue's."""

    begin: Timestamp
    end: Timestamp
    reason: str = Field("maintenance", min_length=1, max_length=200)
    devices: tuple[Named, ...] = ()
    """UUIDs or names such as GPU-3; none: all of the machine."""

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
        )
        for each in DEFAULT_CLASSES
    }


class QueueSettings(ClosedModel):
    """Who goes first, and who may have how much."""

    order: Literal["fair", "fifo", "priority", "sjf"] = "fair"
    """Who goes first; all but ``fair`` are there to be compared with."""

    classes: dict[Named, ClassSettings] = Field(default_factory=_classes)
    """All classes by name; one of them is ``normal``, the class of a job that names none."""

    backfill: bool = True
    """Whether a job may start before those in front of it where that delays none of them."""

    half_life: Days = _of(_RULES.half_life_s)
    """After which a device-second that was used counts half."""

    cpu_weight: float = Field(_RULES.cpu_weight, ge=0, le=1)
    """Devices that a processor counts as."""

    user_shares: dict[Named, Share] = {}
    """Shares of users; 1 for everybody else, 0: last."""

    group_shares: dict[Named, Share] = {}
    """Shares of groups, by the primary group of whoever submits."""

    user_quota: QuotaSettings = QuotaSettings()
    """Of every user who has none of his own."""

    group_quota: QuotaSettings = QuotaSettings()
    """Of every group that has none of its own."""

    user_quotas: dict[Named, QuotaSettings] = {}
    """Quotas by user."""

    group_quotas: dict[Named, QuotaSettings] = {}
    """Quotas by group."""

    unknown: Days = _of(_RULES.default_duration_s)
    """What a job is taken to need that has neither a time limit nor a past."""

    overdue_per_owner: int = Field(_RULES.overdue_per_owner, ge=1, le=1000)
    """Jobs of one owner that may go before all others at a time, when their bound has passed."""

    reservations: int = Field(_RULES.reservations, ge=1, le=1000)
    """Kept at a time for jobs whose bound has passed."""

    preemption: PreemptionSettings = PreemptionSettings()
    """When it pays to stop one job for another."""

    maintenance: tuple[Window, ...] = ()
    """Times in which the machine or some devices are not the queue's."""

    timezone: str | None = None
    """Whose clock the times in reasons are told by; null: that of this machine."""

    @field_validator("classes")
    @classmethod
    def _complete(cls, classes: Mapping[str, ClassSettings]) -> Mapping[str, ClassSettings]:
        if _USUAL not in classes:
            raise ValueError(f"has no {_USUAL}, the class of jobs that name none; add it")
        return classes

    @field_validator("half_life", "unknown")
    @classmethod
    def _positive(cls, value: timedelta) -> timedelta:
        if value < timedelta(minutes=1):
            raise ValueError("must be at least 1m")
        return value

    @field_validator("timezone")
    @classmethod
    def _known(cls, name: str | None) -> str | None:
        try:
            return name if name is None else ZoneInfo(name).key
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ValueError(
                "is not a time zone of this machine; write for example Europe/Berlin or UTC"
            ) from error

    def rules(self) -> SchedulerConfig:
        """Return what the queue is told."""
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
        )

    def windows(self) -> tuple[Maintenance, ...]:
        return tuple(window.maintenance() for window in self.maintenance)

    def strangers(self) -> Iterator[str]:
        """Yield the users and groups in quotas and shares whom this machine does not know."""
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
        """Return how far the site's clock is ahead of UTC."""
        zone = None if self.timezone is None else ZoneInfo(self.timezone)
        offset = now.astimezone(zone).utcoffset()
        return 0.0 if offset is None else offset.total_seconds()


def _is_user(name: str) -> bool:
    try:
        return name.isdecimal() or bool(pwd.getpwnam(name))  # who has no name here goes by the number
    except KeyError:
        return False


def _is_group(name: str) -> bool:
    try:
        return name.isdecimal() or bool(grp.getgrnam(name))
    except KeyError:
        return False


def _quotas(settings: Mapping[str, QuotaSettings]) -> Mapping[str, Quota]:
    return MappingProxyType({name: each.quota() for name, each in settings.items()})
