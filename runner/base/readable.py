"""Durations and sizes as people read them, rounded; the commands and the dashboard say them alike."""


def readable_duration(seconds: float) -> str:
    """Return a duration as text with at most two units: ``42s``, ``3m07s``, ``2h05m``, ``3d04h``."""
    whole = max(round(seconds), 0)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def readable_size(size: float) -> str:
    """Return a size as a person reads it, rounded, in a binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
