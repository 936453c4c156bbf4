"""The bookkeeping of attempts that are plain processes: what ``shim.sh`` writes, read back.

A directory per attempt, private to the daemon's user, is all the memory that the process
executor has.  It is written by the executor (``key.json``) and the shim (the rest), and
tells what happened also to a daemon that was started later.
"""

import json
import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from runner.adapters.host.clock import boot_id
from runner.core.ports.executor import Alive, Created, Gone, Key, Observation

PROGRAM_NEVER_BEGAN: Final = frozenset({1, 2, 74, 126, 127})
"""Exit codes after which the shell's own last words may say why."""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process that cannot be mistaken for a later one with its number."""

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
class ProcessRecords:
    """The bookkeeping directory of one attempt."""

    path: Path

    def claimed(self) -> bool:
        """Whether a shim has taken this attempt upon itself: no other ever will."""
        return (self.path / "shim").exists()

    @property
    def shim(self) -> ProcessIdentity | None:
        return _process(self.path / "shim")

    @property
    def child(self) -> ProcessIdentity | None:
        return _process(self.path / "child")

    @property
    def stderr(self) -> Path:
        """What the shim, and the shell before the program, had to say; not the program's."""
        return self.path / "stderr"

    def key(self) -> Key | None:
        """Return whose books these are; None while they are being opened."""
        try:
            said = self._read_key()
            return Key(str(said["instance"]), str(said["job_id"]), int(str(said["attempt"])))
        except (OSError, ValueError, KeyError):
            return None

    def open(self, key: Key) -> None:
        """Make the directory and write the key into it, in one piece."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        said = {"instance": key.instance, "job_id": key.job_id, "attempt": key.attempt, "boot": boot_id()}
        part = self.path / f"key.{os.getpid()}.{threading.get_ident()}"
        part.write_text(json.dumps(said))
        part.replace(self.path / "key.json")

    def observation(self, key: Key) -> Observation:
        ended = self._ended(key)
        if ended is not None:
            return ended
        shim, child = self.shim, self.child
        if not self.claimed() or (shim is None and self._opened_in_this_boot()):
            return Created(key)
        if any(process is not None and process.alive for process in (shim, child)):
            return Alive(key, None if child is None else child.pid)
        # The shim writes before it dies: look again before saying that nobody knows.
        return self._ended(key) or Gone(key, None, error="its shim died, or the machine was restarted")

    def _ended(self, key: Key) -> Gone | None:
        path = self.path / "exit"
        try:
            code, at = int(path.read_text()), path.stat().st_mtime
        except FileNotFoundError:
            return None
        except ValueError:
            return Gone(key, None, error="its exit status was lost in a power cut")
        said = self._last_words() if code in PROGRAM_NEVER_BEGAN else ""
        return Gone(key, code, error=said, at=datetime.fromtimestamp(at, UTC))

    def _last_words(self) -> str:
        with suppress(OSError), self.stderr.open("rb") as file:
            lines = file.read(4096).decode(errors="replace").split("\n")
            return next((" ".join(line.split())[:500] for line in reversed(lines) if line.strip()), "")
        return ""

    def _opened_in_this_boot(self) -> bool:
        """Tell an attempt that is just being claimed from one that a power cut made unreadable."""
        try:
            return self._read_key()["boot"] == boot_id()
        except (OSError, ValueError, KeyError):
            return False

    def _read_key(self) -> dict[str, object]:
        said = json.loads((self.path / "key.json").read_text())
        return dict(said)


def _process(path: Path) -> ProcessIdentity | None:
    """Return the process that a shim wrote down, if it got that far."""
    try:
        boot, stat = path.read_text().split("\n", 1)
        return ProcessIdentity(boot, int(stat.split(" ", 1)[0]), _state_and_start(stat)[1])
    except (OSError, ValueError, IndexError):
        return None


def _state_and_start(stat: str) -> tuple[str, int]:
    """Return the state and the start time out of ``/proc/PID/stat``, whatever the program is called."""
    fields = stat.rpartition(")")[2].split()
    return fields[0], int(fields[19])
