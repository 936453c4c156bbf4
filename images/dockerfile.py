"""Checks the Dockerfile of a user: it may say what ends up in an image, and not reach for anything else.

Builders fetch, mount and share on the engine's behalf: ``ADD`` downloads from wherever the engine can reach,
``COPY --from`` reads any image, a cache mount is shared by all builds.  What is not known to be harmless is
refused, and every line is looked at, whatever it continues: no line may mean one thing here and another thing
to a builder.
"""

import re
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

MAX_BYTES: Final = 256 * 1024
BASE: Final = "BASE"
"""The build argument with the image that the job would run in without the Dockerfile."""

INSTRUCTIONS: Final = frozenset({
    "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "LABEL", "MAINTAINER", "RUN", "SHELL",
    "STOPSIGNAL", "USER", "WORKDIR",
})  # fmt: skip
REFUSED: Final = {
    "ADD": "ADD downloads with the network of the engine; use COPY, and RUN to unpack",
    "ONBUILD": "ONBUILD is for images that others build on; leave it out",
    "VOLUME": "VOLUME is for the engine's own storage; write mounts in the job file",
    "HEALTHCHECK": "HEALTHCHECK would run beside the job; leave it out",
}
_DIRECTIVE: Final = re.compile(r"#\s*(syntax|escape|check)\s*=", re.IGNORECASE)
_MATTERS: Final = re.compile(r"(FROM|COPY|RUN|ADD|ONBUILD|VOLUME|HEALTHCHECK)\s", re.IGNORECASE)
_CONTROL: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x85\u2028\u2029]")
_BASES: Final = frozenset({f"${BASE}", f"${{{BASE}}}"})


class Mistake(NamedTuple):
    """What a Dockerfile may not say."""

    line: int  # from 1
    text: str
    fact: str


def find_mistakes(text: str, offered: Collection[str] | None) -> tuple[Mistake, ...]:
    """Return what a Dockerfile may not say.

    Args:
        text: The Dockerfile.
        offered: The images that it may begin with besides ``${BASE}``; None: any.
    """
    if (odd := _CONTROL.search(text)) is not None:
        return (Mistake(text.count("\n", 0, odd.start()) + 1, "", "has a control character; remove it"),)
    checked = _Checked(offered)
    found = tuple(checked.mistakes(text))
    return found if found or checked.images else (Mistake(1, "", f"has no FROM; write FROM ${{{BASE}}}"),)


class _Checked:
    """A Dockerfile as far as it was read."""

    def __init__(self, offered: Collection[str] | None) -> None:
        self.images = 0  # that begin so far
        self._offered = offered
        self._stages: set[str] = set()

    def mistakes(self, text: str) -> Iterator[Mistake]:
        for number, instruction in _instructions(text):
            fact = self._fact(instruction)
            if fact is not None:
                yield Mistake(number, instruction[:60], fact)

    def _fact(self, instruction: str) -> str | None:
        if instruction.startswith("#"):
            return "the runner's builder has one syntax; remove this line"
        word, *others = instruction.split(maxsplit=1)
        rest = others[0] if others else ""
        name = word.upper()
        if name in REFUSED:
            return REFUSED[name]
        if name not in INSTRUCTIONS:
            return f"{word[:30]} is no instruction that is known here"
        if name == "FROM":
            return self._from_fact(rest.split())
        if not self.images and name != "ARG":
            return f"stands before FROM; begin with FROM ${{{BASE}}}"
        if name in {"RUN", "COPY"} and "<<" in rest:
            return "has a here-document, which not every builder knows; join commands by &&, or COPY a script"
        if name == "RUN" and rest.lstrip().startswith("--"):
            return "RUN takes no options here: no mounts, networks or privileges; remove them"
        return self._copy_fact(rest.split()) if name == "COPY" else None

    def _from_fact(self, words: list[str]) -> str | None:
        words = [word for word in words if not word.startswith("--platform=")]
        if not words or words[0].startswith("--"):
            return "names no image"
        image, is_stage = words[0], words[0].lower() in self._stages
        self.images += 1
        self._stages.add(str(self.images - 1))
        if len(words) == 3 and words[1].upper() == "AS":
            self._stages.add(words[2].lower())
        elif len(words) != 1:
            return "must be FROM IMAGE, or FROM IMAGE AS NAME"
        if image in _BASES or image == "scratch" or is_stage:
            return None
        if "$" in image:
            return f"only {BASE} is a variable that FROM may name"
        if self._offered is None or image in self._offered:
            return None
        there = ", ".join((f"${{{BASE}}}", *sorted(self._offered)))
        return f"{image}: is not offered here; there are {there}; ask the operator (allowed_images)"

    def _copy_fact(self, words: list[str]) -> str | None:
        for word in words:
            name, _, value = word.partition("=")
            if not name.startswith("--"):
                return None
            if name == "--from" and value.lower() not in self._stages:
                return f"{word}: is no earlier stage of this file"
            if name not in {"--from", "--chown", "--chmod", "--link"}:
                return f"{name}: is no option of COPY that is known here"
        return None


def _instructions(text: str) -> Iterator[tuple[int, str]]:
    """Yield the instructions with their lines, and every line that could be read as an instruction.

    A line behind a backslash belongs to the instruction before it.  If it begins like an instruction that
    matters here, it is yielded by itself, too: another reader might take it for one.
    """
    joined, first, is_top = "", 0, True
    for number, raw in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        line = raw.lstrip().rstrip(" \t\r")
        if not line or line.startswith("#"):
            if is_top and _DIRECTIVE.match(line):
                yield number, line
            continue
        is_top = False
        first = first or number
        if joined and _MATTERS.match(line):
            yield number, line.removesuffix("\\").strip()
        goes_on = line.endswith("\\")
        joined += f"{line[:-1]} " if goes_on else line
        if not goes_on:
            yield first, joined.strip()
            joined, first = "", 0
    if joined:
        yield first, joined.strip()
