"""The checkpoints of a job: those of the contract, or the files that its job file names."""

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from pydantic import TypeAdapter, ValidationError

from jobs.contract import MAX_REPORT_BYTES, RunPaths
from runner.agent.ports import RunDirectory
from runner.core.job.attempt import ProgramStart
from runner.core.ports.checkpoints import ProgramFiles, SavedCheckpoints, Verification
from runner.core.ports.store import JobRow
from runner.files.job.program_files import checkpoint_mount
from runner.files.revision import Revision, parse_revision


def program_files(revision: Revision) -> ProgramFiles | None:
    """Return the files of a program that are its checkpoints, None if its job file names none."""
    checkpoint = revision.job.checkpoint
    if checkpoint.files is None:
        return None
    mount = checkpoint_mount(revision.job)
    if mount is None:
        return ProgramFiles(checkpoint.files, checkpoint.keep)
    below = str(PurePosixPath(checkpoint.files).relative_to(mount.target))
    return ProgramFiles(below, checkpoint.keep, str(revision.base / mount.source))


@dataclass(frozen=True, slots=True)
class _StartNote:
    """Note about the start of an attempt, kept beside it."""

    lineage: int
    asked: int | None  # the step that was asked for
    start: ProgramStart


_NOTES: Final = TypeAdapter(_StartNote)
_NOTE_FILE: Final = "start.json"


def keep_program_start(
    directory: RunDirectory, paths: RunPaths, asked: int | None, start: ProgramStart
) -> None:
    """Write beside an attempt what its program resumes from; may raise Unavailable."""
    note = _NOTES.dump_json(_StartNote(paths.lineage, asked, start)).decode()
    directory.keep(paths.attempt, _NOTE_FILE, note + "\n")


def read_program_start(directory: RunDirectory, paths: RunPaths) -> ProgramStart | None:
    """Return the start of an attempt's program; None if that is not known, or from nothing."""
    note = _read_note(directory, paths)
    return None if note is None else note.start


def known_program_start(directory: RunDirectory, paths: RunPaths, asked: int | None) -> ProgramStart | None:
    """Return the choice of an earlier launch of the same attempt with the same start."""
    note = _read_note(directory, paths)
    return note.start if note and (note.lineage, note.asked) == (paths.lineage, asked) else None


def _read_note(directory: RunDirectory, paths: RunPaths) -> _StartNote | None:
    file = paths.root / "attempts" / f"{paths.attempt}.{_NOTE_FILE}"
    try:
        return _NOTES.validate_json(directory.tail(file, MAX_REPORT_BYTES))
    except ValidationError:
        return None


def read_saved(
    directory: RunDirectory, paths: RunPaths, row: JobRow, how: Verification, also: int | None = None
) -> SavedCheckpoints:
    """Return the checkpoints of a lineage; see ``RunDirectory.saved``."""
    return read_saved_of(directory, paths, parse_revision(row.revision), how, also)


def read_saved_of(
    directory: RunDirectory, paths: RunPaths, revision: Revision, how: Verification, also: int | None = None
) -> SavedCheckpoints:
    """Return the checkpoints of a lineage of a revision; see ``RunDirectory.saved``."""
    wanted = program_files(revision)
    if wanted is None:
        return directory.saved(paths, how, also)
    return directory.program_saved(paths, wanted, how)
