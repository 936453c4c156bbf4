"""Named profiles: YAML files that the operator owns, and what a job changes in one.

A profile file may extend another one; a job names a profile, or extends one and overrides
some fields.  What comes out is a ``jobs.contract.Profile``, which knows nothing of names.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from jobs import contract
from runner import spec_parse, spec_yaml
from runner.errors import UsageError
from runner.source import Problem, SpecError, quoted, read_source
from runner.spec_types import Name

DEFAULT: Final = "baseline"

_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


class ProfileChoice(contract.Profile):
    """A profile by name, and the fields of it that are to be different."""

    name: Name = Field("baseline", description="What reports call it; made up from the changes by default.")
    extends: str = Field(DEFAULT, description="The profile that these changes start from.")

    @property
    def changes(self) -> dict[str, object]:
        """The fields that were given, by name."""
        return {name: getattr(self, name) for name in sorted(self.model_fields_set - {"extends", "name"})}

    @model_serializer(mode="wrap")
    def _only_what_was_given(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave the defaults out: read back, they would look like changes."""
        return {name: value for name, value in serialize(self).items() if name in self.model_fields_set}


def profile_names(profiles: Path) -> tuple[str, ...]:
    """Return the names of the profiles in a directory."""
    return tuple(sorted(path.stem for path in profiles.glob("*.yaml") if _FILE_NAME.fullmatch(path.stem)))


def unknown_profile(tree: spec_yaml.Mapping, profiles: Path) -> list[Problem]:
    """Return the problem with the profile that a job file names, if there is one."""
    path: tuple[str, ...] = ("profile",)
    node = tree.entries.get("profile")
    if isinstance(node, spec_yaml.Mapping):
        path, node = ("profile", "extends"), node.entries.get("extends")
    if not isinstance(node, spec_yaml.Scalar) or not isinstance(node.value, str):
        return []
    names = profile_names(profiles)
    if node.value in names:
        return []
    hint = spec_parse.did_you_mean(node.value, names) or f"; there are {', '.join(names)}"
    return [Problem(node.at, spec_parse.dotted(path), f"there is no profile {quoted(node.value)}{hint}")]


def resolve(choice: ProfileChoice, profiles: Path) -> contract.Profile:
    """Return the settings that a choice comes to.

    Raises:
        UsageError: a profile is missing, extends itself or is not valid.
    """
    settings = _named(choice.extends, profiles, ())
    name = choice.name if "name" in choice.model_fields_set else "+".join([choice.extends, *choice.changes])
    return contract.Profile.model_validate({**settings, **choice.changes, "name": name[:200]})


def _named(name: str, profiles: Path, above: tuple[str, ...]) -> Mapping[str, object]:
    if name in above:
        raise UsageError(f"profile {quoted(name)} extends itself: {' -> '.join([*above, name])}")
    if name not in profile_names(profiles):
        raise UsageError(f"there is no profile {quoted(name)} in {profiles}")
    found = _load(profiles / f"{name}.yaml")
    inherited = _named(found.extends, profiles, (*above, name)) if "extends" in found.model_fields_set else {}
    return {**inherited, **found.changes}


def _load(path: Path) -> ProfileChoice:
    tree, problems = spec_parse.mapping(read_source(path), path)
    written = {key: spec_yaml.plain(node) for key, node in tree.entries.items()}
    found, more = spec_parse.validated(ProfileChoice, written, tree)
    if found is None or problems:
        raise SpecError(path, [*problems, *more])
    return found
