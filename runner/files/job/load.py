"""Parses job files: all problems of a file are reported at once, each with its line and column."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from jobs import contract
from runner.base import yaml
from runner.base.textfile import FileError, Problem
from runner.files.field_checks import make_job_name
from runner.files.job.conflicts import find_conflicts, find_unavoidable_profile_conflicts
from runner.files.job.matrix import (
    Combination,
    Variant,
    VariantProblems,
    expand_matrix,
    find_matrix_problems,
    parse_matrix,
)
from runner.files.job.model import JobFile, JobOrigin
from runner.files.job.queue import Matrix
from runner.files.job.shorthand import find_long_texts, find_numeric_name, find_secrets
from runner.files.job.sweep import Sweep, expand_sweep, find_sweep_problems, parse_sweep
from runner.files.profiles.load import find_unknown_profile
from runner.files.validation import parse_mapping, validate_model

Checks: TypeAlias = Callable[[JobFile], Iterable[Problem]] | None  # further checks, of paths and policies


@dataclass(frozen=True, slots=True)
class LoadedFile:
    """The jobs of one file: one, or one for each combination of its matrix."""

    jobs: tuple[JobFile, ...]
    group: Matrix | Sweep | None = None
    """Matrix or sweep that makes them many."""
    values: tuple[Combination, ...] = ({},)  # of the group, job by job


def parse_job(text: bytes, path: Path) -> JobFile:
    """Return the job in a YAML text; of a matrix, the first job with the matrix in it.

    ``path`` is used in messages and for the default name.

    Raises:
        FileError: with every problem at once.
    """
    written = parse_jobs(text, path)
    matrix = written.group if isinstance(written.group, Matrix) else None
    return written.jobs[0].model_copy(update={"matrix": matrix})


def parse_jobs(text: bytes, path: Path, name: str | None = None, besides: Checks = None) -> LoadedFile:
    """Return all jobs in a YAML text; ``name`` replaces the name in the file.

    ``besides`` yields further problems of a job whose fields are all valid.

    Raises:
        FileError: with every problem, each at its position; problems of varied values are in the matrix.
    """
    tree, problems = parse_mapping(text, path)
    matrix, sweep = parse_matrix(tree), parse_sweep(tree)
    problems += (*find_long_texts(tree), *(() if name else find_numeric_name(tree)))
    problems += find_matrix_problems(tree, matrix) if matrix else ()
    problems += find_sweep_problems(tree, sweep) if sweep else ()
    variants: tuple[Variant, ...] = (Variant(tree, {}),)
    if matrix:
        variants = expand_matrix(tree, matrix, name or _name(tree, path), {p.field for p in problems})
    elif sweep and not problems:
        variants = expand_sweep(tree, sweep, name or _name(tree, path))
    jobs: list[JobFile] = []
    found = VariantProblems(tree)
    for variant in variants:
        job, those = _read(variant, path)
        found.add(variant, (*those, *(besides(job) if job and besides else ())))
        jobs += [job] if job else []
        if found.are_enough:
            break
    if problems := [*problems, *found.problems()]:
        raise FileError(path, problems)
    return LoadedFile(tuple(jobs), matrix or sweep, tuple(variant.values for variant in variants))


def has_schedule(text: bytes) -> bool:
    """Return True if a YAML text has a schedule, valid or not; the rest of it is not checked."""
    tree, _ = yaml.compose(text)
    node = tree.entries.get("schedule") if isinstance(tree, yaml.MappingNode) else None
    return node is not None and not (isinstance(node, yaml.ScalarNode) and node.value is None)


def _name(tree: yaml.MappingNode, path: Path) -> str:
    written = tree.entries.get("name")
    return written.text if isinstance(written, yaml.ScalarNode) else _default_name(path)


def _default_name(path: Path) -> str:
    """Return the name of a job that has none; ``Path.stem`` of ``..yaml`` is another on Python 3.14."""
    return make_job_name(path.name.rpartition(".")[0] or path.name)


def _read(variant: Variant, path: Path) -> tuple[JobFile | None, list[Problem]]:
    """Return the job in a tree, or None, and every problem."""
    tree = variant.tree
    unknown = find_unknown_profile(tree, contract.profiles_dir())
    written = {"name": _default_name(path), **as_written(tree)}
    if variant.values:  # a job of a matrix has no matrix itself
        written.pop("matrix", None)
    job, problems = validate_model(JobFile, written, tree)
    if job is not None:
        problems += find_conflicts(job.read_from(JobOrigin(path, tree)))
        problems += () if unknown else find_unavoidable_profile_conflicts(job)
    return job, [*unknown, *find_secrets(tree), *problems]


def as_written(tree: yaml.MappingNode) -> dict[str, yaml.Plain]:
    """Return the file as values; in text fields, numbers stay as typed: ``1.10`` stays ``1.10``."""
    values = {key: yaml.to_plain(node) for key, node in tree.entries.items()}
    for section in ("environment", "labels"):
        node = tree.entries.get(section)
        if isinstance(node, yaml.MappingNode):
            values[section] = {key: _typed(value) for key, value in node.entries.items()}
    if (umask := tree.entries.get("umask")) is not None:
        values["umask"] = _typed(umask)  # 022 is a number in YAML
    return values


def _typed(node: yaml.Node) -> yaml.Plain:
    is_number = isinstance(node, yaml.ScalarNode) and type(node.value) in (int, float)
    return node.text if isinstance(node, yaml.ScalarNode) and is_number else yaml.to_plain(node)
