"""Reads the Dockerfile of a user and writes it anew: one instruction a line, as all builders read it.

Builders fetch, mount and share on the engine's behalf: ``ADD`` downloads from wherever the engine can reach,
``COPY --from`` reads any image, a cache mount is shared by all builds.  Builders also differ in where a line
ends and a word begins.  So no builder gets the user's text: it gets what was read here, without continued
lines, comments, directives and quoted options, and what is not understood here is refused.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final, NamedTuple

MAX_BYTES: Final = 256 * 1024
MAX_LINE_BYTES: Final = 65_000
"""Of an instruction; BuildKit reads no line that is longer than 65,535."""

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
_DEFAULT: Final = re.compile(rf"(?<!\w){BASE}[\"']?=")
_DIRECTIVE: Final = re.compile(r"#[ \t]*(syntax|escape|check)[ \t]*=", re.IGNORECASE)
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_BASES: Final = frozenset({f"${BASE}", f"${{{BASE}}}"})
_STAGE: Final = re.compile(r"[a-z][a-z0-9_.-]*")
_PLATFORM: Final = re.compile(r"--platform=[\w/.${}-]+", re.ASCII)
_IMAGE: Final = re.compile(r"[\w./:@-]+", re.ASCII)
_COPY_OPTION: Final = {
    "--from": re.compile(r"[\w.-]+", re.ASCII),
    "--chown": re.compile(r"[\w.:${}-]+", re.ASCII),
    "--chmod": re.compile(r"[\w=+,${}-]+", re.ASCII),
    "--link": re.compile(r"(true|false)?"),
}
"""The options of COPY with their values: none has a quote, a backslash or a blank, which end words."""


class Mistake(NamedTuple):
    """Line that a Dockerfile may not have, or that does not do what it says."""

    line: int  # from 1
    text: str
    fact: str


class Reading(NamedTuple):
    """A Dockerfile as it was understood."""

    mistakes: tuple[Mistake, ...]
    text: str
    """For a builder, with the argument that names its base; only without mistakes."""
    images: Mapping[str, int] = MappingProxyType({})
    """The images that it begins with besides its base, with the first lines that name them."""
    warnings: tuple[Mistake, ...] = ()
    """Lines that do not do what they say: the first that gives the base a default, which is replaced."""


def read_dockerfile(text: str, offered: Collection[str] | None) -> Reading:
    """Return a Dockerfile in canonical form, or what it may not say.

    Args:
        text: The Dockerfile.
        offered: The images that it may begin with besides ``${BASE}``, also as patterns; None: any.
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if (odd := _CONTROL.search(text)) is not None:
        line = text.count("\n", 0, odd.start()) + 1
        return Reading((Mistake(line, "", "has a control character; remove it"),), "")
    reader, mistakes, written = _Reader(offered), list[Mistake](), [f"ARG {BASE}"]
    for number, instruction in _instructions(text):
        try:
            written.append(reader.canonical(number, instruction))
        except ValueError as error:
            mistakes.append(Mistake(number, instruction[:60], str(error)))
    if not mistakes and not reader.images:
        mistakes.append(Mistake(1, "", f"has no FROM; write FROM ${{{BASE}}}"))
    return Reading(
        tuple(mistakes), "" if mistakes else "\n".join([*written, ""]), reader.others, tuple(reader.warnings)
    )


class _Reader:
    """A Dockerfile as far as it was read.  A ``ValueError`` is the fact of a mistake."""

    def __init__(self, offered: Collection[str] | None) -> None:
        self.images = 0  # that begin so far
        self.others: dict[str, int] = {}  # that are neither the base nor a stage, with their first lines
        self.warnings: list[Mistake] = []
        self._line = 0
        self._offered = offered
        self._names: dict[str, int] = {}  # of stages, with their numbers

    def canonical(self, line: int, instruction: str) -> str:
        """Return an instruction as the builder gets it."""
        self._line = line
        name, rest = self._split(instruction)
        if name == "FROM":
            return self._from(rest.split())
        if name == "COPY":
            return self._copy(rest)
        if name == "ARG" and _DEFAULT.search(rest) and not self.warnings:
            fact = f"{BASE} is the image of the job here; name yours in image.base, or behind FROM"
            self.warnings.append(Mistake(line, instruction[:60], fact))
        if rest.startswith("--"):
            raise ValueError(f"{name} takes no options here: no mounts, networks or privileges; remove them")
        return f"{name} {rest}"

    def _split(self, instruction: str) -> tuple[str, str]:
        """Return the name and the arguments of an instruction that may stand here."""
        if instruction.startswith("#"):
            raise ValueError("the runner's builder has one syntax; remove this line")
        if any(each.isspace() and each not in " \t" for each in instruction):
            raise ValueError(
                "has a blank that is neither a space nor a tab; builders differ in what it means"
            )
        word, *others = instruction.split(maxsplit=1)
        rest = others[0] if others else ""
        name = word.upper() if word.isascii() else word
        if name in REFUSED:
            raise ValueError(REFUSED[name])
        if name not in INSTRUCTIONS:
            raise ValueError(f"{word[:30]} is no instruction that is known here")
        if not rest and name != "FROM":
            raise ValueError(f"{name} has nothing behind it")
        if rest.endswith("\\"):
            raise ValueError("ends in a backslash before a backslash; builders differ in what it means")
        if len(rest.encode()) > MAX_LINE_BYTES:
            raise ValueError(f"is longer than {MAX_LINE_BYTES} bytes; COPY a script and RUN it")
        if not self.images and name not in {"ARG", "FROM"}:
            raise ValueError(f"stands before FROM; begin with FROM ${{{BASE}}}")
        if name in {"RUN", "COPY"} and "<<" in rest:
            fact = "has a here-document, which not every builder knows; join commands by &&, or COPY a script"
            raise ValueError(fact)
        return name, rest

    def _from(self, words: list[str]) -> str:
        platform = words.pop(0) if words and _PLATFORM.fullmatch(words[0]) else None
        if not words or words[0].startswith("--"):
            raise ValueError("names no image")
        image, named = words[0], len(words) == 3 and words[1].upper() == "AS"
        if len(words) != 1 and not named:
            raise ValueError("must be FROM IMAGE, or FROM IMAGE AS NAME")
        image = self._image(image)
        name = words[2].lower() if named else None
        if name is not None and (name in self._names or _STAGE.fullmatch(name) is None):
            raise ValueError(f"{words[2][:30]}: must be a new name of letters, digits and _.-")
        if name is not None:
            self._names[name] = self.images
        self.images += 1
        parts = ("FROM", platform, image, None if name is None else f"AS {name}")
        return " ".join(part for part in parts if part is not None)

    def _image(self, image: str) -> str:
        """Return an image that a stage may begin with: by a name, for builders look up numbers as images."""
        if image in _BASES:
            return f"${{{BASE}}}"
        if image.lower() in self._names:
            return image.lower()
        if "$" in image:
            raise ValueError(f"only {BASE} is a variable that FROM may name")
        if _IMAGE.fullmatch(image) is None:
            raise ValueError(f"{image[:60]}: is not a name of an image")
        if image == "scratch":
            return image
        if self._offered is None or any(fnmatchcase(image, each) for each in self._offered):
            self.others.setdefault(image, self._line)
            return image
        there = ", ".join((f"${{{BASE}}}", *sorted(self._offered)))
        raise ValueError(
            f"{image}: is not offered here; there are {there}; ask the operator (allowed_images)"
        )

    def _copy(self, rest: str) -> str:
        options = []
        while rest.startswith("--"):
            word, *others = rest.split(maxsplit=1)
            options.append(self._copy_option(word))
            rest = others[0] if others else ""
        if not rest:
            raise ValueError("COPY names no files")
        return " ".join(("COPY", *options, rest))

    def _copy_option(self, word: str) -> str:
        name, _, value = word.partition("=")
        known = _COPY_OPTION.get(name)
        if known is None:
            raise ValueError(f"{name[:30]}: is no option of COPY that is known here")
        if name == "--from":
            value = value.lower()
            earlier = {str(number) for number in range(self.images - 1)}
            if value not in earlier and self._names.get(value, self.images) >= self.images - 1:
                raise ValueError(f"{word[:60]}: is no earlier stage of this file")
        if known.fullmatch(value) is None:
            raise ValueError(f"{word[:60]}: has a value that is not known here")
        return f"{name}={value}" if value else name


def _instructions(text: str) -> Iterator[tuple[int, str]]:
    """Yield the instructions with their lines, and directives, which stand above the first instruction."""
    joined, first, is_top = "", 0, True
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.rstrip(" \t")
        if not line or line.lstrip(" \t").startswith("#"):
            if is_top and _DIRECTIVE.match(line.lstrip(" \t")):
                yield number, line.strip(" \t")
            continue
        is_top = False
        first = first or number
        goes_on = line.endswith("\\")
        joined += line[:-1] if goes_on else line
        if not goes_on or line.endswith("\\\\"):
            yield first, joined.strip(" \t")
            joined, first = "", 0
    if joined.strip(" \t"):
        yield first, joined.strip(" \t")
