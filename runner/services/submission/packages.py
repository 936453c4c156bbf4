"""The packages that a job asks for: its requirements are read as its submitter, and resolved into a lock."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from packaging.specifiers import SpecifierSet

from runner.base.errors import UsageError
from runner.base.textfile import FileError, Problem, one_line, quoted
from runner.core.ports.images import Accelerator, BuildFailed
from runner.core.ports.packages import PackageRequest, Unresolvable
from runner.core.ports.users import User, Users
from runner.files.job.model import JobFile
from runner.files.package_lock import locked_hashes, locked_python
from runner.files.requirements import (
    MAX_LINES,
    RequirementLine,
    parse_lines,
    parse_locked,
    parse_pyproject,
    required_python,
)
from runner.services.package_locks import PackageLocks

MAX_FILES: Final = 20
"""Files that one file of requirements may include."""


KnownLocks: TypeAlias = Callable[[str], tuple[str | None, str | None]]
"""Returns the lock that a job of some name has, behind the digest of what it resolves."""


def no_locks(_name: str) -> tuple[str | None, str | None]:
    """Return that no lock is known."""
    return None, None


@dataclass(frozen=True, slots=True)
class PlacedLine:
    """A requirement, and the file that it is in; None: the job file."""

    line: RequirementLine
    path: Path | None


@dataclass(slots=True)
class Collected:
    """The requirements of a job."""

    lines: list[PlacedLine] = field(default_factory=list)
    constraints: list[PlacedLine] = field(default_factory=list)
    files: set[Path] = field(default_factory=set)
    pythons: list[tuple[Path, str]] = field(default_factory=list)  # that locks are made for, as specifiers


@dataclass(frozen=True, slots=True)
class PackageResolver:
    """Resolves the packages of the jobs of one submission."""

    locks: PackageLocks
    users: Users
    who: User
    base: Path
    """The directory of the job file."""

    def resolve(
        self, job: JobFile, accelerator: Accelerator, reference: str | None, known: KnownLocks
    ) -> tuple[str, str]:
        """Return the lock of a job's packages, and the digest of what it resolves.

        Args:
            job: The job, which asks for packages.
            accelerator: What it runs on.
            reference: The image that gets the packages; None: that of the accelerator.
            known: The lock that a job of this name has.

        Raises:
            FileError: at the line of the requirement that cannot be had.
            PackagesPending: they are being resolved.
            Unavailable: the index or the engine does not answer.
        """
        reader = RequirementReader(partial(self.users.read_as_user, self.who), self.base)
        collected = reader.read(job.image.requirements or ())
        request = PackageRequest(
            tuple(each.line.requirement for each in collected.lines),
            tuple(each.line.requirement for each in collected.constraints),
            accelerator,
            reference,
        )
        digest, (known_digest, known_lock) = _digest(request), known(job.name)
        if known_lock is not None and digest == known_digest:
            return known_lock, digest
        try:
            lock = self.locks.find(request, self.who)
        except Unresolvable as error:
            raise _at_its_line(job, collected, str(error)) from error
        except BuildFailed as error:
            last = str(error).splitlines()[-1] if str(error) else "no image"
            raise FileError(job.origin.path, [job.origin.problem(("image",), one_line(last))]) from error
        _check_pythons(collected, lock)
        _check_python_of_image(job, lock)
        _check_hashes(job, collected, lock)
        return lock, digest


@dataclass(frozen=True, slots=True)
class RequirementReader:
    """Reads requirements, and the files that they include."""

    read_file: Callable[[Path], bytes]
    """Returns the content of a file; may raise UsageError."""
    base: Path
    """The directory that relative paths begin in."""

    def read(self, asked: str | tuple[str, ...]) -> Collected:
        """Return the requirements of a file or of a list.

        Raises:
            FileError: a file cannot be read, or says what a job may not say.
        """
        collected = Collected()
        if isinstance(asked, str):
            self._read(self.base / asked, collected, constrains=False)
        else:
            self._collect(asked, collected)
        return collected

    def _collect(self, asked: Sequence[str], collected: Collected) -> None:
        """Add the requirements of a list; an entry such as ``-r FILE`` stands for those of the file."""
        for number, text in enumerate(asked):
            line = RequirementLine(text.strip(), number)
            if line.include is None:
                collected.lines.append(PlacedLine(line, None))
            else:
                constrains, inner = line.include
                self._read(self.base / inner, collected, constrains=constrains)

    def _read(self, path: Path, collected: Collected, *, constrains: bool) -> None:
        if path in collected.files:
            return
        collected.files.add(path)
        shown = self._shown(path)
        if len(collected.files) > MAX_FILES:
            raise FileError(shown, [Problem(None, "", f"includes more than {MAX_FILES} files")])
        for line in self._lines(path, shown, collected):
            if len(collected.lines) >= MAX_LINES:
                raise FileError(shown, [Problem(None, "", f"has more than {MAX_LINES} requirements")])
            if line.include is not None:
                also_constrains, inner = line.include
                self._read(path.parent / inner, collected, constrains=constrains or also_constrains)
            elif line.is_option:
                raise _line_error(shown, line, _option_fact(line))
            else:
                (collected.constraints if constrains else collected.lines).append(PlacedLine(line, shown))

    def _lines(self, path: Path, shown: Path, collected: Collected) -> Iterable[RequirementLine]:
        text = self._text(path, shown)
        try:
            if path.name == "pyproject.toml":
                self._add_uv_lock(path.with_name("uv.lock"), collected)
                return tuple(parse_pyproject(text))
            if path.suffix == ".toml":
                if (python := required_python(text)) is not None:
                    collected.pythons.append((shown, python))
                return tuple(parse_locked(text))
        except ValueError as error:
            raise FileError(shown, [Problem(None, "", one_line(str(error)))]) from error
        return parse_lines(text)

    def _add_uv_lock(self, path: Path, collected: Collected) -> None:
        """Add the versions of ``uv.lock``, if there is one, as constraints."""
        try:
            text = self.read_file(path).decode()
        except UsageError:  # there is none, or it is not for this user
            return
        shown = self._shown(path)
        collected.constraints += [PlacedLine(line, shown) for line in parse_locked(text)]

    def _text(self, path: Path, shown: Path) -> str:
        try:
            return self.read_file(path).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise FileError(shown, [Problem(None, "", "is not UTF-8 text")]) from error
        except UsageError as error:
            fact = str(error).removeprefix(f"{one_line(str(path))}: ")
            raise FileError(shown, [Problem(None, "", fact)]) from error

    def _shown(self, path: Path) -> Path:
        """Return a path as a user would write it: relative to the job file if it is below its directory."""
        return path.relative_to(self.base) if path.is_relative_to(self.base) else path


def _check_pythons(collected: Collected, lock: str) -> None:
    """Check that the locks that a job names are made for the Python of its image.

    Raises:
        FileError: one is made for another Python.
    """
    python = locked_python(lock)
    for path, wanted in collected.pythons:
        if python is not None and not SpecifierSet(wanted).contains(python):
            fact = f"is a lock for Python {wanted}, and the image has {python}; make it anew: runner lock"
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
    if not any(each.line.hashes for each in (*collected.lines, *collected.constraints)):
        return
    found = locked_hashes(lock)
    for each in (*collected.lines, *collected.constraints):
        digest = found.get(each.line.name or "")
        if digest is not None and each.line.hashes and digest not in each.line.hashes:
            raise _at(job, each, f"the index has a wheel with sha256 {digest}, which is none of those here")


def _digest(request: PackageRequest) -> str:
    """Return the digest of a request."""
    return hashlib.sha256(json.dumps(asdict(request), sort_keys=True).encode()).hexdigest()


def _option_fact(line: RequirementLine) -> str:
    if line.text.startswith(("-e", "--editable")):
        return "a directory is not built; put its code into workload.code, or make a wheel of it"
    return "the operator chooses how packages are found (packages in the settings); remove it"


def _line_error(path: Path, line: RequirementLine, fact: str) -> FileError:
    """Return the error of one line of a file of requirements, which has no columns."""
    text = line.requirement
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    return FileError(Path(f"{path}:{line.number}"), [Problem(None, one_line(shown), one_line(fact))])


def _at_its_line(job: JobFile, collected: Collected, reason: str) -> FileError:
    """Return the error of requirements without a solution, at the line that makes them so."""
    placed = next(_blamed(collected, reason), None)
    if placed is None:
        return FileError(job.origin.path, [job.origin.problem(("image", "requirements"), one_line(reason))])
    return _at(job, placed, reason)


def locate(collected: Collected, reason: str, path: Path) -> FileError:
    """Return the error of requirements of a file without a solution, at the line that makes them so."""
    placed = next(_blamed(collected, reason), None)
    if placed is None or placed.path is None:
        return FileError(path, [Problem(None, "", one_line(reason))])
    return _line_error(placed.path, placed.line, reason)


def _at(job: JobFile, placed: PlacedLine, fact: str) -> FileError:
    """Return the error of one requirement."""
    if placed.path is None:
        where = ("image", "requirements", placed.line.number)
        said = f"{quoted(placed.line.requirement)}: {one_line(fact)}"
        return FileError(job.origin.path, [job.origin.problem(where, said)])
    return _line_error(placed.path, placed.line, fact)


def _blamed(collected: Collected, reason: str) -> Iterator[PlacedLine]:
    """Yield the lines that a reason names, first those that it says the user requires."""
    lines = [*collected.lines, *collected.constraints]
    required = [
        re.sub(r"[-_.]+", "-", name).lower()
        for name in re.findall(r"you require ([A-Za-z0-9][A-Za-z0-9._-]*)", reason)
    ]
    for name in required:
        yield from (each for each in lines if each.line.name == name)
    named = reason.lower().replace("_", "-")
    for each in lines:
        if each.line.name and re.search(rf"(?<![\w-]){re.escape(each.line.name)}(?![\w-])", named):
            yield each
    for each in lines:
        if each.line.text in reason:
            yield each
