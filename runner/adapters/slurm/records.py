"""The records of attempts that were handed to Slurm, and what their batch scripts have written.

A record is a directory that only the daemon's user can read.  It is made before the first submission, so a
daemon that is killed at any time knows what it may have submitted.  What the batch script writes lies in the
attempt's own directory, which belongs to the job's user: it is read as what a stranger wrote.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Final

from runner.adapters.host.clock import LONGEST_TICK, from_unix
from runner.adapters.host.program_files import directory_at, open_below
from runner.adapters.launch import attempt_name
from runner.adapters.slurm.states import Claim, SlurmEvidence
from runner.base.durable import publish
from runner.core.ports.executor import Key, LaunchRequest

MOST_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Booking:
    """Record of an attempt from before it is submitted."""

    key: Key
    uid: int
    attempt_dir: Path
    place: Path  # what the batch script reads
    submitted_at: float  # Unix time


@dataclass(frozen=True, slots=True)
class SlurmRecord:
    """The record of one attempt."""

    path: Path

    @property
    def name(self) -> str:
        """The name of the attempt, which is that of its job in Slurm."""
        return self.path.name

    def create(self, request: LaunchRequest, now_s: float) -> Booking:
        """Book an attempt, or return the earlier booking."""
        known = self.booking()
        if known is not None:
            return known
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        key, place = request.key, request.run_dir / f".slurm-{request.key.attempt}"
        content = {
            "instance": key.instance,
            "job_id": key.job_id,
            "attempt": key.attempt,
            "uid": request.owner.uid,
            "attempt_dir": os.fsdecode(request.log.parent),
            "place": os.fsdecode(place),
            "submitted_at": now_s,
        }
        write_file(self.path / "booking.json", json.dumps(content))
        return Booking(key, request.owner.uid, request.log.parent, place, now_s)

    def booking(self) -> Booking | None:
        """Return the booking; None while it is being made."""
        with suppress(OSError, ValueError, KeyError):
            said = json.loads((self.path / "booking.json").read_text())
            key = Key(str(said["instance"]), str(said["job_id"]), int(said["attempt"]))
            directory, place = Path(said["attempt_dir"]), Path(said["place"])
            return Booking(key, int(said["uid"]), directory, place, float(said["submitted_at"]))
        return None

    @property
    def number(self) -> str | None:
        """The number of the job in Slurm; None: it may not have been submitted."""
        return _first_word(self.path / "number")

    def set_number(self, number: str) -> None:
        write_file(self.path / "number", f"{number}\n")

    def set_cancelled(self, signal: int) -> None:
        """Note that the job is taken out of Slurm's queue, before that is done."""
        write_file(self.path / "cancelled", f"{signal}\n")

    def set_restarted(self) -> None:
        """Note that Slurm has put the job back into its queue, before it is cancelled there."""
        write_file(self.path / "restarted", "")

    @property
    def killed(self) -> bool:
        return (self.path / "killed").exists()

    def set_killed(self) -> None:
        write_file(self.path / "killed", "")

    def evidence(self, booking: Booking) -> SlurmEvidence:
        """Return the evidence in the files of the attempt."""
        directory = booking.attempt_dir
        _revalidate(directory)
        exit_code, exited_at = read_exit(directory) or (None, None)
        cancelled = _first_word(self.path / "cancelled")
        return SlurmEvidence(
            claim=parse_claim(read_foreign(directory / ".slurm-claim")),
            exit_code=exit_code,
            exited_at=exited_at,
            cancelled=int(cancelled) if cancelled and cancelled.isdecimal() else None,
            killed=self.killed,
            restarted=(self.path / "restarted").exists(),
            said=_last_line(read_foreign(directory / ".slurm-out")),
        )

    def remove(self) -> None:
        """Remove the record; renamed first, because a part of one would look like a booking."""
        removed = self.path.with_name(f".{self.path.name}")
        shutil.rmtree(removed, ignore_errors=True)
        with suppress(FileNotFoundError):
            self.path.replace(removed)
        shutil.rmtree(removed, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class SlurmRecords:
    """The records of one daemon."""

    directory: Path
    instance: str

    def create_directory(self) -> None:
        """Make the directory, and remove what a daemon left that was killed while it removed a record."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for removed in self.directory.glob(".runner-*"):
            shutil.rmtree(removed, ignore_errors=True)

    def of(self, key: Key) -> SlurmRecord:
        return SlurmRecord(self.directory / attempt_name(key))

    def all(self) -> Iterator[tuple[Booking, SlurmRecord]]:
        """Yield the records of this store's attempts, with their bookings."""
        for path in sorted(self.directory.glob("runner-*")):
            record = SlurmRecord(path)
            booking = record.booking()
            if booking is not None and booking.key.instance == self.instance:
                yield booking, record


def read_exit(directory: Path) -> tuple[int, datetime] | None:
    """Return the exit status of an attempt, and when it was written; None: there is none that can be read."""
    found = read_foreign(directory / ".slurm-exit")
    return (int(found[0]) % 256, found[1]) if found is not None and found[0].strip().isdecimal() else None


def parse_claim(found: tuple[str, datetime] | None) -> Claim | None:
    """Return the claim that a batch script has written at its start."""
    words = [] if found is None else found[0].split()
    if len(words) < 3 or not words[0].isdecimal():
        return None
    gpus = tuple(words[4].split(",")) if len(words) > 4 else ()
    return Claim(words[0], words[2][:255], gpus[:64])


def read_foreign(path: Path) -> tuple[str, datetime] | None:
    """Return a small file that belongs to somebody else, and when it was written; no link is followed.

    The time is that of its last change of any kind: its owner can set that of the last write.
    """
    try:
        with (
            directory_at(path.parent, PurePosixPath()) as parent,
            open_below(parent, PurePosixPath(path.name)) as file,
        ):
            found = os.fstat(file)
            if found.st_uid != os.fstat(parent).st_uid:
                return None  # a hard link may name a file of anybody
            text = os.pread(file, MOST_BYTES, max(found.st_size - MOST_BYTES, 0)).decode(errors="replace")
    except OSError:
        return None
    return text, from_unix(found.st_ctime) + LONGEST_TICK


def write_file(path: Path, text: str, mode: int = 0o600) -> None:
    """Write a file of the daemon's own atomically; nobody finds it with another mode."""
    publish(path, text.encode(errors="surrogateescape"), mode)


def _revalidate(directory: Path) -> None:
    """Have a network file system ask its server whether files were added to a directory."""
    with suppress(OSError):
        os.close(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


def _first_word(path: Path) -> str | None:
    with suppress(OSError):
        return next(iter(path.read_text().split()), None)
    return None


def _last_line(found: tuple[str, datetime] | None) -> str:
    lines = [] if found is None else [line for line in found[0].splitlines() if line.strip()]
    return " ".join(lines[-1].split())[:500] if lines else ""
