"""Requirements as ``requirements.txt`` has them: logical lines with their places, as pip finds them.

``uv`` parses the requirements themselves.  This module finds the lines, so that a problem can be told at its
line, and the options, which are not for a job to choose.
"""

import codecs
import re
import shlex
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

MAX_LINES: Final = 10_000

MAX_REQUIREMENT: Final = 4096
"""Characters of one requirement without its hashes; what parses a longer one might take long."""

_NAME: Final = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)")
_INCLUDE: Final = re.compile(r"(-r|-c)\s*=?|(--requirement|--constraint)[\s=]")
_EDITABLE: Final = re.compile(r"-e\s*=?|--editable[\s=]")
_NAMED_FILE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\s*(?:(\[[^\]]*\])\s*)?@\s*(file:)")
_EGG: Final = re.compile(r"#egg=[A-Za-z0-9._-]+")
_MARKER: Final = re.compile(r"\s;|;\s")
"""End of a path, as pip knows it."""
_VARIABLE: Final = re.compile(r"\$\{[A-Z0-9_]+\}")
_CONDA: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)=([0-9][^=\s]*)(?:=\S+)?")
_PLACE: Final = re.compile(
    r"(git|hg|svn|bzr)\+|[a-z]+://|file:|~/|\S+\.(whl|zip|tar\.gz|tgz|tar\.bz2)$", re.IGNORECASE
)
_DIRECTORY: Final = re.compile(r"(\.{1,2}(?![^/\[])|/|[^\s;@\[<>=!~,]*/)[^;@\[\]]*(\[[A-Za-z0-9 ,._-]*\])?")
"""A path of a directory, as pip knows it: it begins with a dot, or has a slash; with extras, or without."""

_DEFAULT_INDEX: Final = re.compile(r"(-i|--index-url)[\s=]+https://pypi\.(python\.)?org/simple/?")
_COMMENT: Final = re.compile(r"\s*#")
_CODING: Final = re.compile(rb"#.*coding[:=]\s*([-\w.]+)")
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_HASH: Final = re.compile(r"(?<=\s)--hash[= ]sha256:([0-9a-f]{64})")
_OPTION: Final = re.compile(r"\s(--[a-z][a-z-]*)")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_LOCKED_NAME: Final = re.compile(r'name = "([^"]*)"')
_ASKED: Final = re.compile(r"""(["'])([^"']+)\1\s+(not\s+)?in\s+(extras|dependency_groups)""")
"""Part of a marker that asks which extras or groups are wanted."""

UNKNOWN: Final = "0"
"""Version of a project of the user's own that only its build knows."""

TRUE, FALSE = "python_version >= '3'", "python_version < '3'"
"""Markers that always hold, and never."""


TORCH_FAMILY: Final = frozenset(
    (
        *("torch", "torchvision", "torchaudio", "torchcodec", "torchtext", "triton", "pytorch-triton"),
        *("xformers", "torchao", "fbgemm-gpu", "torchrec", "torch-tensorrt"),
    )
)


@dataclass(frozen=True, slots=True)
class RequirementLine:
    """One requirement, or one option, with its place."""

    text: str
    number: int  # of its first line, from 1
    swallows: bool = False  # the next line, as its comment ends in a backslash

    @property
    def name(self) -> str | None:
        """The normalized name of the package; None for an option or an address."""
        found = None if self.local is not None else _NAME.match(self.text)
        return canonicalize_name(found[1]) if found else None

    @property
    def hashes(self) -> frozenset[str]:
        """The sha256s that its files may have; empty: any."""
        return frozenset(_HASH.findall(self.text))

    @property
    def requirement(self) -> str:
        """The text without its hashes."""
        return _HASH.sub("", self.text).strip()

    @property
    def extras(self) -> tuple[str, ...]:
        """The extras of the package that it asks for."""
        found = re.match(r"[A-Za-z0-9._-]+\s*\[([^\]]*)\]", self.text)
        return split_extras(found[1]) if found else ()

    @property
    def may_apply(self) -> bool:
        """Return False if its marker excludes this platform; which Python a job has is not known here."""
        said = "" if self.local is None else "".join(_MARKER.split(self.text, 1)[1:])
        marker = _parsed(f"any ;{said}" if said else self.requirement).marker
        try:
            return marker is None or "python" in str(marker) or marker.evaluate()
        except ValueError:  # of a comparison that has no meaning
            return True

    def excludes(self, version: str) -> bool:
        """Return True if it does not admit a version, which is known."""
        wanted = _parsed(self.requirement).specifier
        return version != UNKNOWN and not wanted.contains(version, prereleases=True)

    @property
    def is_of_image(self) -> bool:
        """Return True for a package of torch's family, which comes from where that of the image does."""
        return self.name in TORCH_FAMILY

    @property
    def is_option(self) -> bool:
        return self.text.startswith("-")

    @property
    def is_default(self) -> bool:
        """Return True for the option that names pip's own index, as exports of other tools have it."""
        return _DEFAULT_INDEX.fullmatch(self.text) is not None

    @property
    def include(self) -> tuple[bool, str] | None:
        """Return (it includes constraints, the included path), or None if the line includes nothing."""
        found = _INCLUDE.match(self.text)
        path = "" if found is None else _unquoted(self.text[found.end() :].strip())
        return (
            ((found[1] or found[2]) in {"-c", "--constraint"}, path) if found is not None and path else None
        )

    @property
    def local(self) -> tuple[str, tuple[str, ...]] | None:
        """The path of a directory with a project, and its extras that are wanted; None: it names none."""
        text = _MARKER.split(self.text, 1)[0].strip()
        named, editable = _NAMED_FILE.match(text), _EDITABLE.match(text)
        if named is not None:
            text = f"{text[named.start(2) :]}{named[1] or ''}"
            editable = named
        elif editable is not None:
            text = _unquoted(text[editable.end() :].strip())
        if editable is not None:
            text = re.sub(r"^file:(//(?=/))?(?!.*%)", "", _EGG.sub("", text))
        if len(text) > MAX_REQUIREMENT or _PLACE.match(text):
            return None
        path, _, extras = text.partition("[")
        if _DIRECTORY.fullmatch(text) is None and not (editable and path and not set(path) & set(";@<>=")):
            return None
        return path.strip(), split_extras(extras.strip().removesuffix("]"))


def _parsed(text: str) -> Requirement:
    """Return a requirement; one with a mistake, which is told, as one of any version."""
    try:
        return Requirement(text)
    except (InvalidRequirement, RecursionError):
        return Requirement("any")


def split_extras(text: str) -> tuple[str, ...]:
    """Return the names of extras, as they are compared."""
    return tuple(canonicalize_name(each) for each in re.split(r"[\s,]+", text) if each)


def _unquoted(text: str) -> str:
    """Return a word in quotes as a shell reads it; pip reads its options so."""
    if not set(text) & set("\"'\\") or len(text) > MAX_REQUIREMENT:
        return text
    try:
        return " ".join(shlex.split(text))
    except ValueError:
        return text


def decode(content: bytes) -> str:
    """Return the text of a file of requirements, in the encoding that it tells, else UTF-8.

    Raises:
        ValueError: it has another one.
    """
    mark, encoding = next((each for each in _MARKS if content.startswith(each[0])), (b"", "utf-8"))
    if not mark and (coding := next(filter(None, map(_CODING.match, content[:4096].split(b"\n")[:2])), None)):
        encoding = coding[1].decode()
    try:
        text = content.removeprefix(mark).decode(encoding)
    except (UnicodeDecodeError, LookupError) as error:
        raise ValueError("is not UTF-8 text") from error
    if "\0" in text:
        raise ValueError("has zero bytes, as UTF-16 without its mark has them; save it as UTF-8")
    return text


def parse_lines(text: str) -> Iterator[RequirementLine]:
    """Yield the logical lines of a file, without comments and empty lines; a comment ends what goes on."""
    parts: list[str] = []
    first = 0
    for number, line in enumerate(text.splitlines(), start=1):
        first = first or number
        is_comment = _COMMENT.match(line) is not None
        if line.endswith("\\") and not is_comment:
            parts.append(line.strip("\\"))
            continue
        parts.append(f" {line}" if is_comment else line)  # so that it is a comment also after a word
        yield from _logical(parts, first)
        parts, first = [], 0
    yield from _logical(parts, first)


def _logical(parts: list[str], first: int) -> Iterator[RequirementLine]:
    stripped = _without_comment("".join(parts))
    if not stripped.strip():
        return
    ends = list(accumulate(map(len, parts)))
    commented = next((number for number, end in enumerate(ends) if len(stripped) < end), len(parts))
    swallowed = _without_comment("".join(parts[commented + 1 :]))
    yield RequirementLine(stripped.strip(), first, bool(swallowed.strip()))


def _without_comment(line: str) -> str:
    """Return a line up to the first ``#`` that begins it, or that follows a blank."""
    start = line.find("#")
    while start > 0 and not line[start - 1].isspace():
        start = line.find("#", start + 1)
    return line if start < 0 else line[:start]


def find_mistake(line: RequirementLine) -> str | None:
    """Return the fault of a line whatever the index has, None if nothing is."""
    if line.swallows:
        return "its comment ends in \\, so the next line belongs to it; remove the \\"
    if line.is_option and line.local is None:
        return _option_mistake(line)
    text = line.requirement
    if (variable := _VARIABLE.search(text)) is not None:
        return f"{variable[0]} is a variable, which nobody sets where packages are resolved; write its value"
    if len(text) > MAX_REQUIREMENT:
        return f"is longer than {MAX_REQUIREMENT} characters"
    if _PLACE.match(text):
        return _place_mistake(text)
    try:
        wanted = Requirement(text)
    except RecursionError:
        return "is not a requirement such as tqdm>=4: has too many brackets"
    except InvalidRequirement as error:
        if (conda := _CONDA.fullmatch(text)) is not None:
            return f"is a line of conda; write {conda[1]}=={conda[2]}"
        if (option := _OPTION.search(text)) is not None:
            return _own_option_mistake(option[1])
        reason = str(error).partition("\n")[0].rstrip(".:")
        return f"is not a requirement such as tqdm>=4: {reason[:1].lower()}{reason[1:]}"
    return None if wanted.url is None else _place_mistake(wanted.url)


def _own_option_mistake(option: str) -> str:
    """Return the fault of an option that follows a requirement."""
    if option == "--hash":
        return "has a --hash that is no sha256 of 64 hexadecimal digits; name the sha256 of its files"
    return f"{option} is an option of its build, which is not for a job to choose; remove it"


def _option_mistake(line: RequirementLine) -> str:
    if (found := _EDITABLE.match(line.text)) is not None:
        return _place_mistake(_unquoted(line.text[found.end() :].strip()))
    return "the operator chooses how packages are found (packages in the settings); remove it"


def _place_mistake(text: str) -> str:
    """Return the reason why a package is not taken from an address or a path."""
    what = (
        "a repository" if text.lower().startswith(("git+", "hg+", "svn+", "bzr+")) else "an address or path"
    )
    step = "name a version of the index, or put the code into workload.code"
    return f"packages come from the operator's indexes, none is built from {what}; {step}"


@dataclass(frozen=True, slots=True)
class LockedPackages:
    """Contents of a ``pylock.toml`` or ``uv.lock``."""

    lines: tuple[RequirementLine, ...]
    """The packages in their versions, with the hashes of their files."""
    python: str | None
    """Specifier of the Python that it is for; None if it does not say."""


def parse_locked(text: str) -> LockedPackages:
    """Return the packages of a ``pylock.toml`` or ``uv.lock``.

    Raises:
        ValueError: it is not TOML, or not a lock.
    """
    found = load_toml(text)
    packages, python = found.get("packages", found.get("package")), found.get("requires-python")
    if not str(version := found.get("lock-version", "1.0")).startswith("1."):
        raise ValueError(f"is a lock of version {version}, and version 1 is read")
    wanted = str(SpecifierSet(python)) if isinstance(python, str) else None
    if not isinstance(packages, list):
        raise ValueError("is not a lock: it has no packages")
    groups = found.get("default-groups")
    groups = frozenset(each for each in groups if isinstance(each, str)) if isinstance(groups, list) else ()
    return LockedPackages(tuple(_locked_lines(packages, _places(text, _LOCKED_NAME), groups)), wanted)


def _locked_lines(
    packages: list[Any], places: Mapping[str, int], groups: Collection[str]
) -> Iterator[RequirementLine]:
    for each in packages:
        if not isinstance(each, dict) or not isinstance(each.get("name"), str):
            raise ValueError("is not a lock: a package has no name")
        place, marker = places.get(each["name"], 1), _marker(each, groups)
        if (direct := _direct(each)) is not None:
            yield RequirementLine(f"{direct}{marker}", place)
        elif isinstance(version := each.get("version"), str) and not _is_local(each):
            hashes = "".join(f" --hash=sha256:{digest}" for digest in _hashes(each))
            wanted = f"{each['name']}=={version.partition('+')[0]}{marker}"
            yield RequirementLine(f"{wanted}{hashes}", place)


def _direct(package: dict[str, Any]) -> str | None:
    """Return the requirement of a package that ``pylock.toml`` has from no index, None of any other."""
    directory, address = package.get("directory"), package.get("vcs", package.get("archive"))
    if isinstance(directory, dict):
        return f"-e {directory.get('path', '.')}"
    if not isinstance(address, dict):
        return None
    kind = f"{package['vcs'].get('type', 'git')}+" if "vcs" in package else ""
    return f"{package['name']} @ {kind}{address.get('url', address.get('path'))}"


def _marker(package: dict[str, Any], groups: Collection[str]) -> str:
    """Return for which environments a lock has a package, as the end of a requirement.

    No extra is wanted, and of the groups of dependencies those that are so by default.
    """
    said = package.get("marker", package.get("resolution-markers"))
    markers = [said] if isinstance(said, str) else said if isinstance(said, list) else []

    def answer(asked: re.Match[str]) -> str:
        return TRUE if (asked[4] != "extras" and asked[2] in groups) == (asked[3] is None) else FALSE

    return _ASKED.sub(answer, f" ; {' or '.join(f'({each})' for each in markers)}") if markers else ""


def check_specifier(text: str) -> None:
    """Check that a text says which versions of Python fit; may raise ValueError."""
    try:
        SpecifierSet(text)
    except InvalidSpecifier as error:
        raise ValueError(
            f"requires-python: {text[:60]}: is not a range of versions such as >=3.10"
        ) from error


def admits_python(wanted: str, python: str) -> bool:
    """Return True if a specifier admits any release of a Python such as 3.11."""
    specifier = SpecifierSet(wanted)
    return any(specifier.contains(f"{python}.{patch}") for patch in range(100))


def load_toml(text: str) -> dict[str, Any]:
    """Return a TOML document; may raise ValueError."""
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("has too many brackets within brackets") from error


def _is_local(package: dict[str, Any]) -> bool:
    """Return True if ``uv.lock`` says that a package is the project itself, or a directory beside it."""
    source = package.get("source")
    return isinstance(source, dict) and not source.keys().isdisjoint({"virtual", "editable", "directory"})


def _hashes(package: dict[str, Any]) -> Iterator[str]:
    wheels = package.get("wheels", [])
    if not isinstance(wheels, list) or not all(isinstance(each, dict) for each in wheels):
        raise ValueError(f"is not a lock: the wheels of {package['name'][:60]} are not a list of tables")
    source = package.get("sdist")  # what is built of it is known by its hash
    for file in [*wheels, *([source] if isinstance(source, dict) else [])]:
        hashes = file.get("hashes")
        found = hashes.get("sha256") if isinstance(hashes, dict) else file.get("hash")
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
