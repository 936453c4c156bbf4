"""The paths that a job file names. A function of the caller checks whether they exist."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from jobs.contract import STDLIB, Plan, Program
from runner.base.textfile import Problem
from runner.base.yaml import PathPart
from runner.core.ports.users import PathKind
from runner.files.datasets import NAMES
from runner.files.job.initial_weights import init_from, parse_init_from
from runner.files.job.model import JobFile
from runner.files.validation import did_you_mean

PathCheck: TypeAlias = Callable[[Path, PathKind], str | None]
"""Returns why a path of the host cannot be used, or None."""

SYNTHETIC: Final = "synthetic-"
"""The prefix of the names of data that a workload generates by itself."""


def prepared_dataset(plan: Plan) -> str | None:
    """Return the name of the prepared data set that a plan trains on, or None."""
    return plan.data if not isinstance(plan, Program) and plan.data in NAMES else None


def data_path(plan: Plan) -> str | None:
    """Return the path of a plan's data as written, or None if the data are not a path."""
    if isinstance(plan, Program) or plan.data in (STDLIB, *NAMES):
        return None
    is_synthetic = plan.data.startswith(SYNTHETIC) and "/" not in plan.data
    return None if is_synthetic else plan.data


def input_paths(plan: Plan) -> Mapping[str, str]:
    """Return the paths, as written, that a training names besides its data, by field."""
    return {} if isinstance(plan, Program) else plan.named_paths


def named_paths(job: JobFile) -> Iterator[tuple[tuple[PathPart, ...], str, PathKind]]:
    """Yield the field, the path as written and the required kind of every path in a job."""
    plan = job.workload
    if (data := data_path(plan)) is not None:
        yield ("workload", "data"), data, "either"
    for name, written in input_paths(plan).items():
        yield ("workload", name), written, "either"
    if isinstance(plan, Program) and plan.code is not None:
        yield ("workload", "code"), plan.code.path, "directory"
    if (weights := init_from(plan)) is not None and parse_init_from(weights) is None:
        yield ("workload", "init_from"), weights, "either"
    for i, mount in enumerate(job.mounts):
        yield ("mounts", i, "source"), mount.source, "either" if mount.read_only else "writable"
    for name, source in job.secrets.items():
        yield ("secrets", name), source, "secret"


def find_path_problems(job: JobFile, base: Path, check: PathCheck) -> Iterator[Problem]:
    """Yield the problems of a job's paths; ``base`` is the directory of the job file."""
    for field, written, kind in named_paths(job):
        if (fact := check(base / written, kind)) is not None:
            yield job.origin.problem(field, fact + _suggest_dataset(field, written))


def _suggest_dataset(field: tuple[PathPart, ...], written: str) -> str:
    """Return the data set whose name resembles a missing data path, as a question."""
    is_name = field == ("workload", "data") and "/" not in written
    return did_you_mean(written, (STDLIB, *NAMES)) if is_name else ""
