"""Links in mounted data that lead to nothing in the job, with the mount that would help."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from runner.base.textfile import one_line
from runner.files.field_checks import check_mount_target, suggest_mount
from runner.files.job.model import JobFile
from runner.files.left_out import NOT_FOR_JOBS


def describe_links(
    job: JobFile, base: Path, find: Callable[[Path], tuple[tuple[str, str], ...]]
) -> Iterator[str]:
    """Yield a line for each mount of a job that has such links.

    Args:
        job: The job.
        base: The directory of its file.
        find: Returns the links that lead out of a directory, with what they say.
    """
    targets = [PurePosixPath(mount.target) for mount in job.mounts]
    for number, mount in enumerate(job.mounts):
        source, at = base / mount.source, PurePosixPath(mount.target)
        lost = []
        for inner, said in find(source):
            seen = PurePosixPath(os.path.normpath(at / PurePosixPath(inner).parent / said))
            if not any(seen.is_relative_to(target) for target in targets):
                lost.append((inner, said, seen))
        if lost:
            inner, said, seen = lost[0]
            there = Path(os.path.normpath(source / PurePosixPath(inner).parent / said))
            more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
            fact = f"mounts[{number}].source: {inner} is a link to {said}{more}, which the job does not have"
            yield one_line(f"{fact}; {_way(there, seen)}")


def _way(there: Path, seen: PurePosixPath) -> str:
    """Return the mount with which a link leads to something, or another place for what it leads to."""
    try:
        option, named = suggest_mount(PurePosixPath(there), PurePosixPath(check_mount_target(str(seen)))), ""
    except ValueError:
        option, named = suggest_mount(PurePosixPath(there)), ", and name that path"
    return NOT_FOR_JOBS if option is None else f"mount that, too: {option}{named}"
