"""What was said and found out about devices and outlives the daemon.

Drained by an operator and quarantined by the daemon, until a person takes it back; what is in use on
a clean one, and who has left it dirty, until the machine is booted anew.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from runner.adapters.sqlite.store import SQL, SqliteStore
from runner.core.devices.state import AdminMark, Remembered
from runner.core.scheduler.snapshot import DeviceState

KEPT: Final = "device:"
"""Begins the names of what is kept of devices in the store's table of small things."""


@dataclass(frozen=True, slots=True)
class SqliteDeviceMarks:
    """Satisfies ``runner.control.inventory_types.AdminMarks``; written by whoever writes the store."""

    store: SqliteStore
    boot: str  # the monotonic clock, and whatever is in a device's memory, are of one boot

    def all(self) -> Mapping[str, AdminMark]:
        """Return what was said about each device, by UUID."""
        return {
            str(row["uuid"]): AdminMark(
                DeviceState(row["state"]), row["reason"], row["by"], datetime.fromisoformat(row["since"])
            )
            for row in self.store.rows("device_words")
        }

    def say(self, uuid: str, word: AdminMark) -> None:
        """Keep a word about a device, in place of an earlier one."""
        values = {
            "uuid": uuid,
            "state": word.state.value,
            "reason": word.reason,
            "by": word.by,
            "since": word.since.isoformat(),
        }
        with self.store.transaction() as connection:
            connection.execute(SQL["say_of_device"], values)

    def take_back(self, uuid: str) -> None:
        """Forget what was said about a device."""
        with self.store.transaction() as connection:
            connection.execute(SQL["unsay_of_device"], {"uuid": uuid})

    def kept(self) -> Mapping[str, Remembered]:
        """Return what was kept of each device since the machine was booted, by UUID."""
        rows = self.store.rows("devices_kept")
        found = {str(row["key"]).removeprefix(KEPT): json.loads(row["value"]) for row in rows}
        return {uuid: _kept(said) for uuid, said in found.items() if said["boot"] == self.boot}

    def keep(self, kept: Mapping[str, Remembered]) -> None:
        """Keep what was found out about some devices, in place of what was kept of them before."""
        with self.store.transaction() as connection:
            for uuid, each in kept.items():
                said = {
                    "boot": self.boot,
                    "baseline": each.baseline_bytes,
                    "left": sorted(each.uncleaned_jobs),
                    "returned": each.returned_at,
                }
                connection.execute(SQL["set_meta"], {"key": f"{KEPT}{uuid}", "value": json.dumps(said)})

    def note(self, job_id: str, at: datetime, kind: str, text: str) -> None:
        """Write a line about a device beside what happened to a job."""
        self.store.note(job_id, at, kind, text)


def _kept(said: Mapping[str, Any]) -> Remembered:
    return Remembered(said["baseline"], frozenset(said["left"]), said["returned"])
