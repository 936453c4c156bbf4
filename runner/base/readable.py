"""Durations and sizes as people read them, rounded: in reasons, tables and pages alike.

``runner.base.units`` writes exactly what a field of a file says.
"""

from datetime import timedelta


def readable_duration(duration: timedelta | float) -> str:
    """Return a duration as text with at most two units: ``0.4s``, ``42s``, ``3m07s``, ``2h``, ``3d04h``.

    A number is in seconds.
    """
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    whole = max(round(seconds), 0)
    if 0 < seconds < 9.95:
        return f"{seconds:.1f}".removesuffix(".0") + "s"
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return _units(whole // 60, "m", whole % 60, "s")
    if whole < 86400:
        return _units(whole // 3600, "h", whole % 3600 // 60, "m")
    return _units(whole // 86400, "d", whole % 86400 // 3600, "h")


def _units(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}{small:02}{small_unit}" if small else f"{large}{large_unit}"


def readable_size(size: float) -> str:
    """Return a size as text in a binary unit: ``512 B``, ``1.5 GiB``, ``64 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{_tenths(size)} {unit}"
        size /= 1024
    return f"{_tenths(size)} TiB"


def readable_count(count: int, noun: str) -> str:
    """Return a number of things as text: ``1 job``, ``2 jobs``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _tenths(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
