"""The packages that a job asks for: its requirements are read as its submitter, and resolved into a lock."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final, TypeAlias

from jobs.contract import TRACKER_PACKAGES
from runner.agent.package_locks import PackageLocks
from runner.agent.user_texts import UserTexts
from runner.base.textfile import MAX_PROBLEMS, FileError, Problem, one_line, quoted
from runner.core.ports.images import Accelerator, BuildFailed
from runner.core.ports.packages import PackageRequest, Unresolvable
from runner.core.ports.users import User
from runner.files.job.model import JobFile
from runner.files.own_project import READ, OwnProject
from runner.files.package_lock import locked_hashes, locked_python
from runner.files.required import Collected, MissingFile, PlacedLine
from runner.files.requirements import RequirementLine, admits_python
from runner.files.revision import Revision, path_below

MAX_REASON: Final = 10_000
"""Characters of a reason that are searched for what it blames."""

ADDED: Final = frozenset({"system", "python"})
"""Fields that older requests lack: empty, they change no digest."""

KnownRevisions: TypeAlias = Callable[[str], Revision | None]
"""Returns the present revision of a job by its name, whose packages and image a change keeps."""


def none_known(_name: str) -> Revision | None:
    """Return that a job is new."""
    return None


class RequirementsError(FileError):
    """The mistakes of requirements, which may be in several files."""

    def __init__(self, errors: Iterable[FileError]) -> None:
        self.errors = tuple(errors)
        first = self.errors[0]
        super().__init__(first.path, [problem for each in self.errors for problem in each.problems])

    @property
    def lines(self) -> tuple[str, ...]:
        """A line for each problem, at most ``MAX_PROBLEMS``."""
        return tuple(dict.fromkeys(line for each in self.errors for line in each.lines))[:MAX_PROBLEMS]


@dataclass(frozen=True, slots=True)
class ResolvedPackages:
    """The packages of a job."""

    lock: str
    digest: str
    """Of what the lock resolves."""
    own: tuple[OwnProject, ...] = ()
    """The projects whose sources are in its code."""


@dataclass(frozen=True, slots=True)
class PackageResolver:
    """Resolves the packages of the jobs of one submission."""

    locks: PackageLocks
    texts: UserTexts
    who: User
    base: Path
    """The directory of the job file."""
    offered: Mapping[str, str] = field(default_factory=dict)
    """The images of the operator."""
    code: Path | None = None
    """The directory of the job's code, where projects of its own are."""

    def resolve(
        self,
        job: JobFile,
        accelerator: Accelerator,
        reference: str | None,
        known: Revision | None,
        trackers: Sequence[str] = (),
    ) -> ResolvedPackages:
        """Return the packages of a job.

        Args:
            job: The job, which asks for packages.
            accelerator: What it runs on.
            reference: The image that gets the packages; None: that of the accelerator.
            known: The present revision of the job, whose lock it keeps if it asks for the same.
            trackers: The trackers whose packages it needs as well.

        Raises:
            FileError: at the line of the requirement that cannot be had.
            PackagesPending: they are being resolved.
            Unavailable: the index or the engine does not answer.
        """
        try:
            collected = self.texts.read_requirements(self.who, self.base, job.image.requirements or ())
        except MissingFile as error:
            problem = job.origin.problem(("image", "requirements"), f"{error.path}: {error.fact}")
            raise FileError(job.origin.path, [problem]) from error
        collected.lines += [
            PlacedLine(RequirementLine(TRACKER_PACKAGES[name], 0), None, ("track",)) for name in trackers
        ]
        if collected.mistakes:
            raise _errors(job, [_at(job, each.placed, each.fact) for each in collected.mistakes])
        own = tuple(_own(job, collected, self.code))
        request = PackageRequest(
            tuple(each.line.requirement for each in collected.lines),
            tuple(each.line.requirement for each in collected.constraints),
            accelerator,
            reference,
            job.image.system or (),
            job.image.python,
            tuple(sorted(self.offered.items())) if job.image.python is not None else (),
        )
        digest = _digest(request)
        if known is not None and known.lock is not None and digest == known.lock_request:
            return ResolvedPackages(known.lock, digest, own)
        try:
            lock = self.locks.find(request, self.who)
        except Unresolvable as error:
            found = _errors(job, [_at_its_line(job, collected, str(error))])
            found.details = error.details
            raise found from error
        except BuildFailed as error:
            last = str(error).splitlines()[-1] if str(error) else "no image"
            raise FileError(job.origin.path, [job.origin.problem(("image",), one_line(last))]) from error
        _check_pythons(collected, lock)
        _check_python_of_image(job, lock)
        _check_hashes(job, collected, lock)
        return ResolvedPackages(lock, digest, own)


def _own(job: JobFile, collected: Collected, code: Path | None) -> Iterator[OwnProject]:
    """Yield the projects of a job's own, by their places in its code.

    Raises:
        FileError: one is not in the code of the job.
    """
    for each in collected.own:
        place = None if code is None else path_below(Path(each.directory), code)
        if place is not None:
            yield replace(each, directory=place)
        elif each.asked:
            where = "it has none" if code is None else one_line(str(code))
            fact = f"{one_line(each.directory)} is not in the code of the job ({where}); name one above it"
            raise FileError(job.origin.path, [job.origin.problem(("image", "requirements"), fact)])


def _check_pythons(collected: Collected, lock: str) -> None:
    """Check that the locks that a job names are made for the Python of its image.

    Raises:
        FileError: one is made for another Python.
    """
    python = locked_python(lock)
    for path, wanted in collected.pythons:
        if python is not None and not admits_python(wanted, python):
            fact = f"is a lock for Python {wanted}, and the image has {python}; make it again: runner lock"
            if path.name in READ or path.suffix == ".py":
                step = 'name another Python (image: {python: "X.Y"}), or change it'
                fact = f"wants Python {wanted} (requires-python), and the image has {python}; {step}"
            raise FileError(path, [Problem(None, "", one_line(fact))])


def _check_python_of_image(job: JobFile, lock: str) -> None:
    """Check that the image has the Python that the job asks for.

    Raises:
        FileError: it has another one.
    """
    wanted, python = job.image.python, locked_python(lock)
    if wanted is not None and python is not None and wanted != python:
        fact = f"is {wanted}, and the image has {python}; name a base of the operator's that has {wanted}"
        raise FileError(job.origin.path, [job.origin.problem(("image", "python"), fact)])


def _check_hashes(job: JobFile, collected: Collected, lock: str) -> None:
    """Check that the wheels of a lock have the hashes that the requirements name.

    Raises:
        FileError: at the line of a requirement whose wheel has another hash.
    """
    every = [each for each in (*collected.lines, *collected.constraints) if each.line.hashes]
    if not every:
        return
    found = locked_hashes(lock)
    named: dict[str | None, frozenset[str]] = {}  # by several lines, each for another Python or platform
    for each in every:
        named[each.line.name] = named.get(each.line.name, frozenset()) | each.line.hashes
    for each in every:
        digest = found.get(each.line.name or "")
        if digest is not None and digest not in named[each.line.name]:
            raise _at(job, each, f"the index has a wheel with sha256 {digest}, which is none of those here")


def _digest(request: PackageRequest) -> str:
    """Return the digest of a request."""
    known = {name: value for name, value in asdict(request).items() if name != "offered"}
    asked = {name: value for name, value in known.items() if value or name not in ADDED}
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def _errors(job: JobFile, errors: Sequence[FileError]) -> RequirementsError:
    """Return the error of all mistakes, those of other files than the job file first."""
    return RequirementsError(sorted(errors, key=lambda error: error.path == job.origin.path))


def _line_error(path: Path, line: RequirementLine, fact: str) -> FileError:
    """Return the error of one line of a file of requirements, which has no columns."""
    text = line.requirement
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    return FileError(Path(f"{path}:{line.number}"), [Problem(None, one_line(shown), one_line(fact))])


def _at_its_line(job: JobFile, collected: Collected, reason: str) -> FileError:
    """Return the error of requirements without a solution, at the line that makes them so."""
    python = "image.python: "
    if reason.startswith(python):
        fact = f"{job.image.python}: {one_line(reason.removeprefix(python))}"
        return FileError(job.origin.path, [job.origin.problem(("image", "python"), fact)])
    for number, name in enumerate(job.image.system or ()):
        if reason.startswith(f"{name}: "):
            fact = f"{quoted(name)}: {one_line(reason.removeprefix(f'{name}: '))}"
            problem = job.origin.problem(("image", "system", number), fact)
            return FileError(job.origin.path, [problem])
    placed = next(_blamed(collected, reason), None)
    if placed is None:
        return FileError(job.origin.path, [job.origin.problem(("image", "requirements"), one_line(reason))])
    return _at(job, placed, reason)


def refuse_mistakes(collected: Collected, path: Path) -> None:
    """Check that no line of a file is wrong in itself.

    Raises:
        RequirementsError: with all lines that are.
    """
    if collected.mistakes:
        raise RequirementsError(
            _line_error(each.placed.path or path, each.placed.line, each.fact) for each in collected.mistakes
        )


def find_error(collected: Collected, reason: str, path: Path) -> FileError:
    """Return the error of requirements of a file without a solution, at the line that makes them so."""
    placed = next(_blamed(collected, reason), None)
    if placed is None or placed.path is None:
        return FileError(path, [Problem(None, "", one_line(reason))])
    return _line_error(placed.path, placed.line, reason)


def _at(job: JobFile, placed: PlacedLine, fact: str) -> FileError:
    """Return the error of one requirement."""
    if placed.path is None:
        where = placed.field or ("image", "requirements", placed.line.number)
        said = f"{quoted(placed.line.requirement)}: {one_line(fact)}"
        return FileError(job.origin.path, [job.origin.problem(where, said)])
    return _line_error(placed.path, placed.line, fact)


def _blamed(collected: Collected, reason: str) -> Iterator[PlacedLine]:
    """Yield the lines that a reason names, first those that it says the user requires.

    Of several lines about one package, the one comes first whose version the reason names.
    """
    reason = reason[:MAX_REASON]
    every = [*collected.lines, *collected.constraints]
    lines = sorted(every, key=lambda each: _is_named(each.line, reason), reverse=True)
    required = [
        re.sub(r"[-_.]+", "-", name).lower()
        for name in re.findall(r"you require ([A-Za-z0-9][A-Za-z0-9._-]*)", reason)
    ]
    for name in required:
        yield from (each for each in lines if each.line.name == name)
    named = {_word(each) for each in re.findall(r"[A-Za-z0-9._-]+", reason)}
    yield from (each for each in lines if each.line.name in named)
    for each in lines:
        if each.line.text in reason:
            yield each


def _word(text: str) -> str:
    """Return a word of a reason as the name of a package; what ends a sentence is not part of it."""
    return re.sub(r"[-_.]+", "-", text.rstrip(".")).lower()


def _is_named(line: RequirementLine, reason: str) -> bool:
    """Return True if a reason has a requirement with its version, written as the resolver writes it."""
    text = "".join(line.requirement.partition(";")[0].split())
    return text in reason and (
        re.search(rf"(?<![\w-]){re.escape(text)}(?![\w,=<>~!-]|\.\w)", reason) is not None
    )
