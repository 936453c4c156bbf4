"""What was said about devices and outlives the daemon: drained by an operator, quarantined by the daemon."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from runner.adapters.store import SQL, SqliteStore
from runner.core.inventory import Word
from runner.core.queue.snapshot import DeviceState


@dataclass(frozen=True, slots=True)
class DeviceWords:
    """Satisfies ``runner.devices.parts.Words``; written by the thread that writes the store."""

    store: SqliteStore

    def all(self) -> Mapping[str, Word]:
        """Return what was said about each device, by UUID."""
        return {
            str(row["uuid"]): Word(
                DeviceState(row["state"]), row["reason"], row["by"], datetime.fromisoformat(row["since"])
            )
            for row in self.store.rows("device_words")
        }

    def say(self, uuid: str, word: Word) -> None:
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

    def note(self, job_id: str, at: datetime, kind: str, text: str) -> None:
        """Write a line about a device beside what happened to a job."""
        self.store.note(job_id, at, kind, text)
