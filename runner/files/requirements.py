"""Requirements as ``requirements.txt`` has them: logical lines with their places.

``uv`` parses the requirements themselves.  This module finds the lines, so that a problem can be told at its
line, and the options, which are not for a job to choose.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

MAX_LINES: Final = 10_000

MAX_REQUIREMENT: Final = 4096
"""Characters of one requirement without its hashes; what parses a longer one might take long."""

_NAME: Final = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)")
_INCLUDE: Final = re.compile(r"(-r|--requirement|-c|--constraint)[\s=]")
_PLACE: Final = re.compile(
    r"(git|hg|svn|bzr)\+|[a-z]+://|file:|\.{0,2}/|~/|\S+\.(whl|zip|tar\.gz)$", re.IGNORECASE
)
_HASH: Final = re.compile(r"(?<=\s)--hash[= ]sha256:([0-9a-f]{64})")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_LOCKED_NAME: Final = re.compile(r'name = "([^"]*)"')
_QUOTED: Final = re.compile(r'"([^"\\]*)"|\'([^\']*)\'')


@dataclass(frozen=True, slots=True)
class RequirementLine:
    """One requirement, or one option, with its place."""

    text: str
    number: int  # of its first line, from 1

    @property
    def name(self) -> str | None:
        """The normalized name of the package; None for an option or an address."""
        found = _NAME.match(self.text)
        return re.sub(r"[-_.]+", "-", found[1]).lower() if found else None

    @property
    def hashes(self) -> frozenset[str]:
        """The sha256s that its wheel may have; empty: any."""
        return frozenset(_HASH.findall(self.text))

    @property
    def requirement(self) -> str:
        """The text without its hashes."""
        return _HASH.sub("", self.text).strip()

    @property
    def is_option(self) -> bool:
        return self.text.startswith("-")

    @property
    def include(self) -> tuple[bool, str] | None:
        """Return (it includes constraints, the included path), or None if the line includes nothing."""
        found = _INCLUDE.match(self.text)
        path = "" if found is None else self.text[found.end() :].strip()
        return (found[1] in {"-c", "--constraint"}, path) if found is not None and path else None


def parse_lines(text: str) -> Iterator[RequirementLine]:
    """Yield the logical lines of a file, without comments and empty lines."""
    parts: list[str] = []
    first = 0
    for number, line in enumerate(text.splitlines(), start=1):
        first = first or number
        goes_on = line.endswith("\\")
        parts.append(line[:-1] if goes_on else line)
        if goes_on:
            continue
        if stripped := _without_comment("".join(parts)).strip():
            yield RequirementLine(stripped, first)
        parts, first = [], 0
    if stripped := _without_comment("".join(parts)).strip():
        yield RequirementLine(stripped, first)


def _without_comment(line: str) -> str:
    """Return a line up to the first ``#`` that begins it, or that follows a blank."""
    start = line.find("#")
    while start > 0 and not line[start - 1].isspace():
        start = line.find("#", start + 1)
    return line if start < 0 else line[:start]


def find_mistake(line: RequirementLine) -> str | None:
    """Return what is wrong with a line whatever the index has, None if nothing is."""
    if line.is_option:
        return _option_mistake(line)
    text = line.requirement
    if len(text) > MAX_REQUIREMENT:
        return f"is longer than {MAX_REQUIREMENT} characters"
    if _PLACE.match(text):
        return _place_mistake(text)
    try:
        wanted = Requirement(text)
    except RecursionError:
        return "is not a requirement such as tqdm>=4: has too many brackets"
    except InvalidRequirement as error:
        reason = str(error).partition("\n")[0].rstrip(".:")
        return f"is not a requirement such as tqdm>=4: {reason[:1].lower()}{reason[1:]}"
    return None if wanted.url is None else _place_mistake(wanted.url)


def _option_mistake(line: RequirementLine) -> str:
    if line.text.startswith(("-e", "--editable")):
        return "a directory is not built; put its code into workload.code, or make a wheel of it"
    return "the operator chooses how packages are found (packages in the settings); remove it"


def _place_mistake(text: str) -> str:
    """Return why a package is not taken from an address or a path."""
    what = (
        "a repository" if text.lower().startswith(("git+", "hg+", "svn+", "bzr+")) else "an address or path"
    )
    step = "name a version of the index, or put the code into workload.code"
    return f"packages come from the operator's indexes, none is built from {what}; {step}"


def parse_pyproject(text: str) -> Iterator[RequirementLine]:
    """Yield the dependencies of a ``pyproject.toml``, each at the first line that has its text.

    Raises:
        ValueError: it is not TOML, or has no list of dependencies.
    """
    project = _load(text).get("project")
    wanted = project.get("dependencies", []) if isinstance(project, dict) else None
    if not isinstance(wanted, list) or not all(isinstance(each, str) for each in wanted):
        raise ValueError("has no list project.dependencies")
    places = _places(text, _QUOTED)
    for each in wanted:
        yield RequirementLine(each, places.get(each, 1))


@dataclass(frozen=True, slots=True)
class LockedPackages:
    """Contents of a ``pylock.toml`` or ``uv.lock``."""

    lines: tuple[RequirementLine, ...]
    """The packages in their versions, with the hashes of wheels."""
    python: str | None
    """Which Python it is for, as a specifier; None if it does not say."""


def parse_locked(text: str) -> LockedPackages:
    """Return the packages of a ``pylock.toml`` or ``uv.lock``.

    Raises:
        ValueError: it is not TOML, or not a lock.
    """
    found = _load(text)
    packages, python = found.get("packages", found.get("package")), found.get("requires-python")
    wanted = str(SpecifierSet(python)) if isinstance(python, str) else None
    if not isinstance(packages, list):
        raise ValueError("is not a lock: it has no packages")  # noqa: TRY004  (of the text)
    return LockedPackages(tuple(_locked_lines(packages, _places(text, _LOCKED_NAME))), wanted)


def _locked_lines(packages: list[Any], places: Mapping[str, int]) -> Iterator[RequirementLine]:
    for each in packages:
        if not isinstance(each, dict) or not isinstance(each.get("name"), str):
            raise ValueError("is not a lock: a package has no name")  # noqa: TRY004  (likewise)
        if isinstance(version := each.get("version"), str) and not _is_local(each):
            hashes = "".join(f" --hash=sha256:{digest}" for digest in _hashes(each))
            place = places.get(each["name"], 1)
            yield RequirementLine(f"{each['name']}=={version.partition('+')[0]}{hashes}", place)


def _load(text: str) -> dict[str, Any]:
    """Return a TOML document.

    Raises:
        ValueError: it is none.
    """
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("has too many brackets within brackets") from error


def _is_local(package: dict[str, Any]) -> bool:
    """Return whether ``uv.lock`` says that a package is the project itself, or a directory beside it."""
    source = package.get("source")
    return isinstance(source, dict) and not source.keys().isdisjoint({"virtual", "editable", "directory"})


def _hashes(package: dict[str, Any]) -> Iterator[str]:
    wheels = package.get("wheels", [])
    if not isinstance(wheels, list) or not all(isinstance(each, dict) for each in wheels):
        raise ValueError(f"is not a lock: the wheels of {package['name'][:60]} are no list of tables")
    for wheel in wheels:
        hashes = wheel.get("hashes")
        found = hashes.get("sha256") if isinstance(hashes, dict) else wheel.get("hash")
        digest = found.removeprefix("sha256:") if isinstance(found, str) else ""
        if _DIGEST.fullmatch(digest):
            yield digest


def _places(text: str, pattern: re.Pattern[str]) -> Mapping[str, int]:
    """Return the first lines of the texts that a pattern finds."""
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        for match in pattern.finditer(line):
            found.setdefault(match[match.lastindex or 0], number)
    return found
