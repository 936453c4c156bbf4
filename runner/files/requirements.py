"""Requirements as ``requirements.txt`` has them: logical lines with their places.

``uv`` parses the requirements themselves.  This module finds the lines, so that a problem can be told at its
line, and the options, which are not for a job to choose.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

MAX_LINES: Final = 10_000

_COMMENT: Final = re.compile(r"(^|\s+)#.*$")
_NAME: Final = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)")
_INCLUDE: Final = re.compile(r"^(-r|--requirement|-c|--constraint)(?:\s+|=)(.+)$")
_PER_REQUIREMENT: Final = re.compile(r"\s(?=--?[a-z])")


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


def normalize_name(name: str) -> str:
    """Return the name of a package as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()
