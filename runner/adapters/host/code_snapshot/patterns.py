"""The patterns of ``gitignore(5)``: what each line of a file of patterns says about a path.

Paths and patterns have a letter for each byte.  A pattern is about the entry alone that it names: below a
directory that is ignored nobody looks.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

NOTHING: Final = r"(?!)"

_CLASSES: Final = {
    "alnum": str.isalnum,
    "alpha": str.isalpha,
    "blank": lambda letter: letter in " \t",
    "cntrl": lambda letter: letter < " " or letter == "\x7f",
    "digit": str.isdigit,
    "graph": lambda letter: "!" <= letter <= "~",
    "lower": str.islower,
    "print": lambda letter: " " <= letter <= "~",
    "punct": lambda letter: "!" <= letter <= "~" and not letter.isalnum(),
    "space": str.isspace,
    "upper": str.isupper,
    "xdigit": lambda letter: letter in "0123456789abcdefABCDEF",
}
_ASCII: Final = tuple(map(chr, range(128)))


@dataclass(frozen=True, slots=True)
class Pattern:
    """One line of a file of patterns."""

    ignores: bool  # False: it has back what another line ignores
    of_directories: bool
    of_names: bool  # it has no place in a directory: the name of an entry counts
    expression: re.Pattern[str]

    def is_about(self, path: str, *, is_directory: bool) -> bool:
        """Return True if it names an entry, by its path from the directory of the patterns."""
        if self.of_directories and not is_directory:
            return False
        named = path.rpartition("/")[2] if self.of_names else path
        return self.expression.fullmatch(named) is not None


def parse_patterns(content: str) -> Iterator[Pattern]:
    """Yield the patterns in the content of a file, in its order."""
    for line in content.split("\n"):
        if line and not line.startswith("#"):
            yield _parse(_without_blanks(line.removesuffix("\r")))


def _without_blanks(line: str) -> str:
    """Return a line without the blanks at its end, unless a backslash keeps them."""
    end = len(line.rstrip(" "))
    escaped = end < len(line) and (end - len(line[:end].rstrip("\\"))) % 2 == 1
    return line[: end + escaped]


def _parse(line: str) -> Pattern:
    text = line.removeprefix("!")
    named = text.removesuffix("/")
    of_names = "/" not in named
    expression = _translate(named if of_names else named.removeprefix("/"))
    return Pattern(text == line, named != text, of_names, re.compile(expression, re.DOTALL))


def _translate(pattern: str) -> str:
    """Return the regular expression of a pattern; one that is not closed is about nothing.

    What follows an asterisk is taken where it is found first, if another one follows: no name takes long.
    """
    parts, at, star = list[str](), 0, -1
    while at < len(pattern):
        if pattern[at] == "*":
            end = len(pattern) - len(pattern[at:].lstrip("*"))
            is_deep = (
                end - at > 1 and pattern[at - 1 : at] in {"", "/"} and pattern[end : end + 1] in {"", "/"}
            )
            if star >= 0 and not is_deep:
                parts[star] = "(?>[^/]*?"
                parts.append(")")
            star = -1 if is_deep else len(parts)
            if is_deep and end < len(pattern):
                parts.append("(?:.*/)?")
                at = end + 1
            else:
                parts.append(".*" if is_deep else "[^/]*")
                at = end
        elif pattern[at] == "[":
            found = _one_of(pattern, at + 1)
            if found is None:
                return NOTHING
            letters, at = found
            parts.append(letters)
        elif pattern[at] == "\\":
            if at + 1 == len(pattern):
                return NOTHING
            parts.append(re.escape(pattern[at + 1]))
            at += 2
        else:
            parts.append("[^/]" if pattern[at] == "?" else re.escape(pattern[at]))
            at += 1
    return "".join(parts)


def _one_of(pattern: str, at: int) -> tuple[str, int] | None:
    """Return the expression of a set of letters and the place behind it; None if it is not closed."""
    is_negated = pattern[at : at + 1] in {"!", "^"}
    at += is_negated
    found: set[str] = set()
    before, first = "", True
    while first or pattern[at : at + 1] != "]":
        first = False
        if (
            pattern.startswith("[:", at)
            and (end := pattern.find("]", at)) > at + 2
            and pattern[end - 1] == ":"
        ):
            if (belongs := _CLASSES.get(pattern[at + 2 : end - 1])) is None:
                return None
            found.update(filter(belongs, _ASCII))
            before, at = "", end + 1
            continue
        is_range = pattern[at : at + 1] == "-" and before and pattern[at + 1 : at + 2] not in {"", "]"}
        at += bool(is_range)
        at += pattern[at : at + 1] == "\\"
        letter = pattern[at : at + 1]
        if not letter:
            return None
        found.update(map(chr, range(ord(before if is_range else letter), ord(letter) + 1)))
        before, at = "" if is_range else letter, at + 1
    letters = "".join(f"\\x{ord(letter):02x}" for letter in sorted(found - {"/"}))
    if is_negated:
        return f"[^/{letters}]", at + 1
    return f"[{letters}]" if letters else NOTHING, at + 1
