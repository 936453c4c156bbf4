"""Adjustments of settings: whether one is possible, its description, and the overrides that result."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from runner.base.units import format_size
from runner.core.policy.catalog_environment import PRECISIONS
from runner.core.policy.conditions import format_value
from runner.core.policy.facts import Facts, FactValue
from runner.core.policy.model import Adjustment, Setting, memory_factor

_FACT: Final[Mapping[Setting, str]] = {
    Setting.MICRO_BATCH: "effective.micro_batch",
    Setting.EVAL_BATCH: "effective.eval_batch",
    Setting.WORKERS: "effective.workers",
    Setting.PRECISION: "effective.precision",
    Setting.COMPILE: "effective.compile",
    Setting.DEVICE: "device.others",
    Setting.PROFILE: "effective.profile",
    Setting.NODES: "effective.nodes",
    Setting.MEMORY: "effective.memory",
}

_END: Final[Mapping[Setting, FactValue]] = {
    Setting.MICRO_BATCH: 1,
    Setting.EVAL_BATCH: 1,
    Setting.WORKERS: 0,
    Setting.PRECISION: PRECISIONS[-1],
    Setting.COMPILE: False,
    Setting.DEVICE: 0,
    Setting.NODES: 1,
}
"""The value of each setting that cannot be adjusted any further."""

MIB: Final = 1024**2

_HALVED: Final = frozenset({Setting.MICRO_BATCH, Setting.EVAL_BATCH, Setting.WORKERS})


NO_SETTING: Final = "a plain program has no knob for it"


def can_adjust(adjustment: Adjustment, facts: Facts) -> bool:
    """Return True if a setting can be adjusted; one whose value is unknown can be tried.

    A setting that is halved cannot be tried on a program without such settings.
    """
    now = facts.get(_FACT[adjustment.knob])
    if now is None and adjustment.knob is Setting.NODES:
        return False  # it has one
    if adjustment.knob is Setting.MEMORY:
        return (_more_memory(adjustment, facts) or 0) > _number(facts, "effective.memory")
    if now is None:
        return adjustment.knob not in _HALVED or facts.get("turnable") is not False
    return now != _END.get(adjustment.knob, adjustment.turn)


def describe_exhausted(adjustments: Iterable[Adjustment], facts: Facts) -> str:
    """Return the reason why none of the adjustments is possible."""
    turnable = facts.get("turnable") is not False
    knobs = [
        each.knob.replace("_", "-")
        for each in adjustments
        if turnable or keeps_settings(each) or each.knob is Setting.MEMORY
    ]
    return f"{' and '.join(knobs)} cannot go any further" if knobs else NO_SETTING


def describe_change(adjustment: Adjustment, facts: Facts) -> str:
    """Return an adjustment as text: ``micro-batch 256 → 128``, without numbers that are unknown."""
    name = adjustment.knob.replace("_", "-")
    now = facts.get(_FACT[adjustment.knob])
    match adjustment.knob:
        case Setting.DEVICE:
            return "another device"
        case Setting.COMPILE:
            return "without compilation"
        case Setting.MEMORY if isinstance(now, int) and (more := _more_memory(adjustment, facts)):
            return f"memory {format_size(now)} → {format_size(more)}"
        case _:
            after = _after(adjustment, now)
            return f"{name} {adjustment.turn}" if now is None else f"{name} {format_value(now)} → {after}"


def keeps_settings(adjustment: Adjustment) -> bool:
    """Return True if an adjustment keeps the effective spec: only another device is chosen."""
    return adjustment.knob is Setting.DEVICE


def _after(adjustment: Adjustment, now: FactValue | None) -> str:
    if adjustment.knob is Setting.PRECISION:
        place = PRECISIONS.index(str(now)) if now in PRECISIONS else -1
        return PRECISIONS[min(place + 1, len(PRECISIONS) - 1)]
    return str(now // 2) if isinstance(now, int) else adjustment.turn


@dataclass(frozen=True, slots=True)
class Overrides:
    """Settings that replace those of the revision; None keeps the setting of the revision."""

    micro_batch: int | None = None
    eval_batch: int | None = None
    loader_workers: int | None = None
    precision: str | None = None
    compile: str | None = None
    profile: str | None = None  # name of another base profile
    avoid: tuple[str, ...] = ()  # devices that the next attempts are not given
    nodes: int | None = None  # machines of a cluster that an attempt runs on together
    memory_bytes: int | None = None  # on each of them

    @property
    def switches(self) -> Mapping[str, Any]:
        """The switches of the profile that are replaced, by name."""
        return {name: value for name in _SWITCHES if (value := getattr(self, name)) is not None}


_SWITCHES: Final = ("micro_batch", "eval_batch", "loader_workers", "precision", "compile")


def apply_adjustments(
    before: Overrides, adjust: tuple[Adjustment, ...], facts: Facts, devices: tuple[str, ...]
) -> Overrides:
    """Return the overrides after some adjustments; ``devices`` are those of the attempt.

    A number that is unknown is not halved: that setting stays as it is.
    """
    after = before
    for adjustment in adjust:
        after = _one(after, adjustment, facts, devices)
    return after


def _one(before: Overrides, adjustment: Adjustment, facts: Facts, devices: tuple[str, ...]) -> Overrides:
    match adjustment.knob:
        case Setting.MICRO_BATCH:
            return replace(before, micro_batch=_half(facts, "effective.micro_batch", 1, before.micro_batch))
        case Setting.EVAL_BATCH:
            return replace(before, eval_batch=_half(facts, "effective.eval_batch", 1, before.eval_batch))
        case Setting.WORKERS:
            return replace(before, loader_workers=_half(facts, "effective.workers", 0, before.loader_workers))
        case Setting.PRECISION:
            return replace(before, precision=_safer(facts))
        case Setting.COMPILE:
            return replace(before, compile="off")
        case Setting.DEVICE:
            return replace(before, avoid=tuple(dict.fromkeys((*before.avoid, *devices))))
        case Setting.NODES:
            return replace(before, nodes=_half(facts, "effective.nodes", 1, before.nodes))
        case Setting.MEMORY:
            return replace(before, memory_bytes=_more_memory(adjustment, facts) or before.memory_bytes)
        case Setting.PROFILE:  # exhaustive
            return replace(before, profile=adjustment.turn)


def _half(facts: Facts, name: str, least: int, before: int | None) -> int | None:
    now = facts.get(name)
    return max(now // 2, least) if isinstance(now, int) else before


def _more_memory(adjustment: Adjustment, facts: Facts) -> int | None:
    """Return the memory after an adjustment, at most that of the machine; None: something is not known."""
    now, most = (_number(facts, name) for name in ("effective.memory", "host.memory"))
    factor = memory_factor(adjustment.turn)
    return min(int(now * factor), most) // MIB * MIB if now and most and factor else None


def _number(facts: Facts, name: str) -> int:
    value = facts.get(name)
    return value if isinstance(value, int) else 0


def _safer(facts: Facts) -> str:
    """Return the next more precise arithmetic; the most precise one if the present one is unknown."""
    now = facts.get("effective.precision")
    place = PRECISIONS.index(str(now)) if now in PRECISIONS else len(PRECISIONS)
    return PRECISIONS[min(place + 1, len(PRECISIONS) - 1)]
