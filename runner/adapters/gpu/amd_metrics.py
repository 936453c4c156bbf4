"""What holds the clocks of an AMD device down, from the binary table ``gpu_metrics`` of its driver.

The table carries a version, and each has a layout of its own; drivers beside the kernel's have used a version
for a longer one.  A table is believed where its version *and* its size are known, and of all others nothing
is known: also of 1.4 and later, where the kernel fills in no status.  What a driver cannot tell is all ones.

Sources: Linux, ``drivers/gpu/drm/amd/include/kgd_pp_interface.h`` (layouts), and below ``amd/pm/swsmu/inc``
``amdgpu_smu.h`` (bits) and ``pmfw_if/smu14_driver_if_v14_0_0.h`` (what the counters count).
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

Counters: TypeAlias = tuple[int, ...]
"""How long each of several limits has held clocks down; they only grow."""

POWER, CURRENT, HEAT, HOT, SLOW = (
    "power cap", "current limit", "heat", "heat (hardware)", "hardware slowdown",
)  # fmt: skip
"""The words of NVIDIA's reasons, as far as those have one."""

STATUS_AT: Final = {(1, 3): (120, 112), (2, 2): (128, 120), (2, 3): (152, 120), (2, 4): (168, 120)}
"""Size of a table in bytes, and where its 64 bits are that mean the same for every device, by version."""

BITS: Final = ((range(8), POWER), (range(16, 24), CURRENT), (range(32, 46), HEAT), (range(46, 48), HOT),
               (range(56, 58), SLOW))  # fmt: skip
"""Which of those bits say what."""

COUNTERS_AT: Final = {(3, 0): (264, 228)}
"""Size of a table in bytes, and where its counters begin, by version."""

COUNTED: Final = (HOT, POWER, POWER, POWER, HEAT, HEAT, HEAT)
"""What each counter counts: PROCHOT, SPL, fast and slow PPT, heat of cores, graphics and the rest."""

_HEADER: Final = struct.Struct("=HBB")  # size, version before and behind the point
_STATUS: Final = struct.Struct("=Q")
_COUNTERS: Final = struct.Struct(f"={len(COUNTED)}I")


def throttle_reasons(
    raw: bytes, before: Counters | None = None
) -> tuple[tuple[str, ...] | None, Counters | None]:
    """Return what holds the clocks of a device down, None if nobody knows, and the counters that it has.

    ``before`` is those of the look before: a table that only counts tells nothing by itself.
    """
    if len(raw) < _HEADER.size:
        return None, None
    size, *version = _HEADER.unpack_from(raw)
    known, at = STATUS_AT.get((version[0], version[1]), (0, 0))
    if size == known <= len(raw):
        return _by_status(_STATUS.unpack_from(raw, at)[0]), None
    known, at = COUNTERS_AT.get((version[0], version[1]), (0, 0))
    if size == known <= len(raw):
        now = _COUNTERS.unpack_from(raw, at)
        return _by_counters(now, before), now
    return None, None


def _by_status(status: int) -> tuple[str, ...] | None:
    if status == 2**64 - 1:
        return None
    return _once(word for bits, word in BITS if any(status >> bit & 1 for bit in bits))


def _by_counters(now: Counters, before: Counters | None) -> tuple[str, ...] | None:
    if before is None or any(new < old for new, old in zip(now, before, strict=True)):
        return None
    return _once(_grown(now, before))


def _grown(now: Counters, before: Counters) -> Iterator[str]:
    for word, new, old in zip(COUNTED, now, before, strict=True):
        if new > old:
            yield word


def _once(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))
