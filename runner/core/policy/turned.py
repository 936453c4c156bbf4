"""What remedies have turned, as settings for the next attempts: values, and never "half of that".

A verdict says ``micro_batch: halve``; what is remembered is ``micro_batch = 128``.  So an attempt that is
launched again after a crash of the daemon gets the same, and a person can read what will be used.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from runner.core.policy.catalog_environment import PRECISIONS
from runner.core.policy.facts import Facts
from runner.core.policy.model import Adjustment, Knob


@dataclass(frozen=True, slots=True)
class Turned:
    """Settings over those of the revision; None leaves the revision's own."""

    micro_batch: int | None = None
    eval_batch: int | None = None
    loader_workers: int | None = None
    precision: str | None = None
    compile: str | None = None
    profile: str | None = None  # the name of another profile to start from
    avoid: tuple[str, ...] = ()  # devices that the next attempts do not get

    @property
    def switches(self) -> Mapping[str, Any]:
        """The switches of a profile that are to be different, by name."""
        return {name: value for name in _SWITCHES if (value := getattr(self, name)) is not None}


_SWITCHES: Final = ("micro_batch", "eval_batch", "loader_workers", "precision", "compile")


def turn(before: Turned, adjust: tuple[Adjustment, ...], facts: Facts, devices: tuple[str, ...]) -> Turned:
    """Return the settings after some adjustments; ``devices`` are those that the attempt had.

    A number that nobody knows cannot be halved: that knob stays where it is.
    """
    after = before
    for adjustment in adjust:
        after = _one(after, adjustment, facts, devices)
    return after


def _one(before: Turned, adjustment: Adjustment, facts: Facts, devices: tuple[str, ...]) -> Turned:
    match adjustment.knob:
        case Knob.MICRO_BATCH:
            return replace(before, micro_batch=_half(facts, "effective.micro_batch", 1, before.micro_batch))
        case Knob.EVAL_BATCH:
            return replace(before, eval_batch=_half(facts, "effective.eval_batch", 1, before.eval_batch))
        case Knob.WORKERS:
            return replace(before, loader_workers=_half(facts, "effective.workers", 0, before.loader_workers))
        case Knob.PRECISION:
            return replace(before, precision=_safer(facts))
        case Knob.COMPILE:
            return replace(before, compile="off")
        case Knob.DEVICE:
            return replace(before, avoid=tuple(dict.fromkeys((*before.avoid, *devices))))
        case Knob.PROFILE:  # exhaustive
            return replace(before, profile=adjustment.turn)


def _half(facts: Facts, name: str, least: int, before: int | None) -> int | None:
    now = facts.get(name)
    return max(now // 2, least) if isinstance(now, int) else before


def _safer(facts: Facts) -> str:
    """Return the next more careful arithmetic; the most careful one where nobody knows the present one."""
    now = facts.get("effective.precision")
    place = PRECISIONS.index(str(now)) if now in PRECISIONS else len(PRECISIONS)
    return PRECISIONS[min(place + 1, len(PRECISIONS) - 1)]
