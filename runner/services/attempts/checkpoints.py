"""The checkpoints of a job: those of the contract, or the files that its job file names."""

from jobs.contract import RunPaths
from runner.core.ports.attempts import ProgramFiles, SavedCheckpoints, Verification
from runner.core.ports.store import JobRow
from runner.files.job.model import JobFile
from runner.services.ports import RunDirectory
from runner.services.submission.revision import parse_revision


def program_files(job: JobFile) -> ProgramFiles | None:
    """Return which files of a program are its checkpoints, None if its job file names none."""
    pattern = job.checkpoint.files
    return None if pattern is None else ProgramFiles(pattern, job.checkpoint.keep)


def read_saved(
    directory: RunDirectory, paths: RunPaths, row: JobRow, how: Verification, also: int | None = None
) -> SavedCheckpoints:
    """Return the checkpoints of a lineage; see ``RunDirectory.saved``."""
    return read_saved_of(directory, paths, parse_revision(row.revision).job, how, also)


def read_saved_of(
    directory: RunDirectory, paths: RunPaths, job: JobFile, how: Verification, also: int | None = None
) -> SavedCheckpoints:
    """Return the checkpoints of a lineage of a job file; see ``RunDirectory.saved``."""
    wanted = program_files(job)
    if wanted is None:
        return directory.saved(paths, how, also)
    return directory.program_saved(paths, wanted, how)
