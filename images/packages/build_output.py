"""The cause of a failed build in one line, found in the output of compilers, build tools and Python.

The last line of the output often tells only that another program has failed.  Then the cause is what that
program has said before.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

MAX_CAUSE: Final = 300
"""Characters of a cause."""

_TRACEBACK: Final = "Traceback (most recent call last):"
_ERROR: Final = re.compile(
    r"\s*(?:[\w.+/-]+: )*(?:fatal error|error(?:\[\w+\])?|CMake Error)\b", re.IGNORECASE
)
_COMPILER: Final = re.compile(r"\S.*?:\d+(?::\d+)?: (?:fatal )?error: |.*\bcannot find -l", re.IGNORECASE)
_FATAL: Final = re.compile(r".*\bfatal error: ", re.IGNORECASE)
_INDIRECT: Final = re.compile(
    r"(?i:command .* failed|non-zero exit|exit (?:code|status)|subprocess|build stopped|could not compile)"
    r"|ProcessError|SystemExit|CompileError|LinkError|previous error"
)
"""Words of a program when another one has failed."""


def find_cause(output: str) -> str:
    """Return the line that tells why a build has failed; an empty text if it has said nothing."""
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    told = list(_errors(lines))
    cause = told[-1] if told else None
    if cause is None or _INDIRECT.search(lines[cause]):
        compilers = [number for number, line in enumerate(lines) if _COMPILER.match(line)]
        fatal = [number for number in compilers if _FATAL.match(lines[number])]
        direct = [number for number in told if not _INDIRECT.search(lines[number])]
        found = next(filter(None, (fatal[-1:], compilers[:1], direct[-1:], told[-1:])), [])
        worded = [number for number, line in enumerate(lines) if any(map(str.isalpha, line))]
        cause = (found or worded or [0])[-1]
    return _whole(lines, cause)[:MAX_CAUSE] if lines else ""


def _errors(lines: Sequence[str]) -> Iterator[int]:
    """Yield the numbers of the lines that tell an error: exceptions, and what tools begin with that word."""
    in_traceback = False
    for number, line in enumerate(lines):
        if line == _TRACEBACK:
            in_traceback = True
        elif in_traceback and not line[0].isspace():
            in_traceback = False
            yield number
        elif not in_traceback and _ERROR.match(line):
            yield number


def _whole(lines: Sequence[str], number: int) -> str:
    """Return a line, with the next one if it announces that."""
    line = lines[number].strip()
    follows = line.endswith(":") and number + 1 < len(lines)
    return f"{line} {lines[number + 1].strip()}" if follows else line
