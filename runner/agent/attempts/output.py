"""Paths in a run directory of the files of a job that a user names."""

from pathlib import PurePosixPath
from typing import Final

from jobs.contract import JOB_DIR, RunPaths
from runner.base.errors import UsageError
from runner.base.textfile import quoted
from runner.files.field_checks import CODE_TARGET

SECRETS: Final = "secrets"


def locate_output(paths: RunPaths, written: str, *, works: bool) -> PurePosixPath:
    """Return the path below the run directory that is meant by a path of a job.

    ``/job/...`` and ``/code/...`` are what a container calls its run directory and its working directory.
    Other paths are relative to the working directory of the lineage, or to the run directory of a job that
    has none (``works``).

    Raises:
        UsageError: it is not a path in the job.
    """
    path = PurePosixPath(written)
    if ".." in path.parts:
        raise UsageError(f"{quoted(written)}: leads out of the job; write the path without ..")
    work = PurePosixPath(paths.work_dir.relative_to(paths.root))
    if not path.is_absolute():
        path = PurePosixPath(CODE_TARGET if works else JOB_DIR, path)
    if path.is_relative_to(paths_in := JOB_DIR / "home"):  # a link, which is not followed
        return _checked(PurePosixPath("homes", str(paths.lineage)) / path.relative_to(paths_in), written)
    if path.is_relative_to(JOB_DIR):
        return _checked(path.relative_to(JOB_DIR), written)
    if works and path.is_relative_to(CODE_TARGET):
        return _checked(work / path.relative_to(CODE_TARGET), written)
    places = f"{JOB_DIR} or {CODE_TARGET}" if works else f"{JOB_DIR}"
    raise UsageError(
        f"{quoted(written)}: is not a path in the job; write one below {places}, or a relative one"
    )


def _checked(path: PurePosixPath, written: str) -> PurePosixPath:
    if not path.parts:
        raise UsageError(f"{quoted(written)}: is the whole run directory; name something in it")
    if path.parts[0] == SECRETS:
        raise UsageError(f"{quoted(written)}: secrets are not copied out of a job")
    return path
