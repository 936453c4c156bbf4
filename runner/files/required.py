"""The requirements of a job: those of its job file, and those of the files that it names.

They are read where their author's rights are: in the worker of a user, or in a command of theirs.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from packaging.utils import canonicalize_name

from runner.base.errors import UsageError
from runner.base.textfile import FileError, Problem, one_line
from runner.base.yaml import PathPart
from runner.files.conda import EXPORTED, describe_other
from runner.files.own_project import NAME, READ, OwnProject, ReadProject, read_project, read_script
from runner.files.requirements import (
    MAX_LINES,
    RequirementLine,
    check_specifier,
    decode,
    find_mistake,
    parse_lines,
    parse_locked,
)

MAX_FILES: Final = 20
"""Files that one file of requirements may include."""


@dataclass(frozen=True, slots=True)
class PlacedLine:
    """A requirement, and the file that it is in; None: the job file."""

    line: RequirementLine
    path: Path | None
    field: tuple[PathPart, ...] | None = None
    """The field of the job file that asks for it; None: that of its requirements."""


class MissingFile(FileError):
    """A file that cannot be read."""

    def __init__(self, path: Path | str, fact: str) -> None:
        self.fact = fact
        super().__init__(Path(path), [Problem(None, "", fact)])


@dataclass(frozen=True, slots=True)
class Mistake:
    """Error in one requirement."""

    placed: PlacedLine
    fact: str


@dataclass(slots=True)
class Collected:
    """The requirements of a job."""

    lines: list[PlacedLine] = field(default_factory=list)
    constraints: list[PlacedLine] = field(default_factory=list)
    pythons: list[tuple[Path, str]] = field(default_factory=list)  # of locks and projects, as specifiers
    own: list[OwnProject] = field(default_factory=list)  # by their directories on the host
    mistakes: list[Mistake] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Number of lines that were read."""
        return len(self.lines) + len(self.constraints) + len(self.mistakes)


@dataclass(frozen=True, slots=True)
class RequirementReader:
    """Reads requirements, and the files that they include."""

    read_file: Callable[[Path], bytes]
    """Returns the content of a file; may raise UsageError."""
    base: Path
    """The directory that relative paths begin in."""
    files: set[tuple[Path, bool]] = field(default_factory=set)
    """Those that were read, and whether they constrain."""
    projects: dict[Path, set[str]] = field(default_factory=dict)
    """The directories of projects that were read, with their extras; "" stands for no extra."""

    def read(self, asked: str | tuple[str, ...]) -> Collected:
        """Return the requirements of a file or of a list, with the mistakes of single lines.

        Raises:
            FileError: a file cannot be read.
        """
        collected = Collected()
        if isinstance(asked, str):
            self._read(self.base / asked, collected, constrains=False)
        else:
            self._collect(asked, collected)
        self._take_own(collected)
        return collected

    def _take_own(self, collected: Collected) -> None:
        """Take what is required of the user's own projects from there: an index may have others so called."""
        while found := [each for each in collected.lines if each.line.name in _by_name(collected.own)]:
            own = _by_name(collected.own)
            collected.lines = [each for each in collected.lines if each.line.name not in own]
            for placed in found:
                project = own[placed.line.name or ""]
                if placed.line.excludes(project.version):
                    fact = f"the code has {project.name} {project.version}; change one of the two"
                    collected.mistakes.append(Mistake(placed, fact))
                elif placed.line.may_apply:
                    self._add_local(placed, Path(project.directory), placed.line.extras, collected)

    def _collect(self, asked: Sequence[str], collected: Collected) -> None:
        """Add the requirements of a list; an entry such as ``-r FILE`` stands for those of the file."""
        for number, text in enumerate(asked):
            placed = PlacedLine(RequirementLine(text.strip(), number), None)
            self._add(placed, self.base, collected, constrains=False)

    def _read(self, path: Path, collected: Collected, *, constrains: bool) -> None:
        if (path, constrains) in self.files:
            return
        self.files.add((path, constrains))
        shown = self._shown(path)
        if len(self.files) > MAX_FILES:
            raise FileError(shown, [Problem(None, "", f"includes more than {MAX_FILES} files")])
        for line in self._lines(path, shown, collected):
            if collected.size >= MAX_LINES:
                raise FileError(shown, [Problem(None, "", f"has more than {MAX_LINES} requirements")])
            self._add(PlacedLine(line, shown), path.parent, collected, constrains=constrains)

    def _add(self, placed: PlacedLine, directory: Path, collected: Collected, *, constrains: bool) -> None:
        """Add one line, or what the file holds that it includes."""
        line = placed.line
        if line.include is not None:
            its_constrain, inner = line.include  # requirements in a file of constraints are none, as in pip
            if "://" in inner:
                collected.mistakes.append(
                    Mistake(placed, "includes an address; download it, and name the file")
                )
            else:
                self._include(placed, directory / inner, collected, constrains=its_constrain)
        elif line.local is not None and not constrains and not line.swallows:
            if not line.may_apply:
                return
            path, extras = line.local
            places = [self.base / path, directory / path]  # pip looks where it is started: it may be either
            place = next((each for each in places if self._is_project(each)), places[-1])
            self._add_local(placed, place, extras, collected)
        elif line.is_default:  # the operator says what stands for it
            return
        elif (fact := find_mistake(line)) is not None:
            collected.mistakes.append(Mistake(placed, fact))
        else:
            (collected.constraints if constrains else collected.lines).append(placed)

    def _include(self, placed: PlacedLine, path: Path, collected: Collected, *, constrains: bool) -> None:
        try:
            self._read(path, collected, constrains=constrains)
        except MissingFile as error:
            fact = error.fact if placed.path is None else f"{one_line(str(self._shown(path)))}: {error.fact}"
            collected.mistakes.append(Mistake(placed, fact))

    def _is_project(self, directory: Path) -> bool:
        return any(self._content(directory / name) is not None for name in READ)

    def _add_local(
        self, placed: PlacedLine, directory: Path, extras: Iterable[str], collected: Collected
    ) -> None:
        """Add a project of the user's own, or why it cannot be had."""
        try:
            self._add_project(directory, extras, collected)
        except ValueError as error:
            collected.mistakes.append(Mistake(placed, str(error)))

    def _add_project(
        self, directory: Path, extras: Iterable[str], collected: Collected, *, asked: bool = True
    ) -> None:
        """Add a project of the user's own, and what it needs; may raise ValueError."""
        directory = Path(os.path.normpath(directory))
        shown, known = self._shown(directory), self.projects.setdefault(directory, set())
        wanted = {"", *extras} - known
        if not wanted:
            return
        known |= wanted
        if len(self.projects) > MAX_FILES:
            raise ValueError(f"names more than {MAX_FILES} projects")
        try:
            found = read_project(lambda name: self._text_of_project(directory / name))
        except ValueError as error:
            raise ValueError(f"{one_line(str(shown))}: {error}" if asked else str(error)) from error
        if found.compiled and asked:
            step = "make a wheel of it, or build it in image.dockerfile"
            raise ValueError(f"{one_line(str(shown))}: has to be compiled ({found.compiled}); {step}")
        if "" in wanted:
            if asked and NAME.fullmatch(directory.name):
                found.name = found.name or directory.name  # of one that is computed
            if found.name and not found.compiled:
                collected.own.append(found.own(str(directory), asked=asked))
            self._add_limits(found, directory, collected)
        for extra in sorted(wanted):
            self._add_dependencies(found, extra, directory, collected)

    def _add_limits(self, found: ReadProject, directory: Path, collected: Collected) -> None:
        """Add which Python a project wants, and which versions it admits."""
        if found.python is not None:
            check_specifier(found.python)
            collected.pythons.append((self._shown(directory / found.python_file), found.python))
        for line, file in found.constraints:
            self._add(PlacedLine(line, self._shown(directory / file)), directory, collected, constrains=True)

    def _add_dependencies(
        self, found: ReadProject, extra: str, directory: Path, collected: Collected
    ) -> None:
        """Add what a project needs, or what an extra of it adds to that."""
        if extra and extra not in found.extras:
            there = ", ".join(sorted(found.extras)) or "none"
            shown = one_line(str(self._shown(directory)))
            raise ValueError(f"{shown}: has no extra {extra[:60]}; there are: {there}")
        for line, file in found.extras[extra] if extra else found.dependencies:
            placed = PlacedLine(line, self._shown(directory / file))
            place = found.places.get(line.name or "")
            if collected.size >= MAX_LINES:
                raise ValueError(f"has more than {MAX_LINES} requirements")
            if place is None or line.is_of_image:
                self._add(placed, directory, collected, constrains=False)
            elif (inner := self._find_place(place, line.name or "", found, directory)) is not None:
                if line.may_apply:
                    self._add_local(placed, inner, line.extras, collected)
            else:
                step = "the operator chooses where packages come from; name a version of the index"
                collected.mistakes.append(Mistake(placed, f"tool.uv.sources has a place for it; {step}"))

    def _find_place(self, place: object, name: str, found: ReadProject, directory: Path) -> Path | None:
        """Return the directory that ``[tool.uv.sources]`` says for a package, None if it is another place."""
        if not isinstance(place, Mapping):
            return None
        if isinstance(path := place.get("path"), str):
            return directory / path
        if place.get("workspace") is not True:
            return None
        names = (name, name.replace("-", "_"))
        members = [directory / each.replace("*", name) for each in found.members for name in names]
        beside = [directory.parent / name for name in names]  # where this is a member itself
        return next((each for each in (*members, *beside) if self._is_project(each)), None)

    def _content(self, path: Path) -> bytes | None:
        try:
            return self.read_file(path)
        except UsageError:  # there is none, or it is not for this user
            return None

    def _text_of_project(self, path: Path) -> str | None:
        content = self._content(path)
        try:
            return None if content is None else decode(content)
        except ValueError as error:
            raise ValueError(f"{path.name}: {error}") from error

    def _lines(self, path: Path, shown: Path, collected: Collected) -> Iterable[RequirementLine]:
        text = self._text(path, shown)
        if path.suffix in {".yml", ".yaml"} or path.name in EXPORTED:
            raise FileError(shown, [Problem(None, "", describe_other(path.name, text))])
        try:
            if path.name in READ:
                self._add_uv_lock(path.with_name("uv.lock"), collected)
                self._add_project(path.parent, (), collected, asked=False)
                return ()
            if path.suffix == ".py":
                script = read_script(text, path.name)
                self._add_uv_lock(path.with_name(f"{path.name}.lock"), collected)
                self._add_limits(script, path.parent, collected)
                self._add_dependencies(script, "", path.parent, collected)
                return ()
            if path.suffix == ".toml":
                locked = parse_locked(text)
                if locked.python is not None:
                    collected.pythons.append((shown, locked.python))
                return locked.lines
        except ValueError as error:
            fact = one_line(str(error)).removeprefix(f"{path.name}: ")
            raise FileError(shown, [Problem(None, "", fact)]) from error
        return parse_lines(text)

    def _add_uv_lock(self, path: Path, collected: Collected) -> None:
        """Add the versions of ``uv.lock``, if there is one, as constraints."""
        content, shown = self._content(path), self._shown(path)
        if content is None:
            return
        try:
            lines = parse_locked(decode(content)).lines
        except ValueError as error:
            raise FileError(shown, [Problem(None, "", one_line(str(error)))]) from error
        if collected.size + len(lines) > MAX_LINES:
            raise FileError(shown, [Problem(None, "", f"has more than {MAX_LINES} requirements")])
        collected.constraints += [PlacedLine(line, shown) for line in lines]

    def _text(self, path: Path, shown: Path) -> str:
        try:
            return decode(self.read_file(path))
        except ValueError as error:
            raise FileError(shown, [Problem(None, "", str(error))]) from error
        except UsageError as error:
            raise MissingFile(shown, str(error).removeprefix(f"{one_line(str(path))}: ")) from error

    def _shown(self, path: Path) -> Path:
        """Return a path as a user would write it: relative to the job file if it is below its directory."""
        return path.relative_to(self.base) if path.is_relative_to(self.base) else path


def _by_name(projects: Iterable[OwnProject]) -> dict[str, OwnProject]:
    return {canonicalize_name(each.name): each for each in projects}
