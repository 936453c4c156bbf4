"""Loads profiles: YAML files that the operator owns, with the changes of a job.

A profile file may extend another one. A job names a profile, or extends one and changes some switches. The
result is a ``jobs.contract.Profile`` and the origin of each value, which messages about conflicts show.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from jobs import contract
from runner.base import yaml
from runner.base.errors import UsageError
from runner.base.textfile import FileError, Position, Problem, list_yaml_stems, quoted, read_source
from runner.files.types import MIB, BufferMemory, Name, Text, Variable
from runner.files.validation import format_path, parse_mapping, suggest_profile, validate_model

Accelerator: TypeAlias = Literal["cuda", "rocm", "cpu"]

ACCELERATORS: Final[tuple[Accelerator, ...]] = ("cpu", "cuda", "rocm")

AUTO: Final = "auto"
"""Selects the profile with the name of the accelerator."""

ENVIRONMENT: Final = "environment"
"""The field of a profile that is no switch: variables, which a job or another profile adds to."""

JOB_FILE: Final = 1000
"""The rank of the switches in a job file; no chain of profiles is as long."""

_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_REASON: Final = re.compile(r"(?:^|\s)#\s?(.*)$")


class ProfileChoice(contract.Profile):
    """A profile by name, and the switches that differ from it."""

    name: Name = Field(AUTO, description="What reports call it; made up from the changes by default.")
    extends: str = Field(AUTO, description="The profile that these changes start from.")
    stream_buffer_memory: BufferMemory = Field(
        256 * MIB, description="Memory that an automatic stream buffer may take."
    )
    environment: dict[Variable, Text] = Field(
        {},
        max_length=200,
        description="Environment variables, for switches that a library reads there; the job's own win.",
    )

    @property
    def changes(self) -> dict[str, Any]:
        """The given switches by name."""
        return {name: getattr(self, name) for name in sorted(self.model_fields_set - {"extends", "name"})}

    @model_serializer(mode="wrap")
    def _only_what_was_given(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the defaults, which would be taken for changes when parsed again."""
        return {name: value for name, value in serialize(self).items() if name in self.model_fields_set}


@dataclass(frozen=True, slots=True)
class ProfileSetting:
    """The value of one switch and its origin."""

    value: Any
    profile: str | None = None  # whose file sets it; None: the job file, or the default
    at: Position | None = None
    reason: str = ""
    rank: int = 0  # precedence: 0 is a default, then profile after profile, the job file last

    @property
    def place(self) -> str:
        """The file and line, such as ``cuda.yaml:12``; empty if no profile sets it."""
        return f"{self.profile}.yaml:{self.at.line}" if self.profile and self.at else ""

    @property
    def whose(self) -> str:
        """The origin as a suffix of the value in a sentence."""
        if self.profile:
            return f" of profile {quoted(self.profile)} ({self.place})"
        if self.rank == 0:
            return ", the default"
        return f" (line {self.at.line})" if self.at else ""


def profile_names(profiles: Path) -> tuple[str, ...]:
    """Return the names of the profiles in a directory."""
    return tuple(sorted(filter(_is_name, list_yaml_stems(profiles))))


def is_profile(name: str, profiles: Path) -> bool:
    """Return True if a profile of this name is in a directory."""
    return _is_name(name) and os.path.exists(_place(name, profiles))  # noqa: PTH110  asked at each submission


def _place(name: str, profiles: Path) -> str:
    return f"{profiles}/{name}.yaml"


def _is_name(name: str) -> bool:
    return name != AUTO and _FILE_NAME.fullmatch(name) is not None


def find_unknown_profile(tree: yaml.MappingNode, profiles: Path) -> list[Problem]:
    """Return the problem if a job file names a profile that does not exist."""
    path: tuple[str, ...] = ("profile",)
    node = tree.entries.get("profile")
    if isinstance(node, yaml.MappingNode):
        path, node = ("profile", "extends"), node.entries.get("extends")
    if not isinstance(node, yaml.ScalarNode) or not isinstance(node.value, str):
        return []
    if node.value == AUTO or is_profile(node.value, profiles):
        return []
    names = (AUTO, *profile_names(profiles))
    hint = suggest_profile(node.value, names)
    return [Problem(node.at, format_path(path), f"there is no profile {quoted(node.value)}{hint}")]


def resolve_choice(choice: ProfileChoice, profiles: Path, accelerator: Accelerator) -> contract.Profile:
    """Return the resulting profile on an accelerator.

    Raises:
        UsageError: a profile is missing, extends itself or is not valid.
    """
    base = accelerator if choice.extends == AUTO else choice.extends
    settings = {switch: said.value for switch, said in load_profile(base, profiles, accelerator).items()}
    name = choice.name if "name" in choice.model_fields_set else "+".join([base, *choice.changes])
    variables = {**settings.get(ENVIRONMENT, {}), **choice.environment}
    changed = {**settings, **choice.changes, ENVIRONMENT: variables}
    return contract.Profile.model_validate({**changed, "name": name[:200]})


def load_profile(name: str, profiles: Path, accelerator: Accelerator = "cpu") -> Mapping[str, ProfileSetting]:
    """Return every switch of a named profile with its origin, and its environment if it has one.

    Raises:
        UsageError: a profile is missing, extends itself or is not valid.
    """
    return _merged(_chain(name, profiles, accelerator))


def load_choice(
    choice: ProfileChoice, tree: yaml.Node | None, profiles: Path, accelerator: Accelerator
) -> Mapping[str, ProfileSetting]:
    """Return every switch of a job with its origin; ``tree`` is the job file.

    Raises:
        UsageError: a profile is missing, extends itself or is not valid.
    """
    base = accelerator if choice.extends == AUTO else choice.extends
    changes = {
        switch: ProfileSetting(
            value, at=yaml.find_position(tree, ("profile", switch)) if tree else None, rank=JOB_FILE
        )
        for switch, value in choice.changes.items()
    }
    return {**load_profile(base, profiles, accelerator), **changes}


def profile_chain(name: str, profiles: Path, accelerator: Accelerator = "cpu") -> tuple[str, ...]:
    """Return the names of a profile and of the profiles that it extends, in order."""
    return tuple(layer.name for layer in _chain(name, profiles, accelerator))


def first_comment(path: Path) -> str:
    """Return the comment at the top of a profile file as one line."""
    lines = []
    for line in read_source(path).decode("utf-8", "replace").splitlines():
        if not line.startswith("#") or not line.strip("# "):
            break
        lines.append(line.lstrip("# "))
    return " ".join(lines)


# --- Files --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)  # compared by identity: _load caches one per text
class _Layer:
    """One profile file."""

    name: str
    extends: str | None
    said: Mapping[str, ProfileSetting]


def _chain(name: str, profiles: Path, accelerator: Accelerator) -> tuple[_Layer, ...]:
    """Return the files of a profile, the extending one first."""
    layers: list[_Layer] = []
    following: str | None = name
    while following is not None:
        name = accelerator if following == AUTO else following
        above = [layer.name for layer in layers]
        if name in above:
            raise UsageError(f"profile {quoted(name)} extends itself: {' -> '.join([*above, name])}")
        if not _is_name(name):
            raise _missing(name, profiles)
        layers.append(_layer(name, profiles))
        following = layers[-1].extends
    return tuple(layers)


def _layer(name: str, profiles: Path) -> _Layer:
    place = _place(name, profiles)
    try:
        found = os.stat(place)  # noqa: PTH116  several times at each submission
    except OSError as error:
        raise _missing(name, profiles) from error
    return _read(name, place, (found.st_ino, found.st_size, found.st_mtime_ns))


@lru_cache(maxsize=64)
def _read(name: str, place: str, _version: tuple[int, int, int]) -> _Layer:
    """Return the content of a file; a changed file is read again."""
    path = Path(place)
    return _load(name, path, read_source(path, "profile"))


def _missing(name: str, profiles: Path) -> UsageError:
    return UsageError(f"there is no profile {quoted(name)} in {profiles}")


@lru_cache(maxsize=64)
def _merged(layers: tuple[_Layer, ...]) -> Mapping[str, ProfileSetting]:
    """Return the merged switches of files; earlier files take precedence."""
    defaults = {switch: contract.Profile.model_fields[switch].default for switch in contract.SWITCHES}
    found = {switch: ProfileSetting(value) for switch, value in defaults.items()}
    for rank, layer in enumerate(reversed(layers), start=1):
        above = found[ENVIRONMENT].value if ENVIRONMENT in found else {}
        found |= {switch: replace(said, rank=rank) for switch, said in layer.said.items()}
        if ENVIRONMENT in layer.said:  # variable by variable, unlike a switch
            found[ENVIRONMENT] = replace(found[ENVIRONMENT], value={**above, **layer.said[ENVIRONMENT].value})
    return MappingProxyType(found)


@lru_cache(maxsize=64)
def _load(name: str, path: Path, raw: bytes) -> _Layer:
    """Return the content of a file; cached, because every submission needs the same few."""
    tree, problems = parse_mapping(raw, path)
    written = {key: yaml.to_plain(node) for key, node in tree.entries.items()}
    found, more = validate_model(ProfileChoice, written, tree)
    if found is None or problems:
        raise FileError(path, [*problems, *more])
    lines = raw.decode("utf-8", "replace").splitlines()
    said = {
        switch: ProfileSetting(value, name, tree.keys[switch], _reason(lines, tree.keys[switch].line))
        for switch, value in found.changes.items()
    }
    return _Layer(name, found.extends if "extends" in found.model_fields_set else None, said)


def _reason(lines: list[str], line: int) -> str:
    """Return the comment on a line (from 1) with the indented comment lines below it."""
    first = _REASON.search(lines[line - 1])
    parts = [first[1]] if first else []
    for following in lines[line:]:
        if not following.startswith(" ") or not following.lstrip().startswith("#"):
            break
        parts.append(following.lstrip(" #"))
    return " ".join(parts)
