"""What turning a knob comes to: whether it can still be turned, and the change in words."""

from collections.abc import Iterable, Mapping
from typing import Final

from runner.core.policy.catalog_environment import PRECISIONS
from runner.core.policy.conditions import worded
from runner.core.policy.facts import Facts, Known
from runner.core.policy.model import Adjustment, Knob

_FACT: Final[Mapping[Knob, str]] = {
    Knob.MICRO_BATCH: "effective.micro_batch",
    Knob.EVAL_BATCH: "effective.eval_batch",
    Knob.WORKERS: "effective.workers",
    Knob.PRECISION: "effective.precision",
    Knob.COMPILE: "effective.compile",
    Knob.DEVICE: "device.others",
    Knob.PROFILE: "effective.profile",
}

_END: Final[Mapping[Knob, Known]] = {
    Knob.MICRO_BATCH: 1,
    Knob.EVAL_BATCH: 1,
    Knob.WORKERS: 0,
    Knob.PRECISION: PRECISIONS[-1],
    Knob.COMPILE: False,
    Knob.DEVICE: 0,
}
"""Where each cannot be turned any further."""

_HALVED: Final = frozenset({Knob.MICRO_BATCH, Knob.EVAL_BATCH, Knob.WORKERS})


NO_REMEDY: Final = "a plain program has no knob for it"


def possible(adjustment: Adjustment, facts: Facts) -> bool:
    """Return whether a knob can still be turned; one whose position nobody knows can be tried.

    Not so of a plain program: half of a number that it never had would be the same again.
    """
    now = facts.get(_FACT[adjustment.knob])
    if now is None:
        return adjustment.knob not in _HALVED or facts.get("turnable") is not False
    return now != _END.get(adjustment.knob, adjustment.turn)


def spent(adjustments: Iterable[Adjustment], facts: Facts) -> str:
    """Return why none of the adjustments can be made any more: without the knobs, there never were any."""
    turnable = facts.get("turnable") is not False
    knobs = [each.knob.replace("_", "-") for each in adjustments if turnable or stays(each)]
    return f"{' and '.join(knobs)} cannot go any further" if knobs else NO_REMEDY


def changed(adjustment: Adjustment, facts: Facts) -> str:
    """Return what an adjustment does: ``micro-batch 256 → 128``, or without numbers nobody knows."""
    name = adjustment.knob.replace("_", "-")
    now = facts.get(_FACT[adjustment.knob])
    match adjustment.knob:
        case Knob.DEVICE:
            return "another device"
        case Knob.COMPILE:
            return "without compilation"
        case _:
            after = _after(adjustment, now)
            return f"{name} {adjustment.turn}" if now is None else f"{name} {worded(now)} → {after}"


def stays(adjustment: Adjustment) -> bool:
    """Return whether the effective spec is the same after an adjustment: only the place is another."""
    return adjustment.knob is Knob.DEVICE


def _after(adjustment: Adjustment, now: Known | None) -> str:
    if adjustment.knob is Knob.PRECISION:
        place = PRECISIONS.index(str(now)) if now in PRECISIONS else -1
        return PRECISIONS[min(place + 1, len(PRECISIONS) - 1)]
    return str(now // 2) if isinstance(now, int) else adjustment.turn
