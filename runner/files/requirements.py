"""Requirements as ``requirements.txt`` has them: logical lines with their places.

``uv`` parses the requirements themselves.  This module finds the lines, so that a problem can be told at its
line, and the options, which are not for a job to choose.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

MAX_LINES: Final = 10_000

_COMMENT: Final = re.compile(r"(^|\s+)#.*$")
_NAME: Final = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)")
_INCLUDE: Final = re.compile(r"^(-r|--requirement|-c|--constraint)(?:\s+|=)(.+)$")
_PLACE: Final = re.compile(
    r"(git|hg|svn|bzr)\+|[a-z]+://|file:|\.{0,2}/|~/|\S+\.(whl|zip|tar\.gz)$", re.IGNORECASE
)
_HASH: Final = re.compile(r"\s+--hash[= ]sha256:([0-9a-f]{64})")


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
        """Whether the line includes constraints, and the path of what it includes; None if it does not."""
        found = _INCLUDE.match(self.text)
        return None if found is None else (found[1] in {"-c", "--constraint"}, found[2].strip())


def parse_lines(text: str) -> Iterator[RequirementLine]:
    """Yield the logical lines of a file, without comments and empty lines."""
    joined, first = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        first = first or number
        joined += line[:-1] if (goes_on := line.endswith("\\")) else line
        if goes_on:
            continue
        if stripped := _COMMENT.sub("", joined).strip():
            yield RequirementLine(stripped, first)
        joined, first = "", 0
    if stripped := _COMMENT.sub("", joined).strip():
        yield RequirementLine(stripped, first)


def find_mistake(line: RequirementLine) -> str | None:
    """Return what is wrong with a line whatever the index has, None if nothing is."""
    if line.is_option:
        return _option_mistake(line)
    text = line.requirement
    if _PLACE.match(text):
        return _place_mistake(text)
    try:
        wanted = Requirement(text)
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
    project = tomllib.loads(text).get("project")
    wanted = project.get("dependencies", []) if isinstance(project, dict) else None
    if not isinstance(wanted, list) or not all(isinstance(each, str) for each in wanted):
        raise ValueError("has no list project.dependencies")
    lines = text.splitlines()
    for each in wanted:
        yield RequirementLine(each, _line_with(lines, each))


def parse_locked(text: str) -> Iterator[RequirementLine]:
    """Yield the packages of a ``pylock.toml`` or ``uv.lock`` in their versions, with the hashes of wheels.

    Raises:
        ValueError: it is not TOML, or not a lock.
    """
    found = tomllib.loads(text)
    packages = found.get("packages", found.get("package"))
    if not isinstance(packages, list):
        raise ValueError("is not a lock: it has no packages")  # noqa: TRY004  (of the text)
    lines = text.splitlines()
    for each in packages:
        if not isinstance(each, dict) or not isinstance(each.get("name"), str):
            raise ValueError("is not a lock: a package has no name")  # noqa: TRY004  (likewise)
        if isinstance(version := each.get("version"), str) and not _is_local(each):
            hashes = "".join(f" --hash=sha256:{digest}" for digest in _hashes(each))
            place = _line_with(lines, f'name = "{each["name"]}"')
            yield RequirementLine(f"{each['name']}=={version.partition('+')[0]}{hashes}", place)


def required_python(text: str) -> str | None:
    """Return which Python a ``pylock.toml`` or ``uv.lock`` is for, as a specifier; None if it does not say.

    Raises:
        ValueError: it is not TOML, or its specifier is none.
    """
    found = tomllib.loads(text).get("requires-python")
    return str(SpecifierSet(found)) if isinstance(found, str) else None


def _is_local(package: dict[str, Any]) -> bool:
    """Return whether ``uv.lock`` says that a package is the project itself, or a directory beside it."""
    source = package.get("source")
    return isinstance(source, dict) and not source.keys().isdisjoint({"virtual", "editable", "directory"})


def _hashes(package: dict[str, Any]) -> Iterator[str]:
    for wheel in package.get("wheels", ()):
        found = wheel.get("hashes", {}).get("sha256") if isinstance(wheel.get("hashes"), dict) else None
        found = found or str(wheel.get("hash", "")).removeprefix("sha256:")
        if found:
            yield found


def _line_with(lines: list[str], text: str) -> int:
    return next((number for number, line in enumerate(lines, start=1) if text in line), 1)
