"""Keeps the admin state of devices, and what was measured of them, beyond the life of the daemon.

An operator drains a device and the daemon quarantines one; this holds until a person takes it back.  The
memory in use on a clean device, and the jobs that may still use one, are kept until the host is booted again.
"""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf
from typing import Final

from runner.adapters.sqlite.rows import json_object, texts
from runner.adapters.sqlite.store import SQL, SqliteStore
from runner.core.devices.defects import SUSPECT_CAUSES, DeviceRun
from runner.core.devices.state import AdminMark, Remembered
from runner.core.policy.causes import ExitCause
from runner.core.scheduler.snapshot import DeviceState

KEY_PREFIX: Final = "device:"
"""Prefix of the keys of devices in the store's table ``meta``."""

RESUMED: Final = "resumed:"
"""The same of the times at which devices were resumed."""

EVIDENCE: Final = timedelta(days=30)
MOST_RUNS: Final = 500
"""Attempts that are looked at for defects: the newest ones."""


@dataclass(frozen=True, slots=True)
class SqliteDeviceMarks:
    """Satisfies ``runner.agent.devices.inventory_types.AdminMarks``; written by whoever writes the store."""

    store: SqliteStore
    boot: str  # a monotonic time, and the content of a device's memory, are valid within one boot

    def all(self) -> Mapping[str, AdminMark]:
        """Return the admin mark of each device that has one, by UUID."""
        return dict(self.store.read("device_marks", _admin_mark))

    def say(self, uuid: str, mark: AdminMark) -> None:
        """Write the admin mark of a device, in place of an earlier one."""
        values = {
            "uuid": uuid,
            "state": mark.state.value,
            "reason": mark.reason,
            "by": mark.by,
            "since": mark.since.isoformat(),
        }
        with self.store.transaction() as connection:
            connection.execute(SQL["mark_device"], values)

    def take_back(self, uuid: str, at: datetime) -> None:
        """Remove the admin mark of a device; what ran there before is no evidence any more."""
        with self.store.transaction() as connection:
            connection.execute(SQL["unmark_device"], {"uuid": uuid})
            connection.execute(SQL["set_meta"], {"key": f"{RESUMED}{uuid}", "value": at.isoformat()})

    def runs(self, now: datetime) -> Sequence[DeviceRun]:
        """Return the newest attempts that ran on devices, each with those that were not resumed since."""
        resumed = dict(self.store.read("devices_resumed", lambda row: (row["key"], row["value"])))
        asked = {"since": (now - EVIDENCE).isoformat(), "most": MOST_RUNS}
        return self.store.read("device_runs", lambda row: _device_run(row, resumed), **asked)

    def kept(self) -> Mapping[str, Remembered]:
        """Return the memory of each device since the host was booted, by UUID."""
        found = self.store.read("devices_remembered", _remembered)
        return {uuid: known for uuid, boot, known in found if boot == self.boot}

    def keep(self, kept: Mapping[str, Remembered]) -> None:
        """Write what is remembered of some devices, in place of earlier values."""
        with self.store.transaction() as connection:
            for uuid, each in kept.items():
                values = {
                    "boot": self.boot,
                    "baseline": each.baseline_bytes,
                    "left": sorted(each.uncleaned_jobs),
                    "returned": each.returned_at,
                }
                connection.execute(
                    SQL["set_meta"], {"key": f"{KEY_PREFIX}{uuid}", "value": json.dumps(values)}
                )

    def note(self, job_id: str, at: datetime, kind: str, text: str) -> None:
        """Write an event about a device to the events of a job."""
        self.store.note(job_id, at, kind, text)


def _device_run(row: sqlite3.Row, resumed: Mapping[str, str]) -> DeviceRun:
    began, ended = (datetime.fromisoformat(row[name]) for name in ("launched_at", "ended_at"))
    return DeviceRun(
        job=str(row["job_id"]),
        owner=row["owner"],
        devices=frozenset(
            each for each in texts(row["devices"]) if resumed.get(f"{RESUMED}{each}", "") < row["placed_at"]
        ),
        ran_s=inf if row["cause"] == ExitCause.COMPLETED else (ended - began).total_seconds(),
        failed=row["cause"] in SUSPECT_CAUSES,
    )


def _admin_mark(row: sqlite3.Row) -> tuple[str, AdminMark]:
    since = datetime.fromisoformat(row["since"])
    return row["uuid"], AdminMark(DeviceState(row["state"]), row["reason"], row["by"], since)


def _remembered(row: sqlite3.Row) -> tuple[str, str, Remembered]:
    """Return a device, the boot in which it was looked at, and what is remembered of it."""
    values = json_object(row["value"])
    known = Remembered(values["baseline"], frozenset(values["left"]), values["returned"])
    return str(row["key"]).removeprefix(KEY_PREFIX), values["boot"], known
