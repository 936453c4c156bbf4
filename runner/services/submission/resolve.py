"""A job file as it was handed in, made into revisions: one, or one for each job of its matrix.

Everything that can be wrong is found here, before anything is accepted: paths and policies are
looked at as the person who submits, devices and quotas in the daemon's own picture of the queue.
"""

import grp
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from runner.base.errors import Refused, UsageError
from runner.base.textfile import FileError, Problem, one_line
from runner.control.controller import Controller
from runner.core.ports.devices import Device
from runner.core.ports.store import JobStore
from runner.core.ports.users import Owner, User, Users
from runner.files.job.conflicts import find_profile_conflicts
from runner.files.job.load import LoadedFile
from runner.files.job.model import JobFile, resolve_profile
from runner.files.policy import of_job
from runner.files.settings.model import Settings
from runner.services.submission import dependencies as predecessors
from runner.services.submission.admission import Admission, admission, refusal
from runner.services.submission.request import Submission
from runner.services.submission.revision import ArrayMembership, DataReference, Revision, find_data


@dataclass(frozen=True, slots=True)
class Resolution:
    """The revisions that a submission stands for."""

    revisions: tuple[Revision, ...]
    limits_queue: bool  # the site limits how many jobs may wait: quotas are checked again on acceptance


@dataclass(frozen=True, slots=True)
class RevisionResolver:
    """What is looked at to find out what a job file stands for."""

    daemon: Controller
    store: JobStore
    users: Users
    settings: Settings
    state_dir: Path

    def resolve(self, who: User, owner: Owner, submission: Submission) -> Resolution:
        """Return the revisions that a submission stands for; the id of a matrix is not known yet.

        Raises:
            FileError: the job file is wrong; all its errors at once.
            UsageError: what was given besides it is.
            Refused: the owner has too much already.
        """
        look, reader = partial(self.users.path_problem, who), partial(_read_policy, self.users, who)
        named = of_job.JobReferences(submission.place.parent, look, reader)
        written = submission.read(named.problems)
        snapshot = self.daemon.exclusive.read(self.daemon.snapshot)
        gate = admission(submission, self.daemon.context.capacity, snapshot, owner.name, len(written.jobs))
        reading = _Reading(self, who, owner, submission, gate, named)
        found: list[Revision] = []
        problems: list[Problem] = []
        for job, sweep in zip(written.jobs, _sweeps(written), strict=True):
            try:
                found.append(reading.revision(job, sweep))
            except FileError as error:
                if error.path != job.origin.path:  # of a file that the job file names
                    raise
                problems += error.problems
        if problems:
            raise FileError(written.jobs[0].origin.path, problems)
        if reading.refused:
            raise Refused(refusal(submission, reading.refused))
        return Resolution(tuple(found), gate.limits_queue)


def _sweeps(written: LoadedFile) -> Iterator[ArrayMembership | None]:
    """Yield for each job what it knows of its matrix; the id comes with the ids of the jobs."""
    for number, values in enumerate(written.values, start=1):
        yield (
            None
            if written.matrix is None
            else ArrayMembership(
                id="",
                values=values,
                at_a_time=written.matrix.at_a_time,
                number=number,
                count=len(written.jobs),
            )
        )


@dataclass(slots=True)
class _Reading:
    """The jobs of one submission, looked at one after the other; what they share is looked at once."""

    resolver: RevisionResolver
    who: User
    owner: Owner
    submission: Submission
    gate: Admission
    named: of_job.JobReferences
    refused: dict[str, None] = field(default_factory=dict)
    _team: str = field(init=False)

    def __post_init__(self) -> None:
        self._team = team(self.who.gid)

    def revision(self, job: JobFile, sweep: ArrayMembership | None) -> Revision:
        """Return the revision of one job.

        Raises:
            FileError: with everything that is wrong with it.
        """
        accelerator = accelerator_of(job, self.resolver.daemon.context.capacity.devices)
        data, unprepared = self._data(job)
        made = Revision(
            job=job,
            path=self.submission.path,
            accelerator=accelerator,
            uid=self.who.uid,
            gid=self.who.gid,
            groups=self.who.groups,
            user=self.who.name,
            data=data,
            policy=of_job.serialize_policy(self.named.policy(job)),
            team=self._team,
            sweep=sweep,
        )
        found = self.gate.found(made)
        self.refused.update(dict.fromkeys(found.refused))
        after, missing = predecessors.resolved(self.submission, job, self.owner.name, self.resolver.store)
        problems = [*unprepared, *found.problems, *missing]
        problems += (*self._unoffered(job), *self._clashes(job, accelerator))
        if problems:
            raise FileError(job.origin.path, problems)
        return made.model_copy(update={"after": after, "settings": resolve_profile(job, accelerator)})

    def _data(self, job: JobFile) -> tuple[DataReference | None, tuple[Problem, ...]]:
        """Return where the data of a job lie, and what stands against it, told with the rest."""
        try:
            return find_data(job, self.named.base, self.resolver.state_dir, self.named.check), ()
        except FileError as error:
            return None, error.problems

    @staticmethod
    def _clashes(job: JobFile, accelerator: Literal["cuda", "rocm", "cpu"]) -> Iterable[Problem]:
        """Return what is wrong on the accelerator chosen from several; an only one is looked at before."""
        chosen = job.accelerator == "auto" and job.resources.gpus
        return find_profile_conflicts(job, accelerator) if chosen else ()

    def _unoffered(self, job: JobFile) -> Iterator[Problem]:
        if job.image.name not in {"auto", *self.resolver.settings.allowed_images}:
            fact = f"{job.image.name!r} is not offered here; ask the operator (allowed_images)"
            yield job.origin.problem(("image", "name"), fact)


def accelerator_of(job: JobFile, devices: Sequence[Device]) -> Literal["cuda", "rocm", "cpu"]:
    """Return on what a job runs: on GPUs of the models that it asks for, where there are any."""
    if job.accelerator != "auto":
        return job.accelerator
    if not job.resources.gpus:
        return "cpu"
    models = [model.casefold() for model in job.devices.model]
    like = [device.vendor for device in devices if any(model in device.name.casefold() for model in models)]
    vendors = like or [device.vendor for device in devices]
    return "cuda" if "nvidia" in vendors else "rocm"


def team(gid: int) -> str:
    """Return a group by name; one that has none is a number."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _read_policy(users: Users, who: User, path: Path) -> bytes:
    """Return the text of a policy file, read as the person who submits.

    Raises:
        FileError: it cannot be read.
    """
    try:
        return users.read_as_user(who, path)
    except UsageError as error:
        raise FileError(
            path, [Problem(None, "", str(error).removeprefix(f"{one_line(str(path))}: "))]
        ) from error
