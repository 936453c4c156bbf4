"""The settings that are in force, and which of them change without a restart of the daemon."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from runner.files.settings.model import Settings

RELOADABLE: Final[Mapping[str, frozenset[str] | None]] = {
    "alarm": None,
    "allowed_images": None,
    "disk_quota": None,
    "job_file_bytes_per_user": None,
    "metrics": frozenset({"per_user", "most_users"}),
    "network": frozenset({"default", "class_defaults", "outbound"}),
    "private_jobs": None,
    "queue": None,
    "requests_per_s": None,
    "retention": None,
    "root_jobs_run_as": None,
    "session_bytes_per_s": None,
    "sessions_per_user": None,
    "submission_bytes": None,
}
"""Settings that a reload changes; None: the whole section, else these keys of it."""


@dataclass(frozen=True, slots=True)
class SettingsChange:
    """Result of a reload of the settings."""

    settings: Settings
    changed: tuple[str, ...]
    """Keys that are in force now."""
    needs_restart: tuple[str, ...]
    """Keys that differ in the file, and keep their values until the daemon is started anew."""


@dataclass(slots=True)
class LiveSettings:
    """The settings that are in force; a reload replaces them as a whole."""

    value: Settings

    def image_reference(self, name: str) -> str | None:
        """Return the reference of an image that a job may name now."""
        return self.value.image_reference(name)


def merge_settings(present: Settings, written: Settings) -> SettingsChange:
    """Return the present settings with what a reload may take from those in the file."""
    merged = dict(present)
    changed: list[str] = []
    needs_restart: list[str] = []
    for name, value in written:
        if value == merged[name]:
            continue
        keys = RELOADABLE.get(name, frozenset())
        if keys is None:
            merged[name] = value
            changed.append(name)
            continue
        for key, part in value if keys else ():
            if part != getattr(merged[name], key):
                (changed if key in keys else needs_restart).append(f"{name}.{key}")
        if keys:
            taken = {key: getattr(value, key) for key in keys}
            merged[name] = merged[name].model_copy(update=taken)
        else:
            needs_restart.append(name)
    settings = present.model_copy(update=merged)
    return SettingsChange(settings, tuple(changed), tuple(needs_restart))
