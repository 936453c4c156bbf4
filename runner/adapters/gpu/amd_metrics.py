"""Decodes why the clocks of an AMD device are throttled, from the table ``gpu_metrics`` of its driver.

The table has a version, and each version has its own layout.  Drivers from outside of the kernel have used a
version for a longer table, so a table is decoded only if both its version and its size are known.  For all
others the reasons are unknown; this includes 1.4 and later, where the kernel sets no status.  A value that a
driver does not know has all bits set.

Sources: Linux, ``drivers/gpu/drm/amd/include/kgd_pp_interface.h`` (layouts), and below ``amd/pm/swsmu/inc``
``amdgpu_smu.h`` (bits) and ``pmfw_if/smu14_driver_if_v14_0_0.h`` (what the counters count).
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

Counters: TypeAlias = tuple[int, ...]
"""Times for which each of several limits has throttled the clocks; the values only grow."""

POWER, CURRENT, HEAT, HOT, SLOW = (
    "power cap", "current limit", "heat", "heat (hardware)", "hardware slowdown",
)  # fmt: skip
"""The same names as for NVIDIA's reasons, where those have one."""

STATUS_AT: Final = {(1, 3): (120, 112), (2, 2): (128, 120), (2, 3): (152, 120), (2, 4): (168, 120)}
"""By version: the size of a table in bytes, and the offset of its 64 device-independent status bits."""

BITS: Final = ((range(8), POWER), (range(16, 24), CURRENT), (range(32, 46), HEAT), (range(46, 48), HOT),
               (range(56, 58), SLOW))  # fmt: skip
"""The reason of each range of status bits."""

COUNTERS_AT: Final = {(3, 0): (264, 228)}
"""By version: the size of a table in bytes, and the offset of its counters."""

COUNTED: Final = (HOT, POWER, POWER, POWER, HEAT, HEAT, HEAT)
"""The reason of each counter: PROCHOT, SPL, fast and slow PPT, heat of cores, graphics and the rest."""

_HEADER: Final = struct.Struct("=HBB")  # size, major and minor version
_STATUS: Final = struct.Struct("=Q")
_COUNTERS: Final = struct.Struct(f"={len(COUNTED)}I")


def throttle_reasons(
    raw: bytes, before: Counters | None = None
) -> tuple[tuple[str, ...] | None, Counters | None]:
    """Return the throttle reasons, None if they are unknown, and the counters of the table, if any.

    ``before`` has the counters of the previous table: the reasons are those whose counters have grown.
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
    return _unique(reason for bits, reason in BITS if any(status >> bit & 1 for bit in bits))


def _by_counters(now: Counters, before: Counters | None) -> tuple[str, ...] | None:
    if before is None or any(new < old for new, old in zip(now, before, strict=True)):
        return None
    return _unique(_grown(now, before))


def _grown(now: Counters, before: Counters) -> Iterator[str]:
    for reason, new, old in zip(COUNTED, now, before, strict=True):
        if new > old:
            yield reason


def _unique(reasons: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(reasons))
