"""The records of attempts that run as plain processes.

Each attempt has a directory that only the daemon's user can read.  The executor writes ``key.json``, and
``shim.sh`` writes the rest.  The process executor has no other state, so a daemon that is started later knows
as much as the one that launched the attempt.
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from runner.adapters.host.clock import boot_id, written_at
from runner.base.durable import publish
from runner.core.ports.executor import Alive, Created, Gone, Key, Observation

PROGRAM_NOT_STARTED: Final = frozenset({1, 2, 74, 126, 127})
"""Exit codes after which the last output of the shell may say why the program did not start."""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process, distinguished from later processes with the same pid."""

    boot: str
    pid: int
    start: int  # clock ticks since boot

    @property
    def alive(self) -> bool:
        try:
            state, start = _state_and_start(Path(f"/proc/{self.pid}/stat").read_text())
        except (OSError, ValueError):
            return False
        return start == self.start and state not in "ZX" and self.boot == boot_id()


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """The record of one attempt."""

    path: Path

    def claimed(self) -> bool:
        """Return True if a shim has claimed this attempt; no other shim can claim it."""
        return (self.path / "shim").exists()

    @property
    def shim(self) -> ProcessIdentity | None:
        return _read_identity(self.path / "shim")

    @property
    def child(self) -> ProcessIdentity | None:
        return _read_identity(self.path / "child")

    @property
    def stderr(self) -> Path:
        """The output of the shim and of the shell that starts the program, without that of the program."""
        return self.path / "stderr"

    def key(self) -> Key | None:
        """Return the key of the attempt; None while the record is being created."""
        try:
            key = self._read_key()
            return Key(str(key["instance"]), str(key["job_id"]), int(str(key["attempt"])))
        except (OSError, ValueError, KeyError):
            return None

    def directory(self) -> str | None:
        """Return the directory in which the program starts; None in a record of an earlier version."""
        with suppress(OSError, ValueError):
            return str(self._read_key().get("directory") or "") or None
        return None

    def create(self, key: Key, directory: str | None = None) -> None:
        """Make the directory and write the key into it atomically."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        content = {"instance": key.instance, "job_id": key.job_id, "attempt": key.attempt, "boot": boot_id()}
        content |= {} if directory is None else {"directory": directory}
        publish(self.path / "key.json", json.dumps(content).encode())

    def write_environment(self, statements: str) -> None:
        """Write the statements that set the variables of the program; the directory is the daemon's alone."""
        publish(self.path / "environment", statements.encode(errors="surrogateescape"))

    def observation(self, key: Key) -> Observation:
        """Return the observation of the attempt in the record."""
        ended = self._ended(key)
        if ended is not None:
            return ended
        shim, child = self.shim, self.child
        if not self.claimed() or (shim is None and self._created_in_this_boot()):
            return Created(key)
        if any(process is not None and process.alive for process in (shim, child)):
            return Alive(key, None if child is None else child.pid)
        # The shim may have written the exit status after the first look.
        return self._ended(key) or Gone(key, None, error="its shim died, or the machine was restarted")

    def _ended(self, key: Key) -> Gone | None:
        path = self.path / "exit"
        try:
            code, at = int(path.read_text()), written_at(path.stat())
        except FileNotFoundError:
            return None
        except ValueError:
            return Gone(key, None, error="its exit status was lost in a power cut")
        output = self._last_output() if code in PROGRAM_NOT_STARTED else ""
        return Gone(key, code, error=output, at=at)

    def _last_output(self) -> str:
        with suppress(OSError), self.stderr.open("rb") as file:
            lines = file.read(4096).decode(errors="replace").split("\n")
            return next((" ".join(line.split())[:500] for line in reversed(lines) if line.strip()), "")
        return ""

    def _created_in_this_boot(self) -> bool:
        """Return True if the record was made since the boot: an older one was damaged by a power cut."""
        try:
            return self._read_key()["boot"] == boot_id()
        except (OSError, ValueError, KeyError):
            return False

    def _read_key(self) -> dict[str, object]:
        return dict(json.loads((self.path / "key.json").read_text()))


def _read_identity(path: Path) -> ProcessIdentity | None:
    """Return the process that a shim has recorded, if any."""
    try:
        boot, stat = path.read_text().split("\n", 1)
        return ProcessIdentity(boot, int(stat.split(" ", 1)[0]), _state_and_start(stat)[1])
    except (OSError, ValueError, IndexError):
        return None


def _state_and_start(stat: str) -> tuple[str, int]:
    """Return the state and the start time from ``/proc/PID/stat``; the name in it may have any characters."""
    fields = stat.rpartition(")")[2].split()
    return fields[0], int(fields[19])
