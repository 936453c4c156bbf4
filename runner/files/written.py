"""The jobs of a file as its author's worker has read them: values that were checked, without the text.

The worker reads the text, and the policies that it names.  The daemon gets the jobs, and asks for the place
of a value if it has something to say about it.  The jobs of a matrix share what is equal.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

from pydantic import Field

from runner.base import yaml
from runner.base.errors import Refused
from runner.base.textfile import FileError, Position, Problem, one_line
from runner.files.job.matrix import Combination, expand_matrix, parse_matrix
from runner.files.job.model import JobFile, JobOrigin
from runner.files.job.paths import PathCheck
from runner.files.job.queue import Matrix
from runner.files.job.sweep import expand_sweep, parse_sweep
from runner.files.policy.job_policy import JobReferences, serialize_policy
from runner.files.submission import Submission

MAX_JOBS: Final = 1000
MAX_CHARACTERS: Final = 32 * 1024**2
"""Of all jobs of one file as JSON, without what they share."""

FindPlace: TypeAlias = Callable[[int, tuple[yaml.PathPart, ...]], Position | None]
"""Returns where a value stands, by the number of its job in the file, from 0."""

Found: TypeAlias = tuple[str, tuple[tuple[tuple[int, int] | None, str, str], ...]]


class WrittenWrongly(FileError):
    """The problems of a file, made of values that an answer carries."""

    def __init__(self, path: str, found: Any) -> None:  # noqa: ANN401  (JSON)
        super().__init__(
            Path(path),
            [
                Problem(None if at is None else Position(int(at[0]), int(at[1])), str(name), str(fact))
                for at, name, fact in found
            ],
        )


def values_of(error: FileError) -> Found:
    """Return the values of a ``WrittenWrongly``; of very many problems the first."""
    found = tuple((each.at and tuple(each.at), each.field, each.fact) for each in error.problems[:MAX_JOBS])
    return str(error.path), found  # type: ignore[return-value]  # a position is two numbers


@dataclass(frozen=True, slots=True)
class WrittenPolicy:
    """The policy that a job names, as it is stored with it, or what is wrong with it."""

    text: str = ""
    wrong: Found | None = None


@dataclass(frozen=True, slots=True)
class WrittenJobs:
    """The jobs of one file."""

    first: JobFile
    others: Annotated[tuple[Mapping[str, Any], ...], Field(max_length=MAX_JOBS)] = ()
    """The fields of each other job that are not those of the first."""
    values: Annotated[tuple[Combination, ...], Field(max_length=MAX_JOBS)] = ({},)
    """Of the matrix, job by job."""
    at_a_time: int | None = None
    max_failures: int | None = None
    is_matrix: bool = False
    policies: Mapping[str, WrittenPolicy] = field(default_factory=dict)
    """By the name or path that jobs give."""

    def jobs(self, path: Path, find: FindPlace) -> Iterator[JobFile]:
        """Yield the jobs; their problems are told at the places in the file that ``find`` returns."""
        shared = self.first.model_dump(mode="json") if self.others else {}
        yield self.first.read_from(JobOrigin(path, find=partial(find, 0)))
        for number, changes in enumerate(self.others, start=1):
            job = JobFile.model_validate_json(json.dumps({**shared, **changes}))
            yield job.read_from(JobOrigin(path, find=partial(find, number)))

    def policy(self, job: JobFile) -> str:
        """Return the policy of a job as it is stored; may raise FileError."""
        found = self.policies[job.policy]
        if found.wrong is not None:
            raise WrittenWrongly(*found.wrong)
        return found.text


def read_jobs(submission: Submission, check: PathCheck, reader: Callable[[Path], bytes]) -> WrittenJobs:
    """Return the jobs of a submission; ``check`` and ``reader`` look at what they name.

    Raises:
        FileError: the file is wrong; all its errors at once.
        UsageError: an option is wrong.
        Refused: its jobs are too large together.
    """
    named = JobReferences(submission.place.parent, check, reader)
    written = submission.read(named.problems)
    first, *others = written.jobs
    shared = first.model_dump(mode="json")
    left, changed = MAX_CHARACTERS - len(json.dumps(shared)), []
    for job in others:
        values = job.model_dump(mode="json")
        changed.append({name: value for name, value in values.items() if value != shared[name]})
        left -= len(json.dumps(changed[-1]))
        if left < 0:
            fact = f"its jobs ({len(written.jobs)}) are too large together"
            raise Refused(f"{one_line(submission.shown or submission.path)}: {fact}; make its matrix smaller")
    return WrittenJobs(
        first,
        tuple(changed),
        written.values,
        None if written.group is None else written.group.at_a_time,
        written.group.max_failures if isinstance(written.group, Matrix) else None,
        written.group is not None,
        {job.policy: _policy(named, job) for job in written.jobs},
    )


def _policy(named: JobReferences, job: JobFile) -> WrittenPolicy:
    try:
        return WrittenPolicy(serialize_policy(named.policy(job)))
    except FileError as error:
        return WrittenPolicy(wrong=values_of(error))


def find_place(text: bytes, number: int, path: tuple[yaml.PathPart, ...]) -> Position | None:
    """Return the position of a value of a job in the file; ``number`` counts the jobs of a matrix, from 0."""
    trees = _trees(text)
    return yaml.find_position(trees[min(number, len(trees) - 1)], path) if trees else None


@lru_cache(maxsize=1)  # a file with problems has many, and they are asked for one after the other
def _trees(text: bytes) -> tuple[yaml.MappingNode, ...]:
    """Return the trees of the jobs in a file, none if it is not a job file."""
    tree, _ = yaml.compose(text)
    if not isinstance(tree, yaml.MappingNode):
        return ()
    if (matrix := parse_matrix(tree)) is not None:
        return tuple(each.tree for each in expand_matrix(tree, matrix, ""))
    sweep = parse_sweep(tree)
    return (tree,) if sweep is None else tuple(each.tree for each in expand_sweep(tree, sweep, ""))
