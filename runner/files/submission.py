"""A submission: a job file, and the options of ``runner submit`` that override its fields.

A problem with a field that an option overrides is reported under the name of the option.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from runner.base.errors import UsageError
from runner.base.textfile import Problem, one_line, shown
from runner.base.yaml import PathPart
from runner.files.field_checks import check_new_name
from runner.files.job.load import Checks, LoadedFile, parse_jobs
from runner.files.job.model import JobFile
from runner.files.job.queue import QueueFields, find_repeated_dependencies

MAX_JOB_FILE_BYTES: Final = 1024**2

OPTIONS: Final[Mapping[str, str]] = {
    "priority_class": "--class",
    "after": "--after",
    "not_before": "--not-before",
    "priority": "--priority",
}
"""The options that override a field of ``queue`` or the priority of the job."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A job file with the options of its submission."""

    path: str
    text: bytes
    name: str | None = None
    shown: str | None = None  # the path as the user typed it, for messages
    token: str | None = None  # from the client: a submission that is sent twice makes one job
    instead: Mapping[str, Any] = field(
        default_factory=dict
    )  # values of options by the names of OPTIONS; None is not given
    file_only: bool = False  # the code is not looked at: a change keeps that of its job

    @property
    def options(self) -> Mapping[str, Any]:
        """The options that are given."""
        return {name: value for name, value in self.instead.items() if value is not None}

    @property
    def place(self) -> Path:
        """The path of the file; may raise UsageError."""
        path = Path(self.path)
        if not path.is_absolute():
            raise UsageError(f"path: must be absolute, not {one_line(self.path)!r}")
        return path

    def read(self, besides: Checks) -> LoadedFile:
        """Return the jobs of the file; ``besides`` checks the paths and policies that they name.

        Raises:
            FileError: the file is wrong; all its errors at once.
            UsageError: an option is wrong.
        """
        if self.name is not None:
            _checked("--name", lambda: check_new_name(str(self.name)))
        written = parse_jobs(self.text, Path(self.shown or self.place), name=self.name, besides=besides)
        jobs = tuple(self._override(job) for job in written.jobs)
        if self.name is not None and written.group is None:
            jobs = tuple(job.model_copy(update={"name": self.name}) for job in jobs)
        return replace(written, jobs=jobs)

    def _override(self, job: JobFile) -> JobFile:
        """Return a job whose fields the options have overridden."""
        changes: dict[str, object] = {}
        said = dict(self.options)
        if said and job.schedule is not None:
            option = OPTIONS[next(iter(said))]
            raise UsageError(f"{option}: goes with a job; what a schedule submits is in its file alone")
        if (priority := said.pop("priority", None)) is not None:
            changes["priority"] = _priority(priority)
        if said:
            changes["queue"] = job.queue.model_copy(update=_queue_fields(said))
        return job.model_copy(update=changes) if changes else job

    def problem(self, job: JobFile, path: tuple[PathPart, ...], fact: str) -> Problem:
        """Return a problem of a field, at its place in the file or at its option."""
        name = str(path[1]) if path[0] == "queue" else ""
        if name in self.options:
            return Problem(None, OPTIONS[name], fact)
        return job.origin.problem(path, fact)


def _priority(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value <= 100:
        raise UsageError(f"--priority: must be a whole number from 0 to 100, not {shown(value)}")
    return value


def _queue_fields(said: Mapping[str, Any]) -> Mapping[str, object]:
    """Return fields of the section ``queue``, validated like those of the file."""
    try:
        queueing = QueueFields.model_validate(said)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        fact = str(first.get("ctx", {}).get("error", first["msg"]))
        raise UsageError(f"{OPTIONS.get(str(first['loc'][0]), 'queue')}: {one_line(fact)}") from error
    for fact in find_repeated_dependencies(queueing).values():
        raise UsageError(f"--after: {fact}")
    return {name: getattr(queueing, name) for name in said}


def _checked(option: str, check: Callable[[], object]) -> None:
    try:
        check()
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from error
