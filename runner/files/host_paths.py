"""Paths of this host in a command, which a container sees elsewhere or nowhere."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

from jobs.contract import Program
from runner.base.textfile import one_line
from runner.files.field_checks import suggest_mount
from runner.files.job.program_files import MOUNTS
from runner.files.revision import Revision

_ABSOLUTE: Final = re.compile(r"(?<![\w./:~-])/[\w.+@%~-][^\s'\"`,;|&<>()$*?\[\]{}:=]{0,1000}")
_OF_USERS: Final = frozenset(
    (
        "home",
        "mnt",
        "scratch",
        "srv",
        "media",
        "nfs",
        "net",
        "lustre",
        "gpfs",
        "export",
        "datasets",
        "projects",
    )
)
"""Directories of a host in which users have their files; no image has any."""

MOST_TOLD: Final = 3


def find_host_paths(revision: Revision) -> Iterator[str]:
    """Yield a warning for each path of this host in a command that runs in a container."""
    plan, told = revision.job.workload, set[str]()
    for number, word in enumerate(plan.command if isinstance(plan, Program) else ()):
        for path in _ABSOLUTE.findall(word):
            if path not in told and len(told) < MOST_TOLD and (why := explain_host_path(revision, path)):
                told.add(path)
                yield f"workload.command[{number}]: {why}"


def explain_host_path(revision: Revision, written: str) -> str:
    """Return the way by which a container has what a path of this host names; empty: it is no such path."""
    path, mounts, code = PurePosixPath(written), [*revision.resolved_mounts()], revision.code_directory()
    if any(path.is_relative_to(mount.target) for mount in mounts):
        return ""
    fact = f"{one_line(written)} is a path of this host"
    for mount in mounts:
        if path.is_relative_to(mount.source):
            return f"{fact}; the job has it at {one_line(str(mount.target / path.relative_to(mount.source)))}"
    if code is not None and code != code.parent and path.is_relative_to(code):
        return f"{fact}; the job begins in its code: write {one_line(f'./{path.relative_to(code)}')}"
    if len(path.parts) > 2 and path.parts[1] in _OF_USERS:
        source = path.parent if path.suffix else path
        return f"{fact}, of which a job sees its mounts alone: {suggest_mount(source)}"
    return ""


def explain_missing_path(revision: Revision, path: str) -> str:
    """Return the reason why a container does not have an absolute path; empty if it is not known."""
    there = (PurePosixPath(path).is_relative_to(mount.target) for mount in revision.resolved_mounts())
    if path.startswith(MOUNTS) and not any(there):
        target = "/".join(path.split("/")[:3])
        return f"nothing is mounted at {one_line(target)}: --mount SOURCE:{one_line(target)}"
    return explain_host_path(revision, path)
