"""Whether the paths of a job file exist and can be read.

Asked as the job's owner and never as root, whose eyes see more: ``problem_with`` looks at
one path as whoever calls it, and holds no opinion about who that is.
"""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

from jobs.contract import STDLIB, Plan, Program
from runner.base.textfile import Problem, one_line
from runner.base.yaml import PathPart
from runner.core.ports.users import PathKind
from runner.files.datasets import NAMES
from runner.files.job.model import JobFile
from runner.files.validation import did_you_mean

Look: TypeAlias = Callable[[Path, PathKind], str | None]

SYSTEM: Final = tuple(
    Path(root) for root in ("/proc", "/sys", "/dev", "/boot", "/etc", "/run", "/root", "/var/lib")
)
"""What is never shown to a job, wherever a link points from."""

MAX_SECRET_BYTES: Final = 1024**2
"""A secret is copied for each job; what is larger than this is data, and data are mounted."""

SYNTHETIC: Final = "synthetic-"
"""Begins the name of data that a workload makes up, and says so."""


def prepared_set(plan: Plan) -> str | None:
    """Return the name of the prepared data set that a plan learns from, None when it is no such set."""
    return plan.data if not isinstance(plan, Program) and plan.data in NAMES else None


def data_path(plan: Plan) -> str | None:
    """Return the path of a plan's data as it was written, None when they come from elsewhere."""
    if isinstance(plan, Program) or plan.data in (STDLIB, *NAMES):
        return None
    made_up = plan.data.startswith(SYNTHETIC) and "/" not in plan.data
    return None if made_up else plan.data


def paths(job: JobFile) -> Iterator[tuple[tuple[PathPart, ...], str, PathKind]]:
    """Yield field, path as written and what it must be, for every path of a job."""
    plan = job.workload
    if (data := data_path(plan)) is not None:
        yield ("workload", "data"), data, "directory" if plan.kind == "causal_lm" else "either"
    if isinstance(plan, Program) and plan.code is not None:
        yield ("workload", "code"), plan.code, "directory"
    for i, mount in enumerate(job.mounts):
        yield ("mounts", i, "source"), mount.source, "either" if mount.read_only else "writable"
    for name, source in job.secrets.items():
        yield ("secrets", name), source, "secret"


def unusable(job: JobFile, base: Path, look: Look) -> Iterator[Problem]:
    """Yield what is wrong with the paths of a job; ``base`` is the directory of the job file.

    ``look`` answers for one path, as ``problem_with`` does for the current user.
    """
    for field, written, kind in paths(job):
        if (fact := look(base / written, kind)) is not None:
            yield job.origin.problem(field, fact + _meant(field, written))


def _meant(field: tuple[PathPart, ...], written: str) -> str:
    """Return the guess that a data path was to be the name of a data set."""
    is_name = field == ("workload", "data") and "/" not in written
    return did_you_mean(written, (STDLIB, *NAMES)) if is_name else ""


def problem_with(path: Path, kind: PathKind) -> str | None:
    """Return what is wrong with one path on the host for the current user, None if nothing is."""
    shown = one_line(str(path))
    try:
        real = path.resolve(strict=True)
        found = real.stat()
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, before Python 3.13
        return f"{shown}: {_words(error)}"
    return (
        _of_the_system(shown, real)
        or _wrong_kind(shown, found.st_mode, kind)
        or _no_access(shown, real, found.st_mode, kind)
        or _too_large(shown, found.st_size, kind)
    )


def of_the_system(path: Path, real: Path) -> str | None:
    """Return what is wrong with a path that leads to ``real``, if that belongs to the system."""
    return _of_the_system(one_line(str(path)), real)


def _of_the_system(shown: str, real: Path) -> str | None:
    if not any(real.is_relative_to(root) or root.is_relative_to(real) for root in SYSTEM):
        return None
    leads = "" if str(real) == shown else f"leads to {one_line(str(real))}, which "
    return f"{shown}: {leads}belongs to the system and is never shown to a job"


def _wrong_kind(shown: str, mode: int, kind: PathKind) -> str | None:
    is_directory, is_file = stat.S_ISDIR(mode), stat.S_ISREG(mode)
    if kind == "directory" and not is_directory:
        return f"{shown}: is not a directory"
    if kind in {"file", "secret"} and not is_file:
        return f"{shown}: is not a file"
    if not (is_directory or is_file):
        return f"{shown}: is neither a file nor a directory"
    return None


def _no_access(shown: str, real: Path, mode: int, kind: PathKind) -> str | None:
    wanted = os.R_OK | (os.X_OK if stat.S_ISDIR(mode) else 0)
    if not os.access(real, wanted, effective_ids=True):
        return f"{shown}: you may not read it"
    if kind == "writable" and not os.access(real, os.W_OK, effective_ids=True):
        return f"{shown}: you may not write to it; add read_only: true"
    return None


def _too_large(shown: str, size: int, kind: PathKind) -> str | None:
    if kind != "secret" or size <= MAX_SECRET_BYTES:
        return None
    return (
        f"{shown}: is larger than {MAX_SECRET_BYTES} bytes, the most for a secret; mounts show larger files"
    )


def _words(error: OSError | RuntimeError) -> str:
    match error:
        case FileNotFoundError():
            return "does not exist"
        case PermissionError():
            return "you may not look there"
        case OSError(errno=int(number)):
            return os.strerror(number).lower()
        case _:
            return "links that go round in circles"
