"""The Dockerfile of a job: it is in the code that is kept, and built when its image is prepared."""

from runner.base.textfile import FileError, one_line
from runner.core.ports.code import CodeSnapshots
from runner.files.revision import Revision


def check_dockerfile_is_kept(code: CodeSnapshots | None, revision: Revision) -> None:
    """Check that the snapshot of a job's code has its Dockerfile.

    Raises:
        FileError: it was left out.
    """
    path, kept = revision.dockerfile, revision.code
    if path is None or kept is None or code is None:
        return
    if path not in (code.entries(revision.uid, kept.snapshot) or {}):
        fact = f"{one_line(path)} is left out of the code that is kept, by .gitignore or .runnerignore"
        origin = revision.job.origin
        raise FileError(origin.path, [origin.problem(("image", "dockerfile"), fact)])
